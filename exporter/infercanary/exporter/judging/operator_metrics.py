"""The operators that a change went to, as a metric: a few of each service, only while its finding stands."""

from __future__ import annotations

from collections.abc import Mapping

from infercanary.contract.profile import bounded
from infercanary.contract.report import Family, Metric
from infercanary.judge.model import Judgement
from infercanary.judge.operators import MOST

SECONDS = Metric(
    "infercanary_shift_operator_seconds",
    "gauge",
    "Time that an operator takes in an inference since the upgrade, minus its time before, in profiled repeats. Only "
    f"the operators that changed most, {MOST} of a service at most. Present only if the verdict is a change that "
    "operators explain.",
    ("canary", "operator", "change"),
    reading="It shows by name what grew. `change` says how: grew or shrank, new or gone, moved to another device, "
    "done by another kernel (library, instruction set), in another type (float64), calls (more calls, for example "
    "because fusion was lost). Below 0 is faster. Missing if profiles are off (docs/profiles.md), if one of the two "
    "images does not have three repeats yet, or if the change is outside of operators: the sentence of "
    "`infercanary_verdict_info` says which.",
)


def family(changed: Mapping[str, Judgement]) -> Family:
    """The operators of a service's changes.

    Args:
        changed: Canary → its judgement, where that is a verdict of a change.

    Returns:
        The family; without points where no operator explains a change.
    """
    found = {
        (canary, bounded(shift.operator), shift.change): shift.gained
        for canary, judgement in changed.items()
        if judgement.causes.operators is not None and judgement.causes.operators.state == "explained"
        for shift in judgement.causes.operators.shifts
    }
    largest = sorted(found, key=lambda labels: -abs(found[labels]))[:MOST]
    return SECONDS.family({labels: found[labels] for labels in largest})
