"""Profiles on a real GPU: kernels by device time, against torch's own table of the same model."""

from __future__ import annotations

import statistics

import pytest

from infercanary.contract.profile import is_sound
from infercanary.probe import TorchTarget

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"
    ),
]


def opened(mode: str = "eager") -> TorchTarget:
    layers = [torch.nn.Conv2d(3, 64, 7), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda().eval()
    target = TorchTarget(model, [{"shape": [8, 3, 224, 224]}], device="cuda", mode=mode)  # type: ignore[arg-type]
    target.open()
    target.clock.measure(target.run)
    return target


def test_kernels_take_what_torchs_own_table_says() -> None:
    target = opened()
    profile = target.profiled(5)
    if profile.state == "no_cupti":
        pytest.skip("CUPTI is refused here: no kernel was timed")
    assert is_sound(profile)
    ours = sum(statistics.median(row.seconds) for row in profile.rows if row.kind == "aten::conv2d")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as table:
        for _ in range(5):
            target.clock.measure(target.run)
    [conv] = [row for row in table.key_averages() if row.key == "aten::conv2d"]
    batch = getattr(target.clock, "batch", 1)
    theirs = conv.device_time_total / 1e6 / 5 / batch
    assert ours == pytest.approx(theirs, rel=0.1)
    assert all(row.device.startswith("cuda") for row in profile.rows if row.kind == "aten::conv2d")


def test_a_graphs_kernels_are_shown_without_operators() -> None:
    profile = opened("graph").profiled(5)
    if profile.state == "no_cupti":
        pytest.skip("CUPTI is refused here: no kernel was timed")
    assert is_sound(profile) and sum(row.calls for row in profile.rows if row.device.startswith("cuda")) >= 4


def test_tf32_off_is_another_kernel_of_the_same_operator() -> None:
    names = []
    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32 = allowed
        profile = opened().profiled(5)
        if profile.state == "no_cupti":
            pytest.skip("CUPTI is refused here: no kernel was timed")
        names.append({row.name for row in profile.rows if row.kind == "aten::conv2d"})
    torch.backends.cudnn.allow_tf32 = True
    assert names[0] != names[1]
