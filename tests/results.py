"""Builders of the judge's results, for tests of output."""

from typing import Any

from infercanary.judge.result import Result


def upgraded(state="regressed", shift=0.1, **fields):
    """Return a result for the upgrade of search:1 to search:2 at second 1. The interval is ±2 percentage points.

    Args:
        state: The verdict.
        shift: A ratio; None if no comparison is possible yet.
        fields: Other fields of the result.
    """
    known: dict[str, Any] = {"upgraded_at": 1.0, "baseline_image": "search:1", "candidate_image": "search:2"}
    if shift is not None:
        known |= {"shift": shift, "low": shift - 0.02, "high": shift + 0.02}
    return Result(state=state, **known | fields)
