"""What is made of one answer of a probe, off the event loop: checked, written as lines, and in short for people."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from infercanary.client.fetch import Received, read
from infercanary.client.limits import Limits
from infercanary.exporter.expose import Lines, write
from infercanary.exporter.history import RunSummary, summarise
from infercanary.judge.profiles import Packed, of_runs


class Prepared(NamedTuple):
    """An answer of a probe, as it is taken."""

    received: Received
    """Checked."""
    lines: list[Lines]
    """Its families."""
    summaries: list[RunSummary]
    """Its accepted runs in short."""
    profiles: Packed
    """Of its own runs."""
    cpu_seconds: float
    """That this took."""


def prepared(
    body: bytes, identity: Mapping[str, str], since: float, limits: Limits, reserved: Collection[str]
) -> Prepared:
    """Do all that takes time with one answer of a probe, off the event loop.

    Args:
        body: What it answered, unchecked.
        identity: The labels of its container.
        since: When the server began that it watches, a Unix time: profiles of runs before it are an earlier one's.
        limits: How much of the answer is accepted.
        reserved: Base names of the exporter's own families.

    Returns:
        What can be taken of it.

    Raises:
        PollError: It is no valid report.
    """
    begin = time.thread_time()
    received = read(body, limits, reserved)
    families, runs = received.accepted.families, received.accepted.runs
    lines = [write(family, identity) for family in families]
    summaries = [summarise(run) for run in runs]
    profiles = of_runs(run for run in runs if not run.boot_id and run.started_at >= since)
    return Prepared(received, lines, summaries, profiles, time.thread_time() - begin)
