"""What torch's profiler says, read: its events are scripted here, as a GPU's are that is not at hand.

An event has the methods of torch's own (`torch._C._autograd._KinetoEvent`); real ones are in
tests/integration/probe/test_profiles.py and tests/gpu/test_profiles.py.
"""

from __future__ import annotations

import gzip
import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from infercanary.contract.profile import MAX_ROWS, Profile, is_sound
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes
from infercanary.probe.targets.engines.torch_profile import make_profiler, profile_repeats

MARK = "infercanary::repeat"


class Event(NamedTuple):
    """Times in microseconds."""

    named: str
    begin: float
    took: float
    on: str = "DeviceType.CPU"
    id: int = 0
    linked: int = 0
    thread: int = 1
    annotation: bool = False
    sizes: Any = ()
    types: Any = ()

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return round(1000 * self.begin)

    def duration_ns(self) -> int:
        return round(1000 * self.took)

    def device_type(self) -> str:
        return self.on

    def device_index(self) -> int:
        return 0

    def correlation_id(self) -> int:
        return self.id

    def linked_correlation_id(self) -> int:
        return self.linked

    def start_thread_id(self) -> int:
        return self.thread

    def is_user_annotation(self) -> bool:
        return self.annotation

    def shapes(self) -> Any:
        return self.sizes

    def dtypes(self) -> Any:
        return self.types


class Torch:
    """Its profiler gives the same events for each of two repeats, of which the first is the warm-up."""

    def __init__(self, events: list[Event]) -> None:
        self._events = [
            e._replace(begin=e.begin + shift, id=e.id and e.id + shift, linked=e.linked and e.linked + shift)
            for shift in (0, 10_000)
            for e in events
        ]
        self.traces: list[str] = []
        self.autograd = SimpleNamespace(profiler=self)

    @contextmanager
    def profile(self, **_: Any) -> Any:
        yield SimpleNamespace(
            kineto_results=SimpleNamespace(events=lambda: self._events),
            export_chrome_trace=self.traces.append,
        )

    @contextmanager
    def record_function(self, name: str) -> Any:
        assert name == MARK
        yield


def profile(
    events: list[Event], device: str = "cpu", inferences: int = 1, trace: Path | None = None
) -> Profile:
    walls = iter([1.0, 0.001])  # the first is not counted
    found = profile_repeats(Torch(events), lambda: next(walls), 1, inferences, device, trace)
    assert is_sound(found)
    return found


CONV = [
    Event(MARK, 0, 1000, annotation=True),
    Event(
        "aten::conv2d",
        100,
        600,
        id=1,
        sizes=[[1, 3, 8, 8], [4, 3, 3, 3], []],
        types=["float", "float", "Scalar"],
    ),
    Event("aten::convolution", 110, 580, id=2),
    Event("aten::mkldnn_convolution", 120, 500, id=3),
    Event("aten::relu", 800, 100, id=4),
]


RECORDED = Path(__file__).parents[2] / "golden/kineto_h200.json.gz"


def recorded() -> list[Event]:
    """Two repeats of a model on an H200, as torch 2.11 gave them."""
    return [
        Event(
            each["name"],
            each["begin"] / 1000,
            (each["end"] - each["begin"]) / 1000,
            each["device_type"],
            each["correlation"],
            each["linked"],
            each["thread"],
            each["annotation"],
            each["shapes"],
            each["dtypes"],
        )
        for each in json.loads(gzip.decompress(RECORDED.read_bytes()))["events"]
        if each["name"] != "[memory]"  # which are not asked for any more
    ]


def test_events_of_a_real_gpu_are_read() -> None:
    torch = Torch([])
    torch._events = recorded()
    found = profile_repeats(torch, lambda: 1.0, 1, 1, "cuda:0", None)
    assert is_sound(found) and found.state == "ok"
    rows = {(row.kind, row.device): row for row in found.rows}
    assert rows["aten::linear", "cuda:0"].seconds[0] == pytest.approx(297e-6, rel=0.1)
    assert rows["aten::linear", "cuda:0"].name.startswith("sgemm_largek_lds64<true")
    assert (
        rows["aten::conv2d", "cuda:0"].calls == 5
    )  # to channels last and back, the product itself, the bias
    assert ("aten::linear", "cpu") not in rows and ("aten::conv2d", "cpu") not in rows
    assert ("aten::copy_", "cuda:0") in rows  # the input's way to the device


