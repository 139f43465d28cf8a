"""What is left of the host's memory: control groups of both versions made by hand, and what is refused by it."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command.settings import UsageError
from infercanary.probe.canary import Canary
from infercanary.probe.failing import DETAIL, FAILURES
from infercanary.probe.footprint import Footprint
from infercanary.probe.histogram import Tally
from infercanary.probe.load import Load
from infercanary.probe.loop import Probe
from infercanary.probe.openings import Openings
from infercanary.probe.room import (
    LEAST_RESERVE,
    RESERVE_SHARE,
    Bound,
    Left,
    Room,
    bounds,
    left,
    refusal,
)
from infercanary.probe.sweep import LATENCY, Sweep, Sweeping
from infercanary.probe.targets import Failure, Need, Target
from infercanary.probe.targets.engines.needs import of_files, of_input
from infercanary.probe.timing import HostClock

MIB = 1 << 20
HOST = "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 2097152 kB\n"
THE_HOST = Bound("the host's 8.00 GiB", 8192 * MIB, 6144 * MIB)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def proc_of(tmp_path: Path, cgroup: str, meminfo: str | None = HOST) -> Path:
    files = {"self/cgroup": cgroup} | ({"meminfo": meminfo} if meminfo is not None else {})
    return tree(tmp_path / "proc", files)


def group(folder: str, limit: int | str, used: int, inactive: int, is_v1: bool = False) -> dict[str, str]:
    """Files of one control group; sizes in MiB."""
    most = str(limit) if isinstance(limit, str) else str(limit * MIB)
    if is_v1:
        return {
            f"{folder}/memory.limit_in_bytes": most,
            f"{folder}/memory.usage_in_bytes": str(used * MIB),
            f"{folder}/memory.use_hierarchy": "1",
            f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {inactive * MIB}\n",
        }
    return {
        f"{folder}/memory.max": most,
        f"{folder}/memory.current": str(used * MIB),
        f"{folder}/memory.stat": f"anon 5\ninactive_file {inactive * MIB}\n",
    }


def test_v2_of_a_container(tmp_path: Path) -> None:
    root = tree(tmp_path / "cgroup", {"cgroup.controllers": "", **group(".", 300, 200, 50)})
    assert bounds(root, proc_of(tmp_path, "0::/\n")) == [
        Bound("the container's limit of 300 MiB", 300 * MIB, 150 * MIB),
        THE_HOST,
    ]


def test_v2_nested(tmp_path: Path) -> None:
    above = "/kubepods.slice/kubepods-burstable-pod0123456789.slice"
    files = (
        group(f"{above}/own", 1000, 100, 0)
        | group(above, 500, 450, 20)
        | group("/kubepods.slice", "max", 9, 0)
    )
    root = tree(tmp_path / "cgroup", {"cgroup.controllers": "", **{name[1:]: files[name] for name in files}})
    found = bounds(root, proc_of(tmp_path, f"0::{above}/own\n"))
    assert found == [
        Bound("the container's limit of 1000 MiB", 1000 * MIB, 100 * MIB),
        Bound("the limit of 500 MiB of the control group …s-burstable-pod0123456789.slice".replace(
            "…s-burstable-pod0123456789.slice", f"…{above[-39:]}"), 500 * MIB, 430 * MIB),
        THE_HOST,
    ]  # fmt: skip
    room = left(found)
    assert room is not None and room.size == (70 - 64) * MIB and "the control group" in room.whose


def test_v1_and_what_is_above(tmp_path: Path) -> None:
    files = group("memory/docker/own", 300, 100, 10, True) | group("memory/docker", 200, 150, 5, True)
    files |= group("memory", str(2**63 - 4096), 9000, 0, True)
    root = tree(tmp_path / "cgroup", files)
    proc = proc_of(tmp_path, "4:memory:/docker/own\n3:cpu,cpuacct:/\n0::/\n")
    own = Bound("the container's limit of 300 MiB", 300 * MIB, 90 * MIB)
    assert bounds(root, proc) == [
        own, Bound("the limit of 200 MiB of the control group /docker", 200 * MIB, 145 * MIB), THE_HOST
    ]  # fmt: skip
    (root / "memory/docker/memory.use_hierarchy").write_text("0")
    assert bounds(root, proc) == [own, THE_HOST]


def test_v1_where_only_the_limit_above_is_known(tmp_path: Path) -> None:
    """A container of v1 sees its own group at the mount point; the kernel says the least limit above it."""
    files = group("memory", str(2**63 - 4096), 100, 10, True)
    files["memory/memory.stat"] += f"hierarchical_memory_limit {400 * MIB}\n"
    root = tree(tmp_path / "cgroup", files)
    found = bounds(root, proc_of(tmp_path, "4:memory:/docker/0123\n"))
    assert found == [Bound("the container's limit of 400 MiB", 400 * MIB, 90 * MIB), THE_HOST]


@pytest.mark.parametrize(
    "files", [{}, {"cgroup.controllers": ""}, {"cgroup.controllers": "", "memory.max": "max"}]
)
def test_without_a_limit_it_is_the_host(tmp_path: Path, files: dict[str, str]) -> None:
    root = tree(tmp_path / "cgroup", files)
    assert bounds(root, proc_of(tmp_path, "0::/\n")) == [THE_HOST]


def test_where_nothing_can_be_read_nothing_is_refused(tmp_path: Path) -> None:
    room = Room(None, tmp_path, tmp_path)
    assert room.left() is None
    room.require("a", [Need("inputs[0]", 1 << 60, "all", "give less")])


def test_this_machine_has_room() -> None:
    room = Room().left()
    assert room is not None and room.whose and 0 <= room.size < 1 << 50


sizes = st.integers(0, 1 << 44)
some_bounds = st.lists(st.builds(Bound, st.text(max_size=3), sizes, st.integers(-5, 1 << 44)), max_size=5)


@given(some_bounds, st.one_of(st.none(), sizes))
def test_the_least_bound_counts(found: list[Bound], reserve: int | None) -> None:
    room = left(found, reserve)
    assert (room is None) == (not found)
    if room is None:
        return
    binding = [bound for bound in found if bound.whose == room.whose]
    assert binding
    for bound in found:  # what is taken within it stays within every bound, and leaves each its reserve
        kept = max(LEAST_RESERVE, int(RESERVE_SHARE * bound.limit)) if reserve is None else reserve
        assert room.size == 0 or max(0, bound.used) + room.size + kept <= bound.limit
    more = left([*found, Bound("z", 0, 0)], reserve)
    assert more is not None and more.size == 0  # another bound never leaves more


@given(some_bounds, sizes)
def test_a_larger_reserve_leaves_less(found: list[Bound], reserve: int) -> None:
    less, more = left(found, reserve + 1), left(found, reserve)
    assert less is None or (more is not None and less.size <= more.size)


@given(st.lists(st.integers(0, 1 << 40), max_size=4), st.integers(0, 1 << 41))
def test_needs_are_counted_together(each: list[int], room: int) -> None:
    needs = [Need(f"inputs[{i}]", size, "it", "give less") for i, size in enumerate(each)]
    why = refusal("a", needs, Left(room, 0, "the limit"))
    assert bool(why) == (sum(each) > room)


def test_the_line_says_place_need_room_whose_and_fix() -> None:
    needs = [
        of_input("inputs[0]", [4, 3, 4000, 4000], "float32"),
        of_input("inputs[1]", [2 << 20], "int8"),
    ]
    why = refusal("big", needs, Left(50 * MIB, 64 * MIB, "the container's limit of 300 MiB"))
    assert why == (
        "canaries.big.inputs[0]: [4, 3, 4000, 4000] float32 needs 732 MiB, 734 MiB with the others; 50 MiB are left of "
        "the container's limit of 300 MiB, less 64 MiB in reserve; give a smaller shape, or grant more memory"
    )


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 4), ("float64", 8), ("bfloat16", 2), ("bool", 1), ("int8", 1), ("complex64", 8), ("float8_e4m3fn", 1)],
)  # fmt: skip
def test_sizes_of_types(dtype: str, size: int) -> None:
    assert of_input("inputs[0]", [2, 3], dtype).size == 6 * size
    assert of_input("inputs[0]", [], dtype).size == size
    assert of_input("inputs[0]", [1 << 62] * 40, dtype).size == 1 << 62


def test_files_that_are_not_there_need_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"123")
    assert of_files("model", [tmp_path / "model", tmp_path / "none"]).size == 3


def container(tmp_path: Path, limit: int, used: int) -> tuple[Path, Path]:
    """The cgroup and the procfs of a container of v2, in MiB."""
    root = tree(tmp_path / "cgroup", {"cgroup.controllers": "", **group(".", limit, used, 0)})
    return root, proc_of(tmp_path, "0::/\n")


class Asking(Target):
    clock = HostClock()
    opened = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self) -> None:
        self.ask_for_memory([of_input("inputs[0]", [self._size], "uint8")])
        self.opened += 1

    def run(self, phase: Any) -> None:
        pass

    def values(self, result: None) -> list[float]:
        return [1.0]

    def environment(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def points(tally: Tally, metric: Any) -> dict[tuple[str, ...], Any]:
    return {p.labels: p.value for f in tally.families() if f.name == metric.name for p in f.points}


def test_a_canary_waits_for_room_and_then_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, proc = container(tmp_path, 1000, 900)
    room, tally, target = Room(None, root, proc), Tally(), Asking(200 * MIB)
    canary = Canary("a", target, tally, 30, 300, opening=Openings(room, {"a": target}).of["a"])
    now = 100.0
    monkeypatch.setattr("infercanary.probe.canary.perf_counter", lambda: now)
    waits = []
    for _ in range(6):
        canary.open(30)
        waits.append(round(canary._retry_at - now))
        canary.open(30)  # before its time nothing happens
        now = canary._retry_at + 1
    assert (canary.state, target.opened) == ("out_of_memory", 0)
    assert waits == [60, 120, 240, 480, 600, 600]
    assert points(tally, FAILURES)["a", "out_of_memory"] == 6
    [(name, reason, detail)] = points(tally, DETAIL)
    assert (name, reason) == (
        "a",
        "out_of_memory",
    ) and "canaries.a.inputs[0]: [209715200] uint8 needs" in detail
    (root / "memory.current").write_text(str(600 * MIB))
    canary.open(30)
    assert canary.is_fit and target.opened == 1


def test_the_probe_answers_its_targets(tmp_path: Path) -> None:
    target = Asking(1)
    Probe({"a": target}, listen="127.0.0.1:0", memory_reserve=1 << 60, controls=False, samplers=())
    with pytest.raises(Failure) as caught:
        target.open()
    assert caught.value.reason == "out_of_memory" and "1073741824.00 GiB in reserve" in str(caught.value)
    for name in ("memory_reserve", "device_memory_reserve"):
        with pytest.raises(UsageError, match=f"^{name}: -1 is not a size"):
            Probe({"a": target}, **{name: -1})  # type: ignore[arg-type]


def test_torch_and_onnx_ask_before_they_take(tmp_path: Path) -> None:
    from infercanary.probe.targets.torch import TorchTarget

    class Refused(Exception):
        pass

    asked: list[Need] = []

    def refuse(needs: Any) -> None:
        asked.extend(needs)
        raise Refused

    (tmp_path / "model.pt").write_bytes(bytes(999))
    inputs = [{"shape": [8, 1000]}, {"shape": [3], "dtype": "int64"}]
    for device in ("cpu", "cuda"):
        asked.clear()
        target = TorchTarget(str(tmp_path / "model.pt"), inputs, device=device)
        target.ask_for_memory = refuse
        with pytest.raises(Refused):
            target.open()
        assert [(need.place, need.size) for need in asked] == [
            ("inputs[0]", 32000), ("inputs[1]", 24), ("model", 999)
        ]  # fmt: skip
        target.close()


def test_matmul_and_a_model_with_weights_beside_it_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    from infercanary.probe.targets.matmul import MatmulTarget
    from infercanary.probe.targets.onnx import OnnxTarget

    class Refused(Exception):
        pass

    def refuse(needs: Any) -> None:
        asked.extend(needs)
        if sum(need.size for need in needs) >= 5000:
            raise Refused

    asked: list[Need] = []
    matmul = MatmulTarget(64)
    matmul.ask_for_memory = refuse
    with pytest.raises(Refused):
        matmul.open()
    half = 3 * 2 if len(matmul.precisions) > 1 else 0
    assert asked == [Need("size", 64 * 64 * (3 * 4 + half), "matrices of 64 × 64", "give a smaller size")]
    asked.clear()
    (tmp_path / "m.onnx").write_bytes(b"\x0a\x08location\x12\x09m.weights \x0a")
    (tmp_path / "m.weights").write_bytes(bytes(5000))
    onnx = OnnxTarget(str(tmp_path / "m.onnx"))
    onnx.ask_for_memory = refuse
    with pytest.raises(Refused):
        onnx.open()
    size = (tmp_path / "m.onnx").stat().st_size
    assert [need.size for need in asked] == [size, size + 5000]


def process(proc: Path, resident: int, peak: int) -> None:
    """A process's files; in MiB."""
    tree(proc, {
        "statm": f"9999999 {resident * MIB // resource.getpagesize()} 0 0 0 0 0\n",
        "status": f"Name:\tx\nVmHWM:\t{peak << 10} kB\nVmRSS:\t1 kB\n", "clear_refs": "",
    })  # fmt: skip


