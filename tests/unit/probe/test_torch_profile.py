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
from typing import Any

import pytest

from infercanary.contract.profile import MAX_ROWS, Profile, is_sound
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes
from infercanary.probe.targets.engines.torch_profile import make_profiler, profile_repeats

MARK = "infercanary::repeat"


class Event:
    """Times in microseconds. What it does not have otherwise is 0, or empty."""

    def __init__(self, name: str, begin: float, took: float, device: str = "CPU", **more: Any) -> None:
        self.given = {"name": name, "begin": begin, "took": took, "device": device, **more}
        found = {
            "name": name, "start_ns": round(1000 * begin), "duration_ns": round(1000 * took), "device_index": 0,
            "device_type": f"DeviceType.{device}", "correlation_id": more.get("id", 0), "shapes": more.get("sizes", ()),
            "linked_correlation_id": more.get("linked", 0), "start_thread_id": more.get("thread", 1),
            "dtypes": more.get("types", ()), "is_user_annotation": name == MARK or more.get("annotation", False),
        }  # fmt: skip
        for method, value in found.items():
            setattr(self, method, lambda value=value: value)

    def later(self, shift: int) -> Event:
        given: Any = self.given | {"begin": self.given["begin"] + shift}
        return Event(**given | {key: given[key] + shift for key in ("id", "linked") if given.get(key)})


def read(text: str) -> list[Event]:
    """Events, one a line: name, begin and length, and what else it has."""
    found = []
    for line in text.strip().splitlines():
        name, times, *more = line.strip().split(" | ")
        has: dict[str, Any] = dict(pair.split("=") for part in more for pair in part.split())
        device = has.pop("device", "CPU")
        numbers = {key: int(number) for key, number in has.items()}
        begin, took = map(float, times.split())
        found.append(Event(name, begin, took, device, **numbers))
    return found


class Torch:
    """Its profiler gives the same events for each of two repeats, of which the first is the warm-up."""

    def __init__(self, events: list[Event]) -> None:
        self.events = [event.later(shift) for shift in (0, 10_000) for event in events]
        self.traces: list[str] = []
        self.autograd = SimpleNamespace(profiler=self)

    @contextmanager
    def profile(self, **_: Any) -> Any:
        results = SimpleNamespace(events=lambda: self.events)
        yield SimpleNamespace(kineto_results=results, export_chrome_trace=self.traces.append)

    @contextmanager
    def record_function(self, name: str) -> Any:
        assert name == MARK
        yield


class Walls:
    """A clock of inferences of 1 s and then of 1 ms: the first repeat is not counted."""

    def __init__(self, batch: int = 1) -> None:
        self.batch = batch
        self._walls = iter([1.0, 0.001])

    def measure(self, run: Any) -> Any:
        return SimpleNamespace(wall=next(self._walls) / self.batch), run


def profile(
    torch: Torch | list[Event], device: str = "cpu", batch: int = 1, trace: Path | None = None
) -> Profile:
    made = Torch(torch) if isinstance(torch, list) else torch
    found = profile_repeats(made, Walls(batch), str, 1, device, trace)
    assert is_sound(found)
    return found


SIZES: dict[str, Any] = {"sizes": [[1, 3, 8, 8], [4, 3, 3, 3], []], "types": ["float", "float", "Scalar"]}
CONV = read("""
    infercanary::repeat | 0 1000
    aten::conv2d | 100 600 | id=1
    aten::convolution | 110 580 | id=2
    aten::mkldnn_convolution | 120 500 | id=3
    aten::relu | 800 100 | id=4
""")
CONV[1] = Event("aten::conv2d", 100, 600, id=1, **SIZES)


def test_events_of_a_real_gpu_are_read() -> None:
    """Two repeats of a model on an H200, as torch 2.11 gave them."""
    torch = Torch([])
    recorded = Path(__file__).parents[2] / "golden/kineto_h200.json.gz"
    torch.events = [
        Event(
            e["name"], e["begin"] / 1000, (e["end"] - e["begin"]) / 1000, e["device_type"].rpartition(".")[2],
            id=e["correlation"], linked=e["linked"], thread=e["thread"], annotation=e["annotation"],
            sizes=e["shapes"], types=e["dtypes"],
        )
        for e in json.loads(gzip.decompress(recorded.read_bytes()))["events"]
        if e["name"] != "[memory]"  # which are not asked for any more
    ]  # fmt: skip
    found = profile(torch, "cuda:0")
    assert found.state == "ok"
    rows = {(row.kind, row.device): row for row in found.rows}
    linear = rows["aten::linear", "cuda:0"]
    assert linear.seconds[0] == pytest.approx(297e-6, rel=0.1) and linear.name.startswith(
        "sgemm_largek_lds64<true"
    )
    # To channels last and back, the product itself, the bias; and the input's way to the device.
    assert rows["aten::conv2d", "cuda:0"].calls == 5 and ("aten::copy_", "cuda:0") in rows
    assert rows.keys().isdisjoint((("aten::linear", "cpu"), ("aten::conv2d", "cpu")))


