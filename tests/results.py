"""Results of the judge, made by hand for the tests of what shows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from infercanary.exporter.judging.findings import Finding
from infercanary.judge.result import Result, State


def upgraded(state: State = "regressed", shift: float | None = 0.1, **fields: Any) -> Result:
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


def findings_of(
    judgements: Mapping[str, Result],
    sentences: Mapping[str, str] = MappingProxyType({}),
    **fields: Mapping[str, Any],
) -> dict[str, Finding]:
    """Findings by canary, out of mappings by canary.

    Args:
        judgements: The results.
        sentences: Their words; empty where one is missing.
        fields: Other fields of :class:`Finding`.
    """
    return {
        name: Finding(
            result=result,
            sentence=sentences.get(name, ""),
            **{field: values[name] for field, values in fields.items() if name in values},
        )
        for name, result in judgements.items()
    }
