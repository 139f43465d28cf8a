"""Goals for the probe's cost in the benchmarks."""

from __future__ import annotations

TENANT = {50: 1.005, 99: 1.01}
"""Percentile of latency → largest accepted ratio of the latency with a probe (or profile) to the latency without."""
