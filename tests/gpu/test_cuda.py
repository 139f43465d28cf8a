"""The clock of CUDA events on a real device. ``make gpu`` compares this clock with the kernel times of a profiler."""

import gc
import shutil
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu import MODES, kernel_seconds
from infercanary.contract.report import OUTPUT_TOLERANCE, decode, relative_error
from infercanary.probe import CudaClock, Probe, TorchTarget
from tests.gpu.targets import opened
from tests.scenarios import cases

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "resnet18"))

from model import SHAPE, build  # noqa: E402 - it needs torch

pytestmark = pytest.mark.usefixtures("torch_cuda")

PHASES = {"h2d", "compute", "d2h", "launch", "queue"}


def needs_inductor(test):
    """Mark a test of torch.compile. Warnings of torch.compile and Triton are ignored."""
    there = find_spec("triton") and (shutil.which("cc") or shutil.which("gcc"))
    skip = pytest.mark.skipif(not there, reason="torch.compile on CUDA needs Triton and a C compiler")
    return pytest.mark.filterwarnings("ignore")(skip(test))


def resnet18(mode, model):
    return TorchTarget(model, [{"shape": list(SHAPE)}], device="cuda", mode=mode)


def test_a_graph_of_resnet18_has_fewer_gaps_and_the_eager_output():
    model = build().cuda()
    targets = {mode: resnet18(mode, model) for mode in MODES}
    medians = {}
    outputs = {}
    for mode, target in targets.items():
        target.open()
        measured = [target.clock.measure(target.run) for _ in range(60)][20:]
        for timing, _ in measured:
            assert set(timing.phases) == PHASES
            assert min(timing.phases.values()) >= 0
            assert sum(timing.phases[name] for name in ("h2d", "compute", "d2h")) <= timing.wall
        for phase in ("compute", "launch"):
            medians[mode, phase] = statistics.median(timing.phases[phase] for timing, _ in measured)
        outputs[mode] = target.values(measured[-1][1])
    assert relative_error(outputs["graph"], outputs["eager"]) < 1e-3
    assert medians["graph", "compute"] <= medians["eager", "compute"]
    assert medians["graph", "launch"] < medians["eager", "launch"]
    # The kernels of a graph run one after another on one stream, so the time between two events cannot be
    # less than the time of the kernels.
    assert medians["graph", "compute"] > 0.98 * kernel_seconds(targets["graph"], 20)


def made():
    """Return a model for a setting that names a function: ``model: …:made``."""
    torch.manual_seed(3)
    return torch.nn.Linear(1024, 1024)


def tokens():
    """Return token indices below 10: a larger index causes a device assertion, after which CUDA fails in this
    process.
    """
    return torch.nn.Embedding(10, 1024)


def test_a_graph_of_a_model_that_was_made_here_keeps_its_weights():
    eager, graph = (opened(f"{__name__}:made", (8, 1024), mode=mode) for mode in ("eager", "graph"))
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((1024, 1024), torch.nan, device="cuda") for _ in range(64)]
    outputs = [t.values(t.clock.measure(t.run)[1]) for t in (eager, graph)]
    assert relative_error(outputs[1], outputs[0]) < 1e-3
    del others


def test_a_graph_is_captured_with_the_inputs_in_place():
    garbage = [torch.full((8,), 2**40, dtype=torch.int64, device="cuda") for _ in range(64)]
    del garbage  # The next allocation of this size gets the same memory with its content.
    target = TorchTarget(
        f"{__name__}:tokens", [{"shape": [8], "dtype": "int64", "high": 10}], device="cuda", mode="graph"
    )
    target.open()
    assert target.values(target.clock.measure(target.run)[1])


@needs_inductor
def test_one_probe_runs_eager_compiled_and_graph_side_by_side():
    model = build().cuda()
    canaries = {mode: resnet18(mode, model) for mode in ("eager", "compile", "graph")}
    runs = {}
    with Probe(canaries, listen="127.0.0.1:0", interval_seconds=0.5, duty_cap=1.0) as probe:
        report, deadline = decode(probe.report("")), time.monotonic() + 300  # torch.compile may take minutes
        while len(report.outputs) < len(canaries) or min(map(len, runs.values())) < 5:
            assert time.monotonic() < deadline  # Five runs are too few to make all three canaries steady.
            time.sleep(0.5)
            report = decode(probe.report(""))
            assert [run.detail for run in report.runs if run.outcome not in ("ok", "busy")] == []
            done = [run for run in report.runs if run.outcome == "ok"]
            runs = {mode: [run for run in done if run.canary == mode] for mode in canaries}
    for of_mode in runs.values():
        for run in of_mode:
            assert set(run.phases) == PHASES
            assert run.output_error is None or run.output_error < OUTPUT_TOLERANCE
        assert {"gpu_fma", "gpu_copy", "gpu_transfer"} < set(of_mode[-1].controls)
    for mode in ("compile", "graph"):
        assert relative_error(report.outputs[mode], report.outputs["eager"]) < OUTPUT_TOLERANCE


def test_short_work_is_batched_to_100_us():
    x = torch.randn(16, 16, device="cuda")
    target = opened(lambda y: y @ x, (16, 16))
    target.calibrate()
    assert target.clock.batch > 1
    compute = statistics.median(target.clock.measure(target.run)[0].phases["compute"] for _ in range(20))
    assert compute * target.clock.batch > 50e-6


def test_work_on_the_default_stream_is_seen():
    target = opened(lambda y: y + 1, (16,))
    torch.cuda.synchronize()
    assert not target.is_busy()
    torch.cuda._sleep(int(200e6))
    assert target.is_busy()
    torch.cuda.synchronize()


@cases([10e6, 40e6])
def test_a_delayed_stream_shows_in_queue_and_nowhere_else(cycles):
    clock = CudaClock(torch.cuda, torch.device("cuda"))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.randn(1024, 1024, device="cuda")
    torch.cuda.synchronize()

    def delayed(phase):
        begin.record()  # torch records an event on the current stream, which the clock uses
        torch.cuda._sleep(int(cycles))
        end.record()
        with phase("compute"):
            x @ x

    for repeat in range(12):
        timing, _ = clock.measure(delayed)
        if repeat < 2:  # the first repeats also load the kernels
            continue
        delay = begin.elapsed_time(end) / 1e3
        assert delay > 2e-3
        assert timing.phases["queue"] == pytest.approx(delay, rel=0.03)
        assert timing.phases["compute"] < 2e-3
        assert timing.phases["launch"] < 2e-3
