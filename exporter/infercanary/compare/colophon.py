"""How a report was made: when, by which command and version, in which units, and by which numbers it decided."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import infercanary
from infercanary.compare.units import when
from infercanary.judge.policy import Policy

_SECRET = re.compile(r"((?:--\w+=)?env\.\w+)=.*", re.DOTALL)
"""A variable of `ab`, whose value may be a secret; a report is passed on."""


def colophon(policy: Policy | None, arguments: Sequence[str] | None = None) -> list[str]:
    """Say how the report was made.

    Args:
        policy: The numbers that decided; None where nothing was decided.
        arguments: Of the command line, with its program; by default this process'.

    Returns:
        Lines of text.
    """
    lines = [f"InferCanary {infercanary.__version__}, {when(time.time())}"]
    given = [_SECRET.sub(r"\1=…", each) for each in (sys.argv if arguments is None else arguments)]
    if Path(given[0]).name == "infercanary":
        lines.append(shlex.join(["infercanary", *given[1:]]))
    lines.append("Latencies are wall times of one inference, medians of runs, and a shift of +5 % is slower.")
    if policy is not None:
        lines.append(
            f"A change is {100 * policy.decide.smallest_effect:g} % or more, with an interval clear of "
            f"±{100 * policy.decide.clear_zone:g} %; intervals have {100 * policy.decide.confidence:g} % confidence."
        )
    return lines
