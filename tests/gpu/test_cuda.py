"""The CUDA-event clock on a real device. Run with: .venv/bin/python -m pytest tests/gpu"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

from infercanary.probe import TorchTarget
from infercanary.probe.report import relative_error
from infercanary.probe.timing import overhead

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"
    ),
]


def test_phases_of_a_real_forward_pass() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7), torch.nn.ReLU(), torch.nn.Flatten()).cuda().eval()
    target = TorchTarget(model, [{"shape": [8, 3, 224, 224]}], device="cuda")
    target.open()
    timings = [target.clock.measure(target.run)[0] for _ in range(30)][10:]
    for timing in timings:
        assert set(timing.phases) == {"h2d", "compute", "d2h", "launch", "queue"}
        assert all(seconds >= 0 for seconds in timing.phases.values())
        on_device = sum(timing.phases[name] for name in ("h2d", "compute", "d2h"))
        assert on_device <= timing.wall
    assert statistics.median(t.phases["compute"] for t in timings) > 10e-6


def test_compute_agrees_with_plain_events() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    target = TorchTarget(lambda x: x @ matrix, [{"shape": [4096, 4096]}], device="cuda")
    target.open()
    ours = statistics.median(target.clock.measure(target.run)[0].phases["compute"] for _ in range(30))
    x = torch.randn(4096, 4096, device="cuda")
    plain = []
    for _ in range(30):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x @ matrix
        stop.record()
        stop.synchronize()
        plain.append(start.elapsed_time(stop) / 1e3)
    assert ours == pytest.approx(statistics.median(plain), rel=0.05)


def kernel_seconds(target: TorchTarget, repeats: int) -> float:
    """Seconds of kernels in one forward pass, by CUPTI."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(repeats):
            target.clock.measure(target.run)
    kernels = [
        e for e in profiled.events() if "memcpy" not in e.name.lower() and "memset" not in e.name.lower()
    ]
    return sum(event.device_time for event in kernels) / 1e6 / repeats


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_compute_agrees_with_the_profilers_kernels(mode: str) -> None:
    """A large product: its kernel is the whole phase, so that gaps between launches do not count."""
    matrix = torch.randn(8192, 8192, device="cuda")
    target = TorchTarget(lambda x: x @ matrix, [{"shape": [8192, 8192]}], device="cuda", mode=mode)  # type: ignore[arg-type]
    target.open()
    for _ in range(5):
        target.clock.measure(target.run)
    ours = statistics.median(target.clock.measure(target.run)[0].phases["compute"] for _ in range(20))
    assert ours == pytest.approx(kernel_seconds(target, 20), rel=0.02)


def test_a_graph_of_resnet18_is_its_kernels_and_has_the_eager_output() -> None:
    """As a graph it has hardly any gaps: compute is the kernels' time; and it is the same model."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "resnet18"))
    from model import SHAPE, build

    model = build().cuda()
    modes = ("eager", "graph")
    targets = {m: TorchTarget(model, [{"shape": list(SHAPE)}], device="cuda", mode=m) for m in modes}  # type: ignore[arg-type]
    seconds, outputs = {}, {}
    for mode, target in targets.items():
        target.open()
        timings = [target.clock.measure(target.run) for _ in range(60)][20:]
        seconds[mode] = statistics.median(timing.phases["compute"] for timing, _ in timings)
        outputs[mode] = target.values(timings[-1][1])
    assert relative_error(outputs["graph"], outputs["eager"]) < 1e-3
    assert seconds["graph"] <= seconds["eager"]
    assert seconds["graph"] == pytest.approx(kernel_seconds(targets["graph"], 20), rel=0.1)


def test_short_work_is_batched_to_100_us() -> None:
    x = torch.randn(16, 16, device="cuda")
    target = TorchTarget(lambda y: y @ x, [{"shape": [16, 16]}], device="cuda")
    target.open()
    target.calibrate()
    assert target.clock.batch > 1
    compute = statistics.median(target.clock.measure(target.run)[0].phases["compute"] for _ in range(20))
    assert compute * target.clock.batch > 50e-6
    assert overhead(target.clock) < 50e-6


def test_work_on_the_default_stream_is_seen() -> None:
    target = TorchTarget(lambda y: y + 1, [{"shape": [16]}], device="cuda")
    target.open()
    torch.cuda.synchronize()
    assert not target.is_busy()
    torch.cuda._sleep(int(200e6))
    assert target.is_busy()
    torch.cuda.synchronize()


def test_a_delayed_stream_shows_in_queue_and_nowhere_else() -> None:
    from infercanary.probe import CudaClock, Phase

    clock = CudaClock(torch.cuda, torch.device("cuda"))
    x = torch.randn(1024, 1024, device="cuda")

    def delayed(phase: Phase) -> None:
        torch.cuda._sleep(int(20e6))  # cycles: about 10 ms on the stream, before the work
        with phase("compute"):
            x @ x

    delays = [clock.measure(delayed)[0] for _ in range(10)][2:]
    for timing in delays:
        assert timing.phases["queue"] > 5e-3
        assert timing.phases["compute"] < 2e-3
        assert timing.phases["launch"] < 2e-3
