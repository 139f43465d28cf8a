"""What is left of a device's memory, what is refused by it, and what sweeps learn of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infercanary.probe.device_room import (
    CONTEXT,
    CONTROLS,
    LEAST_RESERVE,
    RESERVE_SHARE,
    DeviceRoom,
)
from infercanary.probe.footprint import DeviceFootprint
from infercanary.probe.load import Load
from infercanary.probe.openings import Openings
from infercanary.probe.room import Room
from infercanary.probe.targets import DeviceMemory, Failure, Need, Target
from infercanary.probe.targets.controls import cuda
from infercanary.probe.timing import HostClock

GIB, MIB = 1 << 30, 1 << 20


class Gpu:
    """As NVML says it."""

    def __init__(self, used: int, total: int = 80 * GIB) -> None:
        self.used, self.total = used, total

    def __call__(self, ordinal: int) -> tuple[int, int] | None:
        return (self.used, self.total) if ordinal == 1 else None


def need(size: int) -> Need:
    return Need("model", size, "its file", "take a smaller model", "device")


@pytest.mark.parametrize(
    ("total", "reserve", "kept"),
    [(80 * GIB, None, int(RESERVE_SHARE * 80 * GIB)), (4 * GIB, None, LEAST_RESERVE), (80 * GIB, 7, 7)],
)
def test_what_is_left(total: int, reserve: int | None, kept: int) -> None:
    room = DeviceRoom(reserve, Gpu(GIB, total))
    left = room.left("cuda:1")
    assert left is not None and (left.size, left.reserve) == (total - GIB - kept, kept)


def test_where_it_is_not_known_nothing_is_refused() -> None:
    room = DeviceRoom(None, Gpu(80 * GIB))
    room.require("a", "cuda", [need(1 << 60)])
    assert room.left("cuda:0") is None and room.used("cuda") is None


def test_what_does_not_fit_is_one_line() -> None:
    gpu = Gpu(78 * GIB)
    room = DeviceRoom(None, gpu)
    room.require("a", "cuda:1", [need(400 * MIB)])
    with pytest.raises(Failure) as caught:
        room.require("a", "cuda:1", [need(300 * MIB), need(200 * MIB)])
    assert caught.value.reason == "out_of_memory"
    assert str(caught.value) == (
        "canaries.a.model: its file needs 300 MiB, 500 MiB with the others; 410 MiB are left of the 80.00 GiB of "
        "cuda:1, less 1.60 GiB in reserve; take a smaller model, or free device memory"
    )
    room.require("a", "cuda:1", [])


def test_the_controls_take_no_more_than_is_asked_for_them() -> None:
    assert 2 * cuda._COPY_BYTES + cuda._TRANSFER_BYTES <= CONTROLS - 4 * MIB


class Canned(Target):
    """On a GPU of the stand-in; it takes ``takes`` bytes of it, and asks for what it knows."""

    clock = HostClock()
    device = "cuda:1"

    def __init__(self, gpu: Gpu, knows: int, takes: int) -> None:
        self._gpu, self._knows, self._takes = gpu, knows, takes

    def open(self) -> None:
        self.ask_for_memory([need(self._knows)._replace(where="host"), need(self._knows)])
        self._gpu.used += self._takes

    def run(self, phase: Any) -> None: ...

    def values(self, result: Any) -> list[float]:
        return []

    def environment(self) -> dict[str, str]:
        return {}

    def close(self) -> None: ...


def openings(target: Target, gpu: Gpu, journal: Path | None = None, is_guest: bool = False) -> Openings:
    made = Openings(Room(), {"a": target}, journal, DeviceRoom(None, gpu))
    if is_guest:
        made.be_a_guest()
    return made


def test_what_it_takes_is_known_and_a_process_of_its_own_is_bound() -> None:
    gpu = Gpu(10 * GIB)
    target = Canned(gpu, MIB, 3 * GIB)
    of = openings(target, gpu)
    with of.of["a"]:
        target.open()
    assert of.on_device == {"a": 3 * GIB}
    left = 80 * GIB - 13 * GIB - int(RESERVE_SHARE * 80 * GIB)
    assert target.device_memory_left() == left
    of.be_a_guest()
    assert target.device_memory_left() is None, "a server's allocator serves the server"


def test_a_context_is_asked_for_with_the_rest() -> None:
    """There is no driver here, so that no process has one."""
    gpu = Gpu(80 * GIB - int(RESERVE_SHARE * 80 * GIB) - CONTEXT - CONTROLS - 2 * MIB)
    target = Canned(gpu, 2 * MIB, 0)
    of = openings(target, gpu)
    with of.of["a"]:
        target.open()
    gpu.used += 1
    with (
        pytest.raises(Failure, match=r"^canaries\.a\.device: a CUDA context, with the controls, needs"),
        of.of["a"],
    ):
        target.open()


def test_in_a_servers_process_it_is_asked_for_what_it_took_before(tmp_path: Path) -> None:
    gpu = Gpu(10 * GIB)
    target = Canned(gpu, MIB, 30 * GIB)
    with openings(target, gpu, tmp_path / "journal", is_guest=True).of["a"]:
        target.open()
    assert gpu.used == 40 * GIB
    gpu.used = 60 * GIB  # the server has grown
    with pytest.raises(Failure) as caught, openings(target, gpu, tmp_path / "journal", is_guest=True).of["a"]:
        target.open()
    assert str(caught.value).startswith(
        "canaries.a.target: opening it, by what it took before (journal.memory, to be removed if that is no longer "
        "so), needs 30.00 GiB; 18.40 GiB are left of the 80.00 GiB of cuda:1"
    )
    assert gpu.used == 60 * GIB


class Counting(Canned):
    """Its engine counts."""

    in_use = 2 * GIB

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self.in_use, self.in_use)


def test_a_load_is_refused_by_what_a_smaller_one_took() -> None:
    gpu = Gpu(70 * GIB)
    footprint = DeviceFootprint("a", "cuda:1", Counting(gpu, 0, 0), DeviceRoom(None, gpu))
    one, two, eight = Load(1, 1), Load(2, 1), Load(8, 1)
    footprint.begin(eight)  # nothing is known yet
    footprint.begin(one)
    footprint.end(one, 3 * GIB)
    footprint.begin(two)
    footprint.end(two, 5 * GIB)
    with pytest.raises(Failure) as caught:
        footprint.begin(eight)
    assert str(caught.value).startswith(
        "canaries.a.sweep: batch 8, by what batch 2 took, needs 12.00 GiB; 8.40 GiB are left of the 80.00 GiB of cuda:1"
    )
    footprint.end(eight, 0)  # it was not run, so that nothing is learned
    gpu.used = 60 * GIB
    footprint.begin(eight)
    footprint.end(eight, None)
    assert footprint._took == {one: GIB, two: 3 * GIB}
