"""Asks for one check after the other, each within its deadline: where a driver hangs, its process is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from infercanary.command.interpreter import run_module
from infercanary.contract.text import printable
from infercanary.doctor.ability import USABLE, Ability, Check, Machine, refused

_START_SECONDS = 60.0  # for the interpreter and its imports, on a busy machine
_MOST_HANGS = 2
"""Checks of a section that may hang before the rest of it is left out: calls of one driver wait for each other."""


class NotAsked(Exception):
    """No check can be made, and why: this says nothing of the machine."""


class _Answering:
    """One process that makes checks."""

    def __init__(self, machine: Machine) -> None:
        self._read, write = os.pipe()
        given = msgspec.json.encode(machine, enc_hook=str).decode()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with this module
                run_module("infercanary.doctor.answering", str(write), given),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # libraries print
                stderr=subprocess.PIPE,  # until it is ready
                pass_fds=[write],
            )
        except OSError as error:
            os.close(self._read)
            raise NotAsked(f"no process can be started ({error.strerror})") from None
        finally:
            os.close(write)
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            if (ready := self._line(_START_SECONDS)) != b"\n":
                self.end()
                if ready is None:
                    raise NotAsked(f"their process was not ready within {_START_SECONDS:g} s")
                last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise NotAsked(
                    f"their process ended: {printable(last, 300, ' ') or self._process.returncode}"
                )

    def ask(self, each: Check) -> Ability | int | None:
        """The answer; the exit status where the process ended; None where it did not answer in time."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{each.section}\t{each.name}\n".encode())
            self._process.stdin.flush()
        if (text := self._line(each.seconds)) is None:
            return None
        return msgspec.json.decode(text, type=Ability) if text else self._process.wait()

    def _line(self, seconds: float) -> bytes | None:
        """The next line; empty where the process ended; None where none came in time."""
        until, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            if not (more := os.read(self._read, 1 << 16)):
                return b""
            text += more
        return text

    def end(self) -> None:
        """Kill it; one that hangs in the kernel is not waited for."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._read)


def ask(table: Sequence[Check], machine: Machine) -> Iterator[Ability]:
    """Make the checks.

    Args:
        table: All of them, in order.
        machine: Where they look.

    Yields:
        An answer for each check that was made, as soon as it is there.

    Raises:
        NotAsked: The process for them does not start.
    """
    states: dict[tuple[str, str], str] = {}
    hangs: dict[str, list[str]] = {}
    answering: _Answering | None = None
    try:
        for each in table:
            if each.needs and states.get((each.section, each.needs)) not in USABLE:
                continue
            hung = hangs.get(each.section, [])
            if len(hung) >= _MOST_HANGS:
                found = refused(f"not asked: {' and '.join(hung)} did not answer")
            else:
                answering = answering or _Answering(machine)
                answer = answering.ask(each)
                if not isinstance(answer, Ability):
                    answering.end()
                    answering = None
                if answer is None:
                    hangs[each.section] = [*hung, each.name]
                found = answer if isinstance(answer, Ability) else _lost(answer, each.seconds)
            found = msgspec.structs.replace(found, section=each.section, name=each.name)
            states[each.section, each.name] = found.state
            yield found
    finally:
        if answering is not None:
            answering.end()


def _lost(status: int | None, seconds: float) -> Ability:
    """What it means that no answer came: None for a deadline, else the exit status."""
    if status is None:
        return refused(
            f"no answer within {seconds:g} s: the driver or the kernel hangs",
            "see the kernel's log; a probe counts such calls, goes on without them, and says so in its metrics",
        )
    what = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return refused(f"the check ended its process ({what}): a library crashed")
