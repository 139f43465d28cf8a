"""The CUDA-event clock on a real device. Run with: .venv/bin/python -m pytest tests/gpu"""

from __future__ import annotations

import statistics

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"
    ),
]


def test_phases_of_a_real_forward_pass() -> None:
    from infercanary.probe import TorchTarget

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
    from infercanary.probe import TorchTarget

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
