"""What opening a canary takes of the host's memory and of its device's: asked for by what is known of it, measured, and
remembered.

In a process of the probe's own it is watched, and the process starts anew where too little is left; what it knows goes
along. In a server's process, which cannot, an opening is interrupted, and what each canary took is kept in a file
beside the journal.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from infercanary.probe.anew import Carried, Ended, start_anew
from infercanary.probe.device_room import DeviceRoom
from infercanary.probe.footprint import RoundFootprint
from infercanary.probe.room import Room
from infercanary.probe.targets import (
    Failure,
    Need,
    Target,
)
from infercanary.probe.watcher import Growth, Watcher

log = logging.getLogger("infercanary.probe")


_MARGIN = 1.25  # of what it had taken when it was ended: it wanted more
_DAY = 86400.0
_FIX = "take a smaller model or input"


class _Known(msgspec.Struct, frozen=True):
    """What a canary took, in the file."""

    of: str
    """The kind of target, and what it asked for first: of another model that is mostly another text."""
    took: int
    took_on_device: int = 0


class Openings:
    """One :class:`Opening` for each canary.

    Args:
        room: Asked before anything is taken.
        targets: Canary → its target, before it is opened.
        journal: The file beside which a guest keeps what canaries took; None to keep nothing.
        device_room: Asked before anything is taken on a device; None for one with the default reserve.
    """

    def __init__(
        self,
        room: Room,
        targets: Mapping[str, Target],
        journal: str | os.PathLike[str] | None = None,
        device_room: DeviceRoom | None = None,
    ) -> None:
        self.room = room
        self.device_room = device_room or DeviceRoom()
        self.watcher = Watcher(room)
        self.rounds = RoundFootprint(room)
        self.ended: dict[str, Ended] = {}
        """Canary → how its work was ended last, within a day or so."""
        self.took: dict[str, int] = {}
        """Canary → bytes, as the process before found them."""
        self.on_device: dict[str, int] = {}
        """The same of its device."""
        self._points: list[Ended] = []
        self._file = None if journal is None else Path(f"{os.fspath(journal)}.memory")
        self._is_guest = False
        self._writing = threading.Lock()
        self.of = {name: Opening(name, target, self) for name, target in targets.items()}
        """Canary → its opening."""

    def be_a_guest(self) -> None:
        """Run in a server's process: only openings are watched, and what was taken is kept in the file."""
        self._is_guest = self.rounds.is_guest = self.watcher.is_guest = True

    def watch(self, carried: Carried, running_since: Callable[[], float | None]) -> Sequence[Ended]:
        """Watch, in a process of the probe's own.

        Args:
            carried: From the process before.
            running_since: See :meth:`Watcher.start`.

        Returns:
            Points of sweeps that are not to be tried again.
        """
        self.ended = {each.canary: each for each in carried.ended if each.load is None}
        self._points = [each for each in carried.ended if each.load is not None]
        self.took = dict(carried.took)
        self.watcher.start(self._start_anew, running_since)
        return self._points

    @property
    def is_bound(self) -> bool:
        """Whether engines get a limit on the device memory that they take: where they serve nobody else."""
        return not self._is_guest

    def known(self, of: str, canary: str) -> list[Need]:
        """What opening it took before.

        Args:
            of: The target, as it is to be found in a guest's file.
            canary: Its name.

        Returns:
            Of the host, and of the device; none where nothing is known.
        """
        what, took = "opening it, by what it took before,", self.took.get(canary)
        on_device = self.on_device.get(canary, 0)
        if self._is_guest and self._file is not None:
            found = self._read().get(canary)
            took = found.took if found is not None and found.of == of else None
            on_device = found.took_on_device if found is not None else 0
            what = f"opening it, by what it took before ({self._file.name}, to be removed if that is no longer so),"
        elif self._is_guest:
            took = None
        if took is None:
            return []
        need = Need("target", took, what, _FIX)
        return [need, need._replace(size=on_device, where="device")]

    def keep(self, of: str, canary: str, took: int, on_device: int = 0) -> None:
        """Keep what opening it took.

        Args:
            of: As of :meth:`known`.
            canary: Its name.
            took: Bytes of the host.
            on_device: Bytes of its device.
        """
        self.watcher.held[canary] = self.took[canary] = took
        self.on_device[canary] = on_device
        if (ended := self.ended.get(canary)) is not None:
            self.ended[canary] = msgspec.structs.replace(ended, is_over=True)
        if not self._is_guest or self._file is None:
            return
        with self._writing, suppress(OSError):  # the disk is full, or gone: nothing is known next time
            found = self._read() | {canary: _Known(of, took, on_device)}
            draft = self._file.with_name(f"{self._file.name}.new")
            draft.write_bytes(msgspec.json.encode(found))
            os.replace(draft, self._file)

    def _read(self) -> dict[str, _Known]:
        with suppress(OSError, msgspec.MsgspecError):
            if self._file is not None:
                return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Known])
        return {}

    def _start_anew(self, works: Sequence[tuple[str, tuple[int, int] | None, int, str]]) -> None:
        points = list(self._points)
        for canary, load, took, why in works:
            if load is None:
                self._end(canary, took, why)
            else:
                points.append(Ended(canary, load, took, why, time.monotonic()))
        start_anew(Carried((*self.ended.values(), *points), {**self.took, **self.watcher.held}))

    def interrupted(self, growth: Growth) -> None:
        """Keep how an opening was interrupted, so that it is tried again seldom, and where there is room.

        Args:
            growth: What it took.
        """
        self._end(growth.canary, growth.took, growth.interrupted)

    def _end(self, canary: str, took: int, why: str) -> None:
        before, now = self.ended.get(canary), time.monotonic()
        times = before.times + 1 if before is not None and now - before.at < _DAY else 1
        self.ended = {**self.ended, canary: Ended(canary, None, took, why, now, times)}


