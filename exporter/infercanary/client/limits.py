"""Bounds on what all probes together may cost."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Number of probes, and size of their part of ``/metrics``.

    Prometheus refuses the whole host beyond the ``body_size_limit`` and the ``sample_limit`` of its scrape (100 MB and
    500,000 in ours), so these are lower.
    """

    label_bytes: ClassVar[int] = 256
    """Longest value of a label."""
    probes: int = 2_000
    shown_bytes: int = 80_000_000
    shown_series: int = 400_000
