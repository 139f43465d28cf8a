"""The target of a matrix multiplication on a real GPU."""

import pytest

from infercanary.probe.targets import make

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("torch_cuda")


def test_float32_is_not_computed_in_tf32_and_the_switch_is_as_it_was():
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32: its compute capability is below 8.0")
    target = make("matmul", {"device": "cuda", "precision": "float32", "size": 1024})
    target.open()
    exact = None
    before = torch.backends.cuda.matmul.allow_tf32
    errors = {}
    for precision in ("float32", "tf32"):
        result = target._product(precision, lambda _: torch.cuda.device(0))  # type: ignore[attr-defined]
        torch.cuda.synchronize()
        a, b, _ = target._operands["float32"]  # type: ignore[attr-defined]
        exact = a.double() @ b.double() if exact is None else exact
        errors[precision] = float((result.double() - exact).abs().max() / exact.abs().max())
    assert errors["float32"] < 1e-5 < errors["tf32"]
    assert torch.backends.cuda.matmul.allow_tf32 == before
    target.close()