def test_a_load_is_refused_by_what_a_smaller_one_took(tmp_path: Path) -> None:
    root, proc = container(tmp_path, 1000, 400)  # 536 MiB are left
    footprint = Footprint("a", Room(None, root, proc), proc / "self")
    one, two, eight = Load(1, 1), Load(2, 1), Load(8, 1)
    process(proc / "self", 100, 100)
    footprint.begin(one)  # nothing is known yet
    assert (proc / "self/clear_refs").read_text() == "5"
    process(proc / "self", 110, 180)  # 10 are kept by an allocator
    footprint.end(one)
    assert footprint.expected(one) == ((80 - 10) * MIB, one)
    footprint.begin(two)
    process(proc / "self", 120, 260)
    footprint.end(two)
    assert footprint.expected(eight) == ((4 * (150 + 10) - 20) * MIB, two)
    with pytest.raises(Failure) as caught:
        footprint.begin(eight)
    assert str(caught.value) == (
        "canaries.a.sweep: batch 8, by what batch 2 took, needs 620 MiB; 536 MiB are left of the container's limit of "
        "1000 MiB, less 64 MiB in reserve; name fewer or smaller loads, or grant more memory"
    )
    footprint.end(eight)  # it was not run, so that nothing is learned
    assert footprint.expected(eight) == (620 * MIB, two)
    (root / "memory.current").write_text(str(300 * MIB))
    footprint.begin(eight)


