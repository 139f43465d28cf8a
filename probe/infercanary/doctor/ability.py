"""What a check answers, and the table of all checks.

A check is a function that takes the :class:`Machine` and returns an :class:`Ability`. It registers itself::

    @check("host", "clock source")
    def _clock_source(machine: Machine) -> Ability:
        return ok("tsc")

It runs in a process of its own, which is killed where it takes too long (:mod:`.asking`). What it raises is an answer
too: :func:`answered` says of each exception what it means.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pynvml

from infercanary.contract.text import printable
from infercanary.probe.deadline import one_line
from infercanary.probe.gpu.cuda_driver import CudaError
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml.faults import advice

State = Literal["OK", "limited", "refused", "absent"]
USABLE = ("OK", "limited")
"""The states after which what needs a check is checked too."""

SECTIONS: tuple[tuple[str, str], ...] = (
    ("host", "infercanary.doctor.host"),
    ("container", "infercanary.doctor.container"),
    ("engines", "infercanary.doctor.engines"),
    ("driver", "infercanary.doctor.driver"),
    ("NVML", "infercanary.doctor.nvml_calls"),
    ("GPU", "infercanary.doctor.gpu_modes"),
    ("CUDA", "infercanary.doctor.cuda_events"),
    ("CUPTI", "infercanary.doctor.cupti"),
)
"""Section → the module with its checks, in the order in which they are made."""

_MOST_CHARACTERS = 600


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what a probe can do here."""

    section: str = ""
    name: str = ""
    state: State
    """`absent` is no fault: what the line is about is not on this machine, such as a GPU."""
    found: str = ""
    """What is there; empty where nothing is."""
    why: str = ""
    """Why it is not OK."""
    fix: str = ""
    """What to do; empty where nothing can be done, or nothing need be."""
    seconds: float | None = None
    """What the check took; None where it did not come back."""


class Machine(NamedTuple):
    """Where the checks look."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devices: Path = Path("/dev")
    temporary: Path = Path("/tmp")  # noqa: S108 - where MPS keeps its pipes unless an environment variable says otherwise
    device: int = 0
    """CUDA's number of the GPU on which events are tried."""
    drift_seconds: float = 10.0
    """How long the device's clock is compared with the host's; 0 leaves it out."""

    @property
    def cgroups(self) -> Path:
        """Where cgroups are mounted."""
        return self.sysfs / "fs/cgroup"


class Check(NamedTuple):
    """One check."""

    section: str
    name: str
    function: Callable[[Machine], Ability]
    seconds: float
    """Its deadline, from when it is asked."""
    needs: str
    """Another check of the section, without which this one is left out; empty where there is none."""


_checks: dict[tuple[str, str], Check] = {}

F = Callable[[Machine], Ability]


def check(section: str, name: str, *, seconds: float = 5.0, needs: str = "") -> Callable[[F], F]:
    """Register a function as a check.

    Args:
        section: One of ``SECTIONS``.
        name: Unique in the section; people read it.
        seconds: Its deadline. 5 s: a GPU that nothing uses may take seconds to wake up.
        needs: The name of a check of the same section; where that is neither OK nor limited, this one is not made.

    Returns:
        A decorator that gives back the function.
    """

    def registering(function: F) -> F:
        _checks[section, name] = Check(section, name, function, seconds, needs)
        return function

    return registering


def checks() -> list[Check]:
    """All checks, section by section.

    Returns:
        In the order in which they are made.
    """
    for _, module in SECTIONS:
        importlib.import_module(module)
    order = [section for section, _ in SECTIONS]
    return sorted(_checks.values(), key=lambda each: order.index(each.section))


def ok(found: str) -> Ability:
    """Answer that it works.

    Args:
        found: What is there.

    Returns:
        The answer.
    """
    return Ability(state="OK", found=found)


def limited(found: str, why: str, fix: str = "") -> Ability:
    """Answer that it works in part.

    Args:
        found: What is there.
        why: What does not work, and what that costs.
        fix: What to do.

    Returns:
        The answer.
    """
    return Ability(state="limited", found=found, why=why, fix=fix)


def refused(why: str, fix: str = "", found: str = "") -> Ability:
    """Answer that it does not work, though it could.

    Args:
        why: The reason.
        fix: What to do.
        found: What is there all the same.

    Returns:
        The answer.
    """
    return Ability(state="refused", found=found, why=why, fix=fix)


def absent(why: str) -> Ability:
    """Answer that there is nothing of the kind here, which is no fault.

    Args:
        why: What is missing, and what the probe does instead.

    Returns:
        The answer.
    """
    return Ability(state="absent", why=why)


def answered(each: Check, machine: Machine) -> Ability:
    """Make one check, and make an answer of what it raises.

    Args:
        each: The check.
        machine: Where it looks.

    Returns:
        The answer with its section and name, in printable text.
    """
    try:
        found = each.function(machine)
    except Unavailable as error:
        found = absent(str(error))
    except CudaError as error:
        found = refused(f"the driver answers {error}", "see the kernel's log (dmesg | grep NVRM)")
    except pynvml.NVMLError as error:
        found = refused(advice(error))
    except Exception as error:  # one check's mistake is not the others'
        found = refused(f"it could not be checked: {one_line(error)}")
    words = {
        field: printable(getattr(found, field), _MOST_CHARACTERS, " ") for field in ("found", "why", "fix")
    }
    return msgspec.structs.replace(found, section=each.section, name=each.name, **words)


def first_line(path: Path) -> str:
    """The first line of a file; empty where it cannot be read.

    Args:
        path: Such as one in ``/proc``.
    """
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""