def test_kernels_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own, where a GPU is: by default it would list launches alone."""
    real = pytest.importorskip("torch")
    activities = real.profiler.ProfilerActivity
    both = {activities.CPU, activities.CUDA}
    monkeypatch.setattr(real.cuda, "is_available", lambda: True)
    monkeypatch.setattr(real.autograd.profiler, "_supported_activities", lambda: both)
    found = [make_profiler(real, on_device=on_device).kineto_activities for on_device in (True, False)]
    assert found == [both, {activities.CPU}]


def test_an_operator_has_what_it_called_and_is_named_by_what_took_most(tmp_path: Path) -> None:
    torch = Torch(CONV)
    found = profile(torch, trace=tmp_path / "trace.json")
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
    assert torch.traces == [str(tmp_path / "trace.json")]


def test_another_threads_operators_are_not_the_canarys() -> None:
    beside = Event("aten::linear", 200, 300, id=9, thread=2)
    assert [row.kind for row in profile([*CONV, beside]).rows] == ["aten::conv2d", "aten::relu"]


def test_kernels_count_by_the_devices_time_and_copies_with_them() -> None:
    """The host's time of an operator overlaps its kernels; an operator without any ran on the host."""
    events = read("""
        infercanary::repeat | 0 1000
        aten::conv2d | 10 30 | id=1
        aten::cudnn_convolution | 12 20 | id=2
        cudaLaunchKernel | 14 5 | id=3
        void implicit_gemm<float>(int) | 50 400 | device=CUDA linked=2
        void bias<float>(int) | 460 40 | device=CUDA linked=2
        aten::nonzero | 600 200 | id=5
        infercanary::repeat | 0 990 | device=CUDA
    """)
    found = profile(events, "cuda", batch=2)
    conv, on_host = found.rows
    assert (conv.kind, conv.name, conv.device) == ("aten::conv2d", "implicit_gemm<float>", "cuda:0")
    assert conv.calls == 1, "two kernels in a repeat of two inferences"
    assert conv.seconds == (0.00022,)
    assert (on_host.kind, on_host.device, on_host.seconds) == ("aten::nonzero", "cpu", (0.0001,))
    assert found.outside == (pytest.approx((1000 - 440 - 200) / 2e6),)


def test_a_graphs_kernels_belong_to_no_operator() -> None:
    events = read("""
        infercanary::repeat | 0 1000 | id=9
        cudaGraphLaunch | 10 20 | id=1
        triton_poi_fused_add_relu_3 | 50 300 | device=CUDA
        triton_poi_fused_add_relu_4 | 360 300 | device=CUDA linked=9
    """)
    [row] = profile(events, "cuda").rows
    assert (row.kind, row.device, row.calls, row.seconds) == ("fused add_relu", "cuda:0", 2, (0.0006,))


def test_where_cupti_is_refused_operators_are_shown_and_the_state_says_so() -> None:
    found = profile(CONV, "cuda")
    assert found.state == "no_cupti" and found.rows[0].device == "cpu"


def test_fused_loops_of_a_compiled_model_are_one_row() -> None:
    events = read("""
        infercanary::repeat | 0 1000
        Torch-Compiled Region: 0/0 | 100 800 | id=1 annotation=1
        ## Call CompiledFxGraph fzquxyzabcdef ## | 150 700 | id=2 annotation=1
        mkldnn::_convolution_pointwise | 200 500 | id=3
    """)
    found = profile(events)
    assert {row.kind: row.seconds for row in found.rows} == {
        "mkldnn::_convolution_pointwise": (0.0005,),
        "compiled region": (pytest.approx(0.0003),),
    }
    assert {row.kind: row.calls for row in found.rows}["compiled region"] == 1


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