def test_in_a_servers_process_the_peak_is_not_reset(tmp_path: Path) -> None:
    root, proc = container(tmp_path, 1000, 400)
    footprint = Footprint("a", Room(None, root, proc), proc / "self")
    footprint.is_guest = True
    process(proc / "self", 100, 300)
    footprint.begin(Load(1, 1))
    footprint.end(Load(1, 1))
    assert (proc / "self/clear_refs").read_text() == ""
    assert footprint.expected(Load(1, 4)) == (800 * MIB, Load(1, 1))


def test_in_a_servers_process_a_point_is_given_up_where_the_server_takes_what_was_left(
    tmp_path: Path,
) -> None:
    root, proc = container(tmp_path, 1000, 400)
    target, sweep = Taking(root), Sweep(batches=(1,), seconds=30)
    canary = Canary("a", target, tally := Tally(), 30, 300)
    canary.open(300)
    openings = Openings(Room(None, root, proc), {})
    sweeping = Sweeping(canary, target, sweep, 1e-6, 30.0, tally, openings=openings)
    sweeping.be_a_guest()
    sweeping.step(sweeping.next_at + 1)
    [(load, missing)] = sweeping._too_much.items()
    assert (load, missing.reason, missing.was_tried) == (Load(1, 1), "out_of_memory", False)
    assert missing.detail == (
        "canaries.a.sweep: batch 1 was given up, with nothing left of the container's limit of 1000 MiB but the 64 MiB "
        "in reserve; name fewer or smaller loads, or grant more memory"
    )


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 8)), min_size=1, max_size=6),
    st.integers(0, 1 << 40),
)
def test_a_larger_load_is_never_expected_to_take_less(points: list[tuple[int, int]], each: int) -> None:
    footprint = Footprint("a", None)
    footprint._took = {Load(b, c): each * b * c for b, c in points}
    for load in footprint._took:
        known, more = footprint.expected(load), footprint.expected(Load(load.batch * 2, load.concurrency))
        assert (
            known is not None
            and more is not None
            and more[0] >= known[0] >= each * load.batch * load.concurrency
        )


