"""Builders of the judge's results, for tests of output."""

from __future__ import annotations

from typing import Any

from infercanary.judge.result import Result


def upgraded(state="regressed", shift=0.1, **fields):
    """A result on the upgrade of search:1 to search:2 at second 1; the interval is two points wide on each side.

    Args:
        state: The verdict.
        shift: A ratio; None where nothing can be compared yet.
        fields: Of the result, in place of these.
    """
    known: dict[str, Any] = {"upgraded_at": 1.0, "baseline_image": "search:1", "candidate_image": "search:2"}
    if shift is not None:
        known |= {"shift": shift, "low": shift - 0.02, "high": shift + 0.02}
    return Result(state=state, **known | fields)
