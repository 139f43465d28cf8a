"""Reading of torch's profiler; its events are scripted, like those of a GPU.

An event has the methods of torch's own events (`torch._C._autograd._KinetoEvent`). Real events are in
tests/integration/probe/test_profiles.py and tests/gpu/test_profiles.py.
"""

import gzip
import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from infercanary.contract.profile import MAX_ROWS, is_sound
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes
from infercanary.probe.targets.engines.torch_profile import make_profiler, profile_repeats

MARK = "infercanary::repeat"


class Event:
    """An event with times in microseconds. Missing attributes are 0 or empty."""

    def __init__(self, name, begin, took, device="CPU", **more):
        self.given = {"name": name, "begin": begin, "took": took, "device": device, **more}
        found = {
            "name": name, "start_ns": round(1000 * begin), "duration_ns": round(1000 * took), "device_index": 0,
            "device_type": f"DeviceType.{device}", "correlation_id": more.get("id", 0), "shapes": more.get("sizes", ()),
            "linked_correlation_id": more.get("linked", 0), "start_thread_id": more.get("thread", 1),
            "dtypes": more.get("types", ()), "flops": more.get("flops", 0),
            "is_user_annotation": name == MARK or more.get("annotation", False),
        }  # fmt: skip
        for method, value in found.items():
            setattr(self, method, lambda value=value: value)

    def later(self, shift):
        given = self.given | {"begin": self.given["begin"] + shift}
        return Event(**given | {key: given[key] + shift for key in ("id", "linked") if given.get(key)})


def read(line):
    """Parse an event: name, begin and length, and further attributes."""
    name, times, *more = line.split(" | ")
    has = yaml.safe_load(f"{{{''.join(more)}}}")
    begin, took = map(float, times.split())
    return Event(name, begin, took, **has)


class Torch:
    """A torch whose profiler returns the same events for each of two repeats; the first repeat is the warm-up."""

    def __init__(self, events):
        self.events = [event.later(shift) for shift in (0, 10_000) for event in events]
        self.traces: list[str] = []
        self.autograd = SimpleNamespace(profiler=self)

    @contextmanager
    def profile(self, **_):
        results = SimpleNamespace(events=lambda: self.events)
        yield SimpleNamespace(kineto_results=results, export_chrome_trace=self.traces.append)

    @contextmanager
    def record_function(self, name):
        assert name == MARK
        yield


class Walls:
    """A clock whose first inference takes 1 s and the second 1 ms, because the first repeat does not count."""

    def __init__(self, batch=1):
        self.batch = batch
        self._walls = iter([1.0, 0.001])

    def measure(self, run):
        return SimpleNamespace(wall=next(self._walls) / self.batch), run


def profile(torch, device, batch=1, trace=None):
    found = profile_repeats(torch, Walls(batch), str, 1, device, trace)
    assert is_sound(found)
    return found


def test_events_of_a_real_gpu_are_read():
    """Two repeats of a model on an H200, recorded with torch 2.11."""
    torch = Torch([])
    recorded = Path(__file__).parents[2] / "golden/kineto_h200.json.gz"
    torch.events = [
        Event(
            e["name"], e["begin"] / 1000, (e["end"] - e["begin"]) / 1000, e["device_type"].rpartition(".")[2],
            id=e["correlation"], linked=e["linked"], thread=e["thread"], annotation=e["annotation"],
            sizes=e["shapes"], types=e["dtypes"],
        )
        for e in json.loads(gzip.decompress(recorded.read_bytes()))["events"]
        if e["name"] != "[memory]"  # these events are not requested any more
    ]  # fmt: skip
    found = profile(torch, "cuda:0")
    assert found.state == "ok"
    rows = {(row.kind, row.device): row for row in found.rows}
    linear = rows["aten::linear", "cuda:0"]
    assert linear.seconds[0] == pytest.approx(297e-6, rel=0.1)
    assert linear.name.startswith("sgemm_largek_lds64<true")
    # Conversions to channels last and back, product, bias; and the copy of the input to the device.
    assert rows["aten::conv2d", "cuda:0"].calls == 5
    assert ("aten::copy_", "cuda:0") in rows
    assert rows.keys().isdisjoint((("aten::linear", "cpu"), ("aten::conv2d", "cpu")))


def test_kernels_are_asked_for(monkeypatch):
    """With a GPU, the real torch must record kernels; its default records only launches."""
    real = pytest.importorskip("torch")
    activities = real.profiler.ProfilerActivity
    both = {activities.CPU, activities.CUDA}
    monkeypatch.setattr(real.cuda, "is_available", lambda: True)
    monkeypatch.setattr(real.autograd.profiler, "_supported_activities", lambda: both)
    found = [make_profiler(real, on_device=on_device).kineto_activities for on_device in (True, False)]
    assert found == [both, {activities.CPU}]


