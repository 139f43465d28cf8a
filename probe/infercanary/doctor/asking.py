"""Runs the checks one after the other in a separate process. If a driver hangs, the process is killed."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import perf_counter

import msgspec

from infercanary.command.interpreter import run_module
from infercanary.doctor.ability import Ability, Check, Machine, refused

_START_SECONDS = 60.0  # time for starting Python and importing all checks on a busy machine
_MOST_LOST = 2
"""After this number of hung or crashed checks, skip the rest of the section: calls to one driver wait for each
other, so more checks would probably hang.
"""


class NotAsked(Exception):
    """The process for the checks does not start, so no check can run."""


class _Answering:
    """Process that runs checks on request."""

    def __init__(self, machine: Machine) -> None:
        self.has_ended = False
        self._connection, theirs = multiprocessing.Pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with this module
                run_module("infercanary.doctor.answering", str(theirs.fileno())),
                stdout=subprocess.DEVNULL,  # hide messages of libraries
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            raise NotAsked(f"no process can be started ({error.strerror})") from None
        finally:
            theirs.close()
        self._connection.send(machine)
        ready = self._answer(_START_SECONDS)
        if self.has_ended:
            raise NotAsked(ready.why)

    def ask(self, check: Check) -> Ability:
        """Return the answer of a check. If the check hangs or crashes, return a refusal, and end its process."""
        with suppress(BrokenPipeError):  # the process crashed after its last answer
            self._connection.send(check)
        return self._answer(check.seconds)

    def _answer(self, seconds: float) -> Ability:
        if not self._connection.poll(seconds):
            self.end()
            return refused(
                f"no answer within {seconds:g} s: the driver or the kernel hangs",
                "see the kernel's log; a probe skips hanging calls, and reports them in its metrics",
            )
        try:
            answer: Ability = self._connection.recv()
        except (EOFError, ConnectionResetError):
            status = self._process.wait()
            self.end()
            name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            return refused(f"the process of the check ended ({name}): a library crashed")
        return answer

    def end(self) -> None:
        """Kill the process. Wait at most a second for its end, because a process that hangs in the kernel does not
        end.
        """
        self.has_ended = True
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        self._connection.close()


def ask(table: Iterable[Check], machine: Machine) -> Iterator[Ability]:
    """Run the checks, and yield each answer as soon as it arrives.

    Raises:
        NotAsked: The process for the checks does not start.
    """
    usable: set[tuple[str, str]] = set()
    lost: Counter[str] = Counter()
    answering: _Answering | None = None
    try:
        for check in table:
            if check.needs and (check.section, check.needs) not in usable:
                continue
            seconds = None
            if lost[check.section] == _MOST_LOST:
                answer = refused(f"skipped: {_MOST_LOST} checks of this section hung or crashed")
            else:
                if answering is None or answering.has_ended:
                    answering = _Answering(machine)
                begin = perf_counter()
                answer = answering.ask(check)
                if answering.has_ended:
                    lost[check.section] += 1
                else:
                    seconds = perf_counter() - begin
            if answer.state in ("OK", "limited"):
                usable.add((check.section, check.name))
            yield msgspec.structs.replace(answer, section=check.section, name=check.name, seconds=seconds)
    finally:
        if answering is not None and not answering.has_ended:
            answering.end()
