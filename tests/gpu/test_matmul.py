"""The matrix product on a real GPU. Run with: .venv/bin/python -m pytest tests/gpu"""

from __future__ import annotations

import pytest

from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.targets import make
from infercanary.probe.targets.matmul import FLOPS, UNUSED, has_tensor_cores

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"
    ),
]


def test_each_precision_has_its_rate() -> None:
    target = make("matmul", {"device": "cuda"})
    canary = Canary("product", target, Tally(), 60.0, 300.0)
    canary.open(300.0)
    environment, ran = canary.environment, canary.round(10)
    assert ran is not None
    rates = {labels: value for metric, value, labels in ran.readings if metric is FLOPS}
    print(
        environment["torch_cuda_device"],
        {name: f"{rate / 1e12:.1f} TFLOP/s" for (name,), rate in rates.items()},
    )
    assert {name for (name,) in rates} == set(environment["matmul_precisions"].split())
    for timing in ran.timings:
        assert timing.phases.keys() == {"compute", "launch", "queue"}
        assert timing.phases["compute"] * target.clock.batch >= 90e-6  # type: ignore[attr-defined]
    if has_tensor_cores(torch, "cuda"):
        assert [value for metric, value, _ in ran.readings if metric is UNUSED] == [0.0]
        half = environment["matmul_precision"]
        assert rates[half,] > 1.5 * rates["float32",]
    assert canary.close(10.0)


def test_float32_is_not_computed_in_tf32_and_the_switch_is_as_it_was() -> None:
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