# Device, inferences in a repeat, events; then state, microseconds outside of operators, and rows: operator,
# name, device, calls and microseconds of an inference, shapes.
PROFILES = {
    "what an operator called, named by what took most; another thread's are not the canary's": """
        cpu 1
        infercanary::repeat | 0 1000
        aten::conv2d | 100 600 | id: 1, sizes: [[1, 3, 8, 8], [4, 3, 3, 3], []], types: [float, float, Scalar]
        aten::convolution | 110 580 | id: 2
        aten::mkldnn_convolution | 120 500 | id: 3
        aten::linear | 200 300 | id: 9, thread: 2
        aten::relu | 800 100 | id: 4
        -> ok 300
        -> aten::conv2d aten::mkldnn_convolution cpu 1 600 1x3x8x8 float, 4x3x3x3 float
        -> aten::relu aten::relu cpu 1 100""",
    "kernels count by the device's time, copies with them; what has none ran on the host": """
        cuda 2
        infercanary::repeat | 0 1000
        aten::conv2d | 10 30 | id: 1
        aten::cudnn_convolution | 12 20 | id: 2
        cudaLaunchKernel | 14 5 | id: 3
        void implicit_gemm<float>(int) | 50 400 | device: CUDA, linked: 2
        void bias<float>(int) | 460 40 | device: CUDA, linked: 2
        aten::nonzero | 600 200 | id: 5
        infercanary::repeat | 0 990 | device: CUDA
        -> ok 180
        -> aten::conv2d implicit_gemm<float> cuda:0 1 220
        -> aten::nonzero aten::nonzero cpu 0.5 100""",
    "kernels of a graph belong to no operator": """
        cuda 1
        infercanary::repeat | 0 1000 | id: 9
        cudaGraphLaunch | 10 20 | id: 1
        triton_poi_fused_add_relu_3 | 50 300 | device: CUDA
        triton_poi_fused_add_relu_4 | 360 300 | device: CUDA, linked: 9
        -> ok 400
        -> fused add_relu triton_poi_fused_add_relu cuda:0 2 600""",
    "where CUPTI is refused operators are shown": """
        cuda 1
        infercanary::repeat | 0 1000
        aten::relu | 800 100 | id: 4
        -> no_cupti 900
        -> aten::relu aten::relu cpu 1 100""",
    "fused loops of a compiled model are one row": """
        cpu 1
        infercanary::repeat | 0 1000
        Torch-Compiled Region: 0/0 | 100 800 | id: 1, annotation: 1
        ## Call CompiledFxGraph fzquxyzabcdef ## | 150 700 | id: 2, annotation: 1
        mkldnn::_convolution_pointwise | 200 500 | id: 3
        -> ok 200
        -> mkldnn::_convolution_pointwise mkldnn::_convolution_pointwise cpu 1 500
        -> compiled region compiled region cpu 1 300""",
}


@pytest.mark.parametrize("text", PROFILES.values(), ids=PROFILES)
def test_rows_of_a_profile(text, tmp_path):
    settings, *lines = (line.strip() for line in text.strip().splitlines())
    device, batch = settings.split()
    torch = Torch([read(line) for line in lines if not line.startswith("->")])
    found = profile(torch, device, int(batch), tmp_path / "trace.json")
    shown = [f"-> {found.state} {1e6 * found.outside[0]:.0f}"]
    for row in found.rows:
        [seconds] = row.seconds
        shown.append(
            f"-> {row.kind} {row.name} {row.device} {row.calls:g} {1e6 * seconds:.0f} {row.shapes}".strip()
        )
    assert shown == [line for line in lines if line.startswith("->")]
    assert found.wall == (0.001 / int(batch),)
    assert torch.traces == [str(tmp_path / "trace.json")]


def test_forty_operators_have_rows_and_the_others_are_summed():
    times = OperatorTimes(3)
    for repeat in range(3):
        for i in range(60):
            times.add(repeat, Operator(f"op{i}", "cpu"), f"op{i}", 0.1 / (i + 1))
    found = times.profile([10.0] * 3, "torch", 1.0)
    assert is_sound(found)
    assert [(row.kind, row.calls) for row in found.rows] == [(f"op{i}", 1) for i in range(MAX_ROWS)]
    assert found.rest == (pytest.approx(sum(0.1 / (i + 1) for i in range(40, 60)), rel=1e-3),) * 3
    whole = sum(row.seconds[0] for row in found.rows) + found.rest[0] + found.outside[0]
    assert whole == pytest.approx(10.0, rel=1e-3)
