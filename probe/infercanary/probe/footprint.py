"""What rounds and the points of a sweep took of memory, and what the next will need by that, before it is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from time import perf_counter

from infercanary.probe.device_room import DeviceRoom
from infercanary.probe.load import Load
from infercanary.probe.measures import peak, reset_peak, resident
from infercanary.probe.room import Room
from infercanary.probe.shortage import readable
from infercanary.probe.targets import Failure, Need, Target
from infercanary.probe.watcher import Growth, Watcher

_PROC = Path("/proc/self")
_FIX = "name fewer or smaller loads"
_ROUNDS = 10  # of which the largest tells what the next one takes
_FIRST_ROUND = 32 << 20  # it opens the controls, whose buffers have 18 MiB
_LEAST_ROUND = 8 << 20


class RoundFootprint:
    """Keeps what the last rounds took for a moment, and says when the next would not fit.

    Engines allocate outputs anew, and each thread that runs has a heap of its own, so that a round takes more than it
    leaves. In a process of the probe's own the kernel counts its peak anew. In a server's it does not: a peak is known
    there where it is the process's highest so far, and else only what is resident right after each run.

    Args:
        room: Asked before a round.
        proc: The process's folder in ``/proc``.
    """

    def __init__(self, room: Room, proc: Path = _PROC) -> None:
        self.is_guest = False
        """Whether the process is a server's, whose peak is not reset."""
        self.seconds = 0.0
        """What the last look at what is left took."""
        self._room = room
        self._proc = proc
        self._took = deque([_FIRST_ROUND], maxlen=_ROUNDS)
        self._growth = Growth("", proc=proc)
        self._size = 0  # of the round under way

    def lacks(self, beside: int = 0) -> str:
        """Say why there is no room for a round. After each such answer less is asked for, down to 8 MiB: what a round
        took is forgotten with time, since the server may have taken it.

        Args:
            beside: Bytes that are taken in it besides.

        Returns:
            A line; empty where there is room, or it is not known.
        """
        begin = perf_counter()
        room = self._room.beside_a_round()
        self.seconds = perf_counter() - begin
        need = max(_LEAST_ROUND, *self._took) + beside
        if room is None or room.size >= need:
            return ""
        self._took.append(0)
        return (
            f"runs are put off: they take up to {readable(need)} for a moment; {readable(room.size)} are left of "
            f"{room.whose}, less {readable(room.reserve)} in reserve; grant more memory"
        )

    def begin(self) -> None:
        """Begin a round."""
        if not self.is_guest:
            with suppress(OSError):  # a kernel without CONFIG_PROC_PAGE_MONITOR
                reset_peak(self._proc)
        self._growth, self._size = Growth("", proc=self._proc), 0

    def look(self) -> None:
        """Read what the round has taken; called after each of its runs, since the next counts the peak anew."""
        self._size = self._growth.took

    def end(self) -> None:
        """Keep what the round took, where it had a run."""
        if self._size:
            self._took.append(self._size)