def test_kernels_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own, where a GPU is: by default it would list launches alone."""
    real = pytest.importorskip("torch")
    activities = real.profiler.ProfilerActivity
    monkeypatch.setattr(real.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        real.autograd.profiler, "_supported_activities", lambda: {activities.CPU, activities.CUDA}
    )
    assert make_profiler(real, on_device=True).kineto_activities == {activities.CPU, activities.CUDA}
    assert make_profiler(real, on_device=False).kineto_activities == {activities.CPU}


def test_an_operator_has_what_it_called_and_is_named_by_what_took_most() -> None:
    found = profile(CONV)
    conv, relu = found.rows
    assert (conv.kind, conv.name, conv.device, conv.calls) == (
        "aten::conv2d",
        "aten::mkldnn_convolution",
        "cpu",
        1,
    )
    assert conv.shapes == "1x3x8x8 float, 4x3x3x3 float"
    assert conv.seconds == (0.0006,) and relu.seconds == (0.0001,)
    assert found.outside == (0.0003,) and found.wall == (0.001,) and found.state == "ok"


def test_another_threads_operators_are_not_the_canarys() -> None:
    beside = Event("aten::linear", 200, 300, id=9, thread=2)
    assert [row.kind for row in profile([*CONV, beside]).rows] == ["aten::conv2d", "aten::relu"]


def test_kernels_count_by_the_devices_time_and_copies_with_them() -> None:
    """The host's time of an operator overlaps its kernels; an operator without any ran on the host."""
    events = [
        Event(MARK, 0, 1000, annotation=True),
        Event("aten::conv2d", 10, 30, id=1),
        Event("aten::cudnn_convolution", 12, 20, id=2),
        Event("cudaLaunchKernel", 14, 5, id=3),
        Event("void implicit_gemm<float>(int)", 50, 400, "DeviceType.CUDA", linked=2),
        Event("void bias<float>(int)", 460, 40, "DeviceType.CUDA", linked=2),
        Event("aten::nonzero", 600, 200, id=5),
        Event(MARK, 0, 990, "DeviceType.CUDA", annotation=True),
    ]
    found = profile(events, "cuda", inferences=2)
    conv, on_host = found.rows
    assert (conv.kind, conv.name, conv.device) == ("aten::conv2d", "implicit_gemm<float>", "cuda:0")
    assert conv.calls == 1, "two kernels in a repeat of two inferences"
    assert conv.seconds == (0.00022,)
    assert (on_host.kind, on_host.device, on_host.seconds) == ("aten::nonzero", "cpu", (0.0001,))
    assert found.outside == (pytest.approx((1000 - 440 - 200) / 2e6),)


def test_a_graphs_kernels_belong_to_no_operator() -> None:
    events = [
        Event(MARK, 0, 1000, id=9, annotation=True),
        Event("cudaGraphLaunch", 10, 20, id=1),
        Event("triton_poi_fused_add_relu_3", 50, 300, "DeviceType.CUDA"),
        Event("triton_poi_fused_add_relu_4", 360, 300, "DeviceType.CUDA", linked=9),
    ]
    [row] = profile(events, "cuda").rows
    assert (row.kind, row.device, row.calls, row.seconds) == (
        "fused add_relu",
        "cuda:0",
        2,
        (0.0006,),
    )


def test_where_cupti_is_refused_operators_are_shown_and_the_state_says_so() -> None:
    found = profile(CONV, "cuda")
    assert found.state == "no_cupti" and found.rows[0].device == "cpu"


def test_fused_loops_of_a_compiled_model_are_one_row() -> None:
    events = [
        Event(MARK, 0, 1000, annotation=True),
        Event("Torch-Compiled Region: 0/0", 100, 800, id=1, annotation=True),
        Event("## Call CompiledFxGraph fzquxyzabcdef ##", 150, 700, id=2, annotation=True),
        Event("mkldnn::_convolution_pointwise", 200, 500, id=3),
    ]
    found = profile(events)
    assert {row.kind: row.seconds for row in found.rows} == {
        "mkldnn::_convolution_pointwise": (0.0005,),
        "compiled region": (pytest.approx(0.0003),),
    }
    assert {row.kind: row.calls for row in found.rows}["compiled region"] == 1


def test_the_trace_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    torch = Torch(CONV)
    profile_repeats(torch, lambda: 1.0, 1, 1, "cpu", tmp_path / "trace.json")
    assert torch.traces == [str(tmp_path / "trace.json")]


def test_forty_operators_have_rows_and_the_others_are_summed() -> None:
    times = OperatorTimes(3)
    for repeat in range(3):
        for i in range(60):
            times.add(repeat, Operator(f"op{i}", "cpu"), f"op{i}", 0.1 / (i + 1))
    found = times.profile([10.0] * 3, "torch", 1.0)
    assert is_sound(found)
    assert [row.kind for row in found.rows] == [f"op{i}" for i in range(MAX_ROWS)]
    assert found.rest == (pytest.approx(sum(0.1 / (i + 1) for i in range(40, 60)), rel=1e-3),) * 3
    whole = sum(row.seconds[0] for row in found.rows) + found.rest[0] + found.outside[0]
    assert whole == pytest.approx(10.0, rel=1e-3)
