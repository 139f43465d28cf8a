"""What the benchmarks hold the probe to."""

from __future__ import annotations

TENANT = {50: 1.005, 99: 1.01}
"""Percentile of latency → the most that it may be beside a probe or a profile, over the same without."""