class Footprint:
    """Keeps what each load took, and refuses one that would not fit.

    A load is taken to need memory in proportion to its samples: inputs, outputs and what is between grow with them, and
    what does not grow is counted too often. In a process of the probe's own the kernel counts each point's peak anew.
    In a server's it does not: a point took no more than the process's peak since its start, above what it had before.

    Args:
        canary: The one that is swept.
        room: Asked before a point; None asks nobody.
        watcher: Looks on while a point runs; None for nobody.
        proc: The process's folder in ``/proc``.
    """

    def __init__(
        self, canary: str, room: Room | None, proc: Path = _PROC, watcher: Watcher | None = None
    ) -> None:
        self.is_guest = False
        """Whether the process is a server's, whose peak is not reset."""
        self._canary = canary
        self._room = room
        self._watcher = watcher
        self._proc = proc
        self._took: dict[Load, int] = {}
        self._kept = 0  # by allocators, of what points took
        self._before: int | None = None

    def begin(self, load: Load) -> AbstractContextManager[object]:
        """Begin a point, if it fits by what smaller ones took; without one that was run, nothing is known.

        Args:
            load: What is about to be run.

        Returns:
            What is around it.

        Raises:
            Failure: `out_of_memory`.
        """
        self._before = None
        if self._room is None:
            return nullcontext()
        if (known := self.expected(load)) is not None:
            size, smaller = known
            self._room.require(self._canary, [_need(load, smaller, size)])
        with suppress(OSError, ValueError, IndexError):
            if not self.is_guest:
                reset_peak(self._proc)
            self._before = resident(self._proc)
        return nullcontext() if self._watcher is None else self._watcher.growing(self._canary, load)

    def look(self, load: Load) -> None:
        """In a server's process, where no watcher looks, give a point up once nothing but the reserve is left.

        Args:
            load: What is run.

        Raises:
            Failure: `out_of_memory`.
        """
        if not self.is_guest or self._room is None or (room := self._room.left()) is None or room.size > 0:
            return
        raise Failure(
            "out_of_memory",
            f"canaries.{self._canary}.sweep: {load.words} was given up, with nothing left of {room.whose} but the "
            f"{readable(room.reserve)} in reserve; {_FIX}, or grant more memory",
        )

    def end(self, load: Load) -> None:
        """Keep what a point took; not called for one that gave no numbers.

        Args:
            load: What was run.
        """
        if self._before is None:
            return
        with suppress(OSError, ValueError, IndexError):
            took = max(0, peak(self._proc) - self._before) + self._kept
            self._took[load] = max(took, self._took.get(load, 0))
            if not self.is_guest:
                more = max(0, resident(self._proc) - self._before)
                self._kept = min(self._kept + more, max(self._took.values()))

    def expected(self, load: Load) -> tuple[int, Load] | None:
        """Scale what the largest point took that was no larger.

        Args:
            load: Any.

        Returns:
            Bytes that it will take beside what is kept already, and the point that says it; None where there is none.
        """
        if (found := _scaled(self._took, load)) is None:
            return None
        took, largest = found
        return max(0, took - self._kept), largest


class DeviceFootprint:
    """The same of the device's memory, where the engine counts it: its peak in a point, above what it had before.

    Args:
        canary: The one that is swept.
        device: Where it runs.
        target: The canary's.
        room: Asked before a point.
    """

    def __init__(self, canary: str, device: str, target: Target, room: DeviceRoom) -> None:
        self._canary = canary
        self._device = device
        self._target = target
        self._room = room
        self._took: dict[Load, int] = {}
        self._before: int | None = None

    def begin(self, load: Load) -> None:
        """Begin a point, if it fits by what smaller ones took.

        Args:
            load: What is about to be run.

        Raises:
            Failure: `out_of_memory`.
        """
        self._before = None
        if self._device == "cpu":
            return
        if (known := _scaled(self._took, load)) is not None:
            took, smaller = known
            need = _need(load, smaller, took)._replace(where="device")
            self._room.require(self._canary, self._device, [need])
        with suppress(Exception):  # the target may be anyone's
            memory = self._target.memory()
            self._before = None if memory is None else memory.in_use

    def end(self, load: Load, peak_bytes: int | None) -> None:
        """Keep what a point took; not called for one that gave no numbers.

        Args:
            load: What was run.
            peak_bytes: The most that the engine had meanwhile; None where that is not known.
        """
        if self._before is not None and peak_bytes is not None:
            self._took[load] = max(peak_bytes - self._before, self._took.get(load, 0))


def _need(load: Load, smaller: Load, size: int) -> Need:
    what = load.words if smaller == load else f"{load.words}, by what {smaller.words} took,"
    return Need("sweep", size, what, _FIX)


def _scaled(took: Mapping[Load, int], load: Load) -> tuple[int, Load] | None:
    """Scale what the largest point took that was no larger; None where there is none."""
    smaller = [each for each in took if load.is_at_least(each)]
    if not smaller:
        return None
    largest = max(smaller, key=_samples)
    return -(-took[largest] * _samples(load) // _samples(largest)), largest


def _samples(load: Load) -> int:
    return load.batch * load.concurrency
