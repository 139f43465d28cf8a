"""A process of the probe's own that starts anew: all that it took is given back, and its pid stays.

What must outlive that (whose work was ended, and what each canary took) goes along in the environment.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

VARIABLE = "INFERCANARY_ENDED_FOR_MEMORY"

_FIRST_PAUSE, _LONGEST_PAUSE = 3600.0, 86400.0
_GROWTH = 4  # of the pause, with each time that the same work was ended
_LOOK = 60  # a pause has so many parts; after the first of them it is looked whether there is room
_FAULT = 1
_SCORE = "1000"  # the highest


class Ended(msgspec.Struct, frozen=True):
    """Work that was ended before memory ran out."""

    canary: str
    load: tuple[int, int] | None
    """Batch and concurrency of a sweep's point; None where it was the canary itself."""
    took: int
    """Bytes by then."""
    why: str
    at: float
    """By the kernel's monotonic clock, which goes on where the process starts anew."""
    times: int = 1
    is_over: bool = False
    """Whether the canary was opened since."""

    @property
    def pause(self) -> float:
        """Seconds until it is tried again where there is no room by then."""
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * float(_GROWTH ** (self.times - 1)))

    @property
    def rest(self) -> float:
        """Seconds in which it is not even looked whether there is room."""
        return self.pause / _LOOK


class Carried(msgspec.Struct, frozen=True):
    """What goes along."""

    ended: tuple[Ended, ...] = ()
    took: dict[str, int] = {}
    """Canary → bytes that opening it took."""


def carried() -> Carried:
    """Take what the process before left in the environment, which then has it no more.

    Returns:
        It; empty where this process did not start anew.
    """
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(os.environ.pop(VARIABLE, "{}"), type=Carried)
    return Carried()


def start_anew(left: Carried) -> NoReturn:
    """Replace this process by one of the same command; it does not return.

    Callable from any thread, which needs nothing but the interpreter's lock: no other lock is taken, and nothing is
    logged; the new process says what happened. Where that fails, the process ends.

    Args:
        left: For the new process.
    """
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # a library may have opened some without O_CLOEXEC
            with suppress(OSError):
                if int(name) > 2:
                    os.set_inheritable(int(name), False)
    environment = {**os.environ, VARIABLE: msgspec.json.encode(left).decode()}
    try:
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606
    finally:
        os._exit(_FAULT)


def be_ended_first() -> OSError | None:
    """Where the kernel ends a process for memory, let it be this one, and not the server beside it.

    A process may raise its own score without any right: proc_pid_oom_score_adj(5).

    Returns:
        Why that failed, if it did.
    """
    try:
        Path("/proc/self/oom_score_adj").write_text(_SCORE)
    except OSError as error:
        return error
    return None
