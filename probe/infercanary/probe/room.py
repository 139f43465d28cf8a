"""How much host memory this process may still take, and the refusal of what is known not to fit, before it is taken.

The process may share its container with a server: where memory runs out, the kernel may end that one. It is read where
something is about to be opened and once before a round, never within a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup.hierarchy import own_cgroup
from infercanary.probe.shortage import machine, readable
from infercanary.probe.targets import Failure, Need

LEAST_RESERVE = 64 << 20
RESERVE_SHARE = 0.05
_SHARE_BESIDE_ROUNDS = 8  # of a small limit: a probe that is alone in 128 MiB runs

_PATH = 40  # characters
_ROOT, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


class Bound(NamedTuple):
    """A limit on this process's memory. In bytes."""

    whose: str
    """In words, with the limit: ``the container's limit of 300 MiB``."""
    limit: int
    used: int
    """By all that it binds, without what the kernel gives back without effort."""
    cached: int = 0
    """Of it, page cache in use: the kernel gives that back, too, before it ends a process."""


class Left(NamedTuple):
    """What may still be taken, by the bound that leaves least. In bytes."""

    size: int
    """After the reserve; 0 at least."""
    reserve: int
    whose: str
    """As of the :class:`Bound`."""


def left(
    bounds: Iterable[Bound],
    reserve: int | None = None,
    least: int = LEAST_RESERVE,
    share: float = RESERVE_SHARE,
) -> Left | None:
    """Find the bound that leaves least.

    Args:
        bounds: In any order; of two that leave as much the first counts.
        reserve: Bytes that are never taken; by default ``least`` or, if that is more, ``share`` of the limit.
        least: Bytes.
        share: Of the limit, from 0 to 1.

    Returns:
        What it leaves; None where there is no bound.
    """
    found: Left | None = None
    for bound in bounds:
        kept = max(least, int(share * bound.limit)) if reserve is None else reserve
        size = max(0, bound.limit - max(0, bound.used) - kept)
        if found is None or size < found.size:
            found = Left(size, kept, bound.whose)
    return found


def bounds(root: Path = _ROOT, proc: Path = _PROC) -> list[Bound]:
    """Read what binds this process: its control group, those above it as far as they are visible, and the host.

    Args:
        root: Where cgroups are mounted.
        proc: Where procfs is mounted.

    Returns:
        The own control group first, the host last; empty where nothing can be read.
    """
    found = []
    with suppress(Unavailable):
        for group in own_cgroup(root, proc / "self").memory_limits():
            whose = (
                f"the limit of {readable(group.limit)} of the control group {_tail(group.above)}"
                if group.above
                else f"the container's limit of {readable(group.limit)}"
            )
            found.append(Bound(whose, group.limit, group.used - group.inactive, group.active))
    if (host := machine(proc)) is not None:
        used, total = host
        found.append(Bound(f"the host's {readable(total)}", total, used))
    return found


class Room:
    """Says what is left, and refuses what does not fit.

    Args:
        reserve: Bytes that are never taken; None for the default of :func:`left`.
        root: Where cgroups are mounted.
        proc: Where procfs is mounted.
    """

    def __init__(self, reserve: int | None = None, root: Path = _ROOT, proc: Path = _PROC) -> None:
        self._reserve = reserve
        self._root = root
        self._proc = proc

    def left(self) -> Left | None:
        """Read what may still be taken; callable from any thread.

        Returns:
            It; None where it is not known.
        """
        return left(bounds(self._root, self._proc), self._reserve)

    def look(self) -> tuple[Left, Left] | None:
        """Read what may still be taken, and what is left until the last 64 MiB, or the reserve where that is less.

        Returns:
            Both; None where it is not known.
        """
        found = bounds(self._root, self._proc)
        room = left(found, self._reserve)
        last = left(found, LEAST_RESERVE if self._reserve is None else min(self._reserve, LEAST_RESERVE))
        return None if room is None or last is None else (room, last)

    def beside_a_round(self) -> Left | None:
        """Read what a round may take for a moment: all but the last 64 MiB, or the reserve where that is less, or an
        eighth of the limit where that is least. A container whose limit is filled by page cache has room.

        Returns:
            It; None where it is not known.
        """
        found = bounds(self._root, self._proc)
        kept = min([LEAST_RESERVE, *(bound.limit // _SHARE_BESIDE_ROUNDS for bound in found)])
        pressed = [bound._replace(used=bound.used - bound.cached) for bound in found]
        return left(pressed, kept if self._reserve is None else min(self._reserve, kept))

    def require(self, canary: str, needs: Sequence[Need]) -> None:
        """Refuse what does not fit together.

        Args:
            canary: Whose needs they are.
            needs: What is about to be taken, all of it.

        Raises:
            Failure: `out_of_memory`, in a line that names the place in the settings, and whose limit it is.
        """
        if (room := self.left()) is not None and (why := refusal(canary, needs, room)):
            raise Failure("out_of_memory", why)


def refusal(canary: str, needs: Sequence[Need], room: Left, more: str = "grant more memory") -> str:
    """Say why needs do not fit.

    Args:
        canary: Whose they are.
        needs: All that is about to be taken.
        room: What is left.
        more: The fix beside that of the largest need.

    Returns:
        A line; empty where they fit.
    """
    total = sum(need.size for need in needs)
    if not needs or total <= room.size:
        return ""
    largest = max(needs, key=lambda need: need.size)
    together = f", {readable(total)} with the others" if total > largest.size else ""
    return (
        f"canaries.{canary}.{largest.place}: {largest.what} needs {readable(largest.size)}{together}; "
        f"{readable(room.size)} are left of {room.whose}, less {readable(room.reserve)} in reserve; "
        f"{largest.fix}, or {more}"
    )


def _tail(path: str) -> str:
    """The end of a path; an orchestrator's are longer than a label may be."""
    return path if len(path) <= _PATH else f"…{path[1 - _PATH :]}"
