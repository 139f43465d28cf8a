"""Counted work of torch's operators: the real profiler, compared with the definition of each operator."""

import pytest

from infercanary.probe.targets.engines.torch_profile import profile_repeats
from infercanary.probe.timing import HostClock
from tests.scenarios import typed

torch = pytest.importorskip("torch")

OPERATORS = {
    "conv2d": lambda: torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3), padding=1),
    "linear": lambda: torch.nn.functional.linear(torch.ones(8, 32), torch.ones(16, 32)),
    "matmul": lambda: torch.matmul(torch.ones(2, 4, 8, 16), torch.ones(2, 4, 16, 8)),
    "relu_": lambda: torch.relu_(torch.ones(1000)),
    "softmax": lambda: torch.ones(10, 100).softmax(-1),
    "sum": lambda: torch.ones(1000).sum(),
    "to": lambda: torch.ones(1000).to(torch.bfloat16),
    "contiguous": lambda: torch.ones(10, 100).t().contiguous(),
    "embedding": lambda: torch.nn.functional.embedding(torch.arange(10), torch.ones(1000, 64)),
    "embedding of a single number": lambda: torch.nn.functional.embedding(
        torch.tensor(3), torch.ones(1000, 64)
    ),
    "embedding without rows": lambda: torch.nn.functional.embedding(torch.arange(0), torch.ones(0, 64)),
    "scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(
        torch.ones(1, 2, 8, 16), torch.ones(1, 2, 32, 16), torch.ones(1, 2, 32, 16)
    ),
    "transpose": lambda: torch.ones(10, 100).transpose(0, 1),
    "reshape": lambda: torch.ones(10, 100).reshape(1000),
    "sort": lambda: torch.ones(1000).sort(),
    "conv1d": lambda: torch.nn.functional.conv1d(torch.ones(1, 3, 32), torch.ones(4, 3, 2)),
    "index": lambda: torch.ones(100)[torch.arange(10)],
    "cat": lambda: torch.cat([torch.ones(10), torch.ones(10)]),
}

# Floating-point operations, and elements of four bytes; ~ for unknown work.
WORK = typed("""
    conv2d                        | 2 * 2*4*8*8 * 27     | 2*3*8*8 + 4*27
    linear                        | 2 * 8*16*32          | 8*32 + 16*32
    matmul                        | 2 * 8*8*8*16         | 2 * 8*8*16
    relu_                         | 0                    | 2 * 1000
    softmax                       | 0                    | 2 * 1000
    sum                           | 0                    | 1000
    to                            | 0                    | 1000 + 500
    contiguous                    | 0                    | 2 * 1000
    embedding                     | 0                    | 2*10 + 2 * 10*64
    embedding of a single number  | ~                    | ~
    embedding without rows        | 0                    | 0
    scaled_dot_product_attention  | 4 * 2*8*32*16        | 2*8*16 + 2 * 2*32*16
    transpose                     | 0                    | 0
    reshape                       | 0                    | 0
    sort                          | ~                    | ~
    conv1d                        | ~                    | ~
    index                         | ~                    | ~
    cat                           | ~                    | ~
""")


@pytest.mark.parametrize(("name", "flops", "elements"), WORK, ids=[name for name, *_ in WORK])
def test_work_of_an_operator(name, flops, elements):
    with torch.inference_mode():
        profile = profile_repeats(torch, HostClock(), lambda _: OPERATORS[name](), 2, "cpu", None)
    [row] = [row for row in profile.rows if row.kind == f"aten::{name.partition(' ')[0]}"]
    if flops is None:
        assert (row.flops, row.bytes, row.launches) == (0, 0, 0)
    else:
        expected = [eval(str(text)) for text in (flops, elements)]
        assert (row.flops, row.bytes / 4) == pytest.approx(expected, rel=1e-3)
        assert row.launches >= 1
