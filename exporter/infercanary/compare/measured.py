"""What a comparison says of memory, energy and the throughput of a load, beside the latency. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from infercanary.command.exit_codes import ExitCode, worst
from infercanary.compare.units import finite
from infercanary.contract.measures import measure_of
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.result import State
from infercanary.judge.sentence import measure_words

Gate = Literal["all", "latency"]
GATES: tuple[Gate, ...] = get_args(Gate)

_NAMED = 3  # in a sentence


class MeasureShift(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one measure that both sides have. Shifts are ratios of the measure itself: -0.2 is 20 % less."""

    verdict: State
    """`regressed` is worse: more memory, less throughput."""
    words: str
    unit: str
    """Base unit; empty for a ratio."""
    before: float | None
    """Median of the values, in that unit; as the next, and the shift, None where there are too few."""
    after: float | None
    shift: float | None
    low: float | None
    high: float | None


def shifts(verdicts: Mapping[str, MeasureVerdict]) -> dict[str, MeasureShift]:
    """Return verdicts as answers have them.

    Args:
        verdicts: Measure → the judge's verdict.

    Returns:
        In the same order; what is not finite is None.
    """
    found = {}
    for name, verdict in verdicts.items():
        measure = measure_of(name)
        found[name] = MeasureShift(
            verdict=verdict.state,
            words=measure.words if measure else name,
            unit=measure.unit if measure else "",
            **{
                field: finite(getattr(verdict, field))
                for field in ("before", "after", "shift", "low", "high")
            },
        )
    return found


def regressed(verdicts: Mapping[str, MeasureVerdict]) -> list[str]:
    """Return those that are worse.

    Args:
        verdicts: Measure → the judge's verdict.

    Returns:
        Names, in the same order.
    """
    return [name for name, verdict in verdicts.items() if verdict.state == "regressed"]


def with_regressed(sentence: str, verdicts: Mapping[str, MeasureVerdict]) -> str:
    """Return a sentence on the latency, and what else is worse.

    Args:
        sentence: Without a full stop.
        verdicts: Measure → the judge's verdict.
    """
    worse = regressed(verdicts)
    more = [f"{len(worse) - _NAMED} more measures regressed"] if len(worse) > _NAMED else []
    return "; ".join([sentence, *(measure_words(name, verdicts[name]) for name in worse[:_NAMED]), *more])


def exit_code(of_latency: int, worse: Sequence[str], gate: Gate) -> ExitCode:
    """Return the exit code of a comparison.

    A measure that is not known changes nothing: energy and sweeps are often too few, and a pipeline would never pass.

    Args:
        of_latency: The code of the verdict on latency.
        worse: Measures that regressed.
        gate: What decides.

    Returns:
        "regressed" where something that decides is.
    """
    code = ExitCode(of_latency)
    return worst((code, ExitCode.REGRESSED)) if worse and gate == "all" else code
