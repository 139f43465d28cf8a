"""Bounds of the numbers in a run. The check is done when a run is read, so that later sums cannot overflow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

import msgspec

from infercanary.contract.report import Run

LEAST_SECONDS: Final = 1e-15
"""Smaller values are not compared, because the ratio of two values must be finite."""
MOST_SECONDS: Final = 1e6
"""Longest latency, phase or wait: eleven days."""
LATEST: Final = 2.0**33
"""Latest accepted time in Unix seconds: the year 2242."""
MOST_LATENCIES: Final = 10_000
"""Maximum number of repeats in one run. A probe makes at most 50 repeats, so the limit only stops an invalid report."""
MOST_COUNT: Final = 2**53
"""Largest count; above it, a float cannot represent every integer."""
MOST_AMOUNT: Final = 1e18
"""Largest number of bytes, hertz, joules, or segments a second."""

# msgspec checks these bounds during decoding, and also refuses NaN.
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
# wide limits, because a clock may be wrong by years
Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MOST_AMOUNT)]
Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-MOST_AMOUNT, le=MOST_AMOUNT)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]


def fault(run: Run) -> str:
    """Describe the first impossible number in a decoded run; return "" if all numbers are possible."""
    times = {"scheduled_at": run.scheduled_at, "started_at": run.started_at}
    for name, at in times.items():
        if not 0 <= at <= LATEST:
            return f"{name} is {at:g}"
    if not 0 <= run.sequence <= MOST_COUNT:
        return "sequence is below 0 or above 2^53"
    if len(run.latencies) > MOST_LATENCIES:
        return f"{len(run.latencies)} latencies, more than {MOST_LATENCIES}"
    if not are_seconds(run.latencies):
        return f"latencies from {min(run.latencies):g} to {max(run.latencies):g} s"
    for name, seconds in {"waited": run.waited, "crowded": run.crowded}.items():
        if not 0 <= (seconds or 0.0) <= MOST_SECONDS:
            return f"{name} is {seconds:g} s"
    for name, value in {"sm_clock": run.sm_clock, "inside": run.inside, "received": run.received}.items():
        if not 0 <= (value or 0.0) <= MOST_AMOUNT:
            return f"{name} is {value:g}"
    if not abs(run.output_error or 0.0) <= MOST_AMOUNT:
        return f"output_error is {run.output_error:g}"
    for name, each in {"phases": run.phases, "controls": run.controls, "off_cpu": run.off_cpu}.items():
        if not are_seconds(each.values()):
            return f"{name} from {min(each.values()):g} to {max(each.values()):g} s"
    if not all(0 <= value <= MOST_AMOUNT for value in run.measures.values()):
        return f"measures from {min(run.measures.values()):g} to {max(run.measures.values()):g}"
    return ""


def are_seconds(values: Iterable[float]) -> bool:
    """True if every value can be a duration in seconds."""
    return all(0 <= value <= MOST_SECONDS for value in values)
