"""The fields that the answer on one canary has, be it a comparison or a scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. In JSON a number that is not finite is null."""

    canary: str | None
    """None of numbers."""
    exit_code: int
    sentence: str
    shift: float | None
    """Of the latency, as a ratio: 0.05 is 5 % slower; None if there are too few runs."""
    runs: int
    starts: int
    unit: Literal["s"] | None
    notes: Sequence[str] = ()