class Growing(Target):
    """Takes 40 MiB for each sample; its own inputs hold one."""

    clock = HostClock()

    def __init__(self, batch: int = 1) -> None:
        self._batch = batch

    def copy_with_batch(self, batch: int) -> Growing:
        return Growing(batch)

    def open(self) -> None:
        pass

    def run(self, phase: Any) -> int:
        return len(b"\1" * (self._batch * 40 * MIB))

    def values(self, result: int) -> list[float]:
        return [1.0]

    def environment(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


class Taking(Growing):
    """While it is swept its server takes more and more."""

    def __init__(self, root: Path, is_swept: bool = False) -> None:
        self._root, self._is_swept, self._used = root, is_swept, 400

    def copy_with_batch(self, batch: int) -> Growing:
        return Taking(self._root, True)

    def run(self, phase: Any) -> int:
        if self._is_swept:
            self._used += 10
            (self._root / "memory.current").write_text(str(self._used * MIB))
            time.sleep(0.01)
        return 0


def test_a_sweep_stops_before_the_point_that_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Real memory, and the room of a control group made by hand: 436 MiB."""
    root, proc = container(tmp_path, 1000, 500)
    tally, target = Tally(), Growing()
    canary = Canary("a", target, tally, 30, 300)
    canary.open(300)
    room = Room(None, root, proc)
    sweep = Sweep(batches=(1, 2, 64, 128), seconds=8)
    sweeping = Sweeping(canary, target, sweep, 1e-6, 30.0, tally, openings=Openings(room, {}))

    def swept() -> dict[tuple[str, ...], Any]:
        for _ in sweep.batches:
            sweeping.step(sweeping.next_at + 1)
        return points(tally, LATENCY)

    assert set(swept()) == {("a", "1", "1"), ("a", "2", "1")}
    [line, *_] = (record.getMessage() for record in caplog.records if "sweep of" in record.getMessage())
    assert (
        "sweep of batch 64: out_of_memory: canaries.a.sweep: batch 64, by what batch 2 took, needs " in line
    )
    assert set(sweeping._too_much) == {Load(64, 1), Load(128, 1)}
    sweeping._begin(0.0)
    assert not sweeping._too_much  # with room they are asked for again
