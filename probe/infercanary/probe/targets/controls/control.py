"""What a control is: a target that also says how much work one repeat does, and what limits it."""

from __future__ import annotations

from typing import NamedTuple

from infercanary.contract.vocabulary import PHASES, Bottleneck
from infercanary.probe.targets import Target
from infercanary.probe.timing import Timing

_WAITING = frozenset(phase.name for phase in PHASES.values() if phase.is_waiting)


class Work(NamedTuple):
    """How much work one repeat does; divided by :func:`working_seconds` it is the rate. 0: there is no such rate."""

    flops: float = 0.0
    """Floating-point operations; a fused multiply-add is two."""
    bytes: float = 0.0
    """Bytes moved: each one read counts, and each one written."""


class Control(Target):
    """A tiny target that does the same in every image: when it slows down, it is not the image.

    Between calls it does nothing, and what :meth:`~infercanary.probe.targets.Target.run` returns is always the same.
    """

    bottleneck: Bottleneck
    """What its time depends on."""
    work: Work
    """What one repeat does; read after :meth:`~infercanary.probe.targets.Target.open`."""


def working_seconds(timing: Timing) -> float:
    """Return the seconds of work in one repeat, on the device if it was done there, without launching and waiting.

    Args:
        timing: Of one repeat, in seconds.
    """
    return sum(seconds for phase, seconds in timing.phases.items() if phase not in _WAITING)
