"""What is made of one answer of a probe, off the event loop: checked, written as lines, and in short for people."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from infercanary.client.fetch import Received, read
from infercanary.client.limits import Limits
from infercanary.exporter.expose import Lines, write
from infercanary.exporter.history import RunSummary, summarise


def prepared(
    body: bytes,
    identity: Mapping[str, str],
    limits: Limits,
    reserved: Collection[str],
) -> tuple[Received, list[Lines], list[RunSummary], float]:
    """Do all that takes time with one answer of a probe, off the event loop.

    Args:
        body: What it answered, unchecked.
        identity: The labels of its container.
        limits: How much of the answer is accepted.
        reserved: Base names of the exporter's own families.

    Returns:
        The checked report, its families as lines, its accepted runs in short, and the CPU seconds that this took.

    Raises:
        PollError: It is no valid report.
    """
    begin = time.thread_time()
    received = read(body, limits, reserved)
    families, runs = received.accepted.families, received.accepted.runs
    lines = [write(family, identity) for family in families]
    summaries = [summarise(run) for run in runs]
    return received, lines, summaries, time.thread_time() - begin
