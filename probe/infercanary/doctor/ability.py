"""Checks, their answers (abilities), and the table of all checks.

A check is a function that takes the :class:`Machine` and returns an :class:`Ability`. It registers itself::

    @check("host", "clock source")
    def _clock_source(machine: Machine) -> Ability:
        return ok("tsc")

:func:`answered` turns exceptions of a check into answers. :mod:`.asking` runs checks in a separate process, each with a
deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pynvml

from infercanary.probe.deadline import one_line
from infercanary.probe.gpu.cuda_driver import CudaError
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml.faults import advice

State = Literal["OK", "limited", "refused", "absent"]

MODULES = {
    "host": "infercanary.doctor.host",
    "container": "infercanary.doctor.container",
    "engines": "infercanary.doctor.engines",
    "driver": "infercanary.doctor.driver",
    "NVML": "infercanary.doctor.nvml_calls",
    "GPU": "infercanary.doctor.gpu_modes",
    "CUDA": "infercanary.doctor.cuda_events",
    "CUPTI": "infercanary.doctor.cupti",
}
"""Module with the checks of each section. The order is the order of the report."""


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of one check: whether a probe has an ability on this machine. It becomes a line of the report."""

    section: str = ""
    name: str = ""
    state: State
    """State of the ability. `absent` is not a fault: the machine lacks the checked part, for example a GPU."""
    found: str = ""
    """Value or state that the check found; empty if there is none."""
    why: str = ""
    """Reason why the state is not OK."""
    fix: str = ""
    """Next action; empty if there is none."""
    seconds: float | None = None
    """Duration of the check; None if the check did not answer in time."""


class Machine(NamedTuple):
    """Machine to check: the paths of its system files, and the number of its GPU."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devices: Path = Path("/dev")
    device: int = 0
    """CUDA device index of the GPU for the checks of CUDA events, CUDA graphs and CUPTI."""


class Check(NamedTuple):
    section: str
    name: str
    function: Callable[[Machine], Ability]
    seconds: float
    """Deadline of the check. The default is 5 s, because an unused GPU may need seconds to wake up."""
    needs: str
    """Name of a check of the same section that must be OK or limited first; empty for none."""


_checks: list[Check] = []

F = Callable[[Machine], Ability]


def check(section: str, name: str, *, seconds: float = 5.0, needs: str = "") -> Callable[[F], F]:
    """Register a function as a check; see :class:`Check`."""

    def register(function: F) -> F:
        _checks.append(Check(section, name, function, seconds, needs))
        return function

    return register


def checks() -> list[Check]:
    """Return all checks, in the order of the report."""
    for module in MODULES.values():
        import_module(module)
    return sorted(_checks, key=lambda check: list(MODULES).index(check.section))


class Refusal(Exception):
    """Raised by a check for the answer "refused", with the reason and optionally the fix."""


def ok(found: str) -> Ability:
    """Return the answer for an ability that works."""
    return Ability(state="OK", found=found)


def limited(found: str, why: str, fix: str = "") -> Ability:
    """Return the answer for an ability that works only in part."""
    return Ability(state="limited", found=found, why=why, fix=fix)


def refused(why: str, fix: str = "", found: str = "") -> Ability:
    """Return the answer for an ability that does not work, although the machine has the checked part."""
    return Ability(state="refused", found=found, why=why, fix=fix)


def answered(check: Check, machine: Machine) -> Ability:
    """Run one check, and return its answer. An exception also becomes an answer."""
    try:
        return check.function(machine)
    except Unavailable as error:
        return Ability(state="absent", why=str(error))
    except Refusal as error:
        return refused(*error.args)
    except CudaError as error:
        return refused(f"the driver answers {error}", "see the kernel's log (dmesg | grep NVRM)")
    except pynvml.NVMLError as error:
        return refused(advice(error))
    except Exception as error:  # a failed check must not stop the other checks
        return refused(f"the check failed: {one_line(error)}")