class Opening:
    """Around the opening of one canary, until its warm-up is over: ``with opening as watched, watched: target.open()``.

    Args:
        canary: Its name.
        target: Set up to ask for what it is about to take.
        openings: Those of all canaries.
    """

    def __init__(self, canary: str, target: Target, openings: Openings) -> None:
        self._canary = canary
        self._openings = openings
        self._kind = f"{type(target).__module__}.{target.kind}"
        self._of = self._kind  # until the target asks
        self._stack = ExitStack()
        self._growth: Growth | None = None
        device = str(target.device)
        self._device = device if device.startswith("cuda") else ""
        self._used: int | None = None  # of the device, before
        target.ask_for_memory = self.ask
        target.device_memory_left = self.device_memory_left

    def ask(self, needs: Sequence[Need]) -> None:
        """Refuse what does not fit, by its size and by what the canary took before.

        Args:
            needs: What the target is about to take.

        Raises:
            Failure: `out_of_memory`.
        """
        if self._growth is not None and self._of == self._kind:
            self._check(" ".join([self._kind, *(f"{need.place}={need.size}" for need in needs)]))
        self._require(needs, self._openings.device_room.first)

    def device_memory_left(self) -> int | None:
        """Say how much the target may take of its device.

        Returns:
            Bytes; None where nothing bounds it, or it is not known.
        """
        if not self._device or not self._openings.is_bound:
            return None
        room = self._openings.device_room.left(self._device)
        return None if room is None else room.size

    def __enter__(self) -> AbstractContextManager[object]:
        """Refuse what does not fit.

        Returns:
            What may interrupt the work, to be entered after this: an interruption that hits its end is taken here.

        Raises:
            Failure: `out_of_memory`.
        """
        self._refuse_what_was_ended()
        self._openings.watcher.held.pop(self._canary, None)
        self._check(self._kind)
        self._used = self._openings.device_room.used(self._device) if self._device else None
        self._growth = self._stack.enter_context(self._openings.watcher.growing(self._canary))
        return self._openings.watcher.interrupting(self._growth)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        growth, self._growth = self._growth, None
        self._stack.close()
        if growth is not None and growth.interrupted:
            self._openings.interrupted(growth)
            raise Failure("out_of_memory", growth.interrupted) from None
        if error is None and growth is not None:
            more = 0
            if self._used is not None:
                more = max(0, (self._openings.device_room.used(self._device) or 0) - self._used)
            self._openings.keep(self._of, self._canary, growth.took, more)

    def _check(self, of: str) -> None:
        """By what the same took before."""
        self._of = of
        self._require(self._openings.known(of, self._canary))

    def _require(self, needs: Sequence[Need], first: Callable[[str], list[Need]] = lambda _: []) -> None:
        """Refuse what does not fit, each where it is taken; on a device with what ``first`` says of it."""
        self._openings.room.require(self._canary, [need for need in needs if need.where == "host"])
        if self._device and (there := [need for need in needs if need.where == "device"]):
            self._openings.device_room.require(self._canary, self._device, [*first(self._device), *there])

    def _refuse_what_was_ended(self) -> None:
        ended = self._openings.ended.get(self._canary)
        if ended is None or ended.is_over:
            return
        since = time.monotonic() - ended.at
        room = self._openings.room.left()
        there_is = room is not None and room.size >= _MARGIN * ended.took
        if since < ended.rest or (since < ended.pause and not there_is):
            raise Failure("out_of_memory", ended.why)
        # Else it is tried again, watched as before; what it took must not refuse it.
        self._openings.took.pop(self._canary, None)
        self._openings.on_device.pop(self._canary, None)
