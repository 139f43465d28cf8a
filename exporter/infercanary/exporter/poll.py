"""Work on one answer of a probe, off the event loop: decode, check, render."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from infercanary.client.accept import Reason, read
from infercanary.contract.report import Report
from infercanary.exporter.expose import Lines, write
from infercanary.exporter.report_facts import ReportFacts, read_facts
from infercanary.judge.profiles import Packed, of_runs


class Prepared(NamedTuple):
    """Results of one answer."""

    report: Report
    """Its sound part."""
    rejected: Counter[Reason]
    facts: ReportFacts
    lines: list[Lines]
    """Rendered families."""
    profiles: Packed
    """Profiles of the probe's own runs."""
    cpu_seconds: float


def prepared(body: bytes, identity: Mapping[str, str], since: float, reserved: Collection[str]) -> Prepared:
    """Decode, check and render one answer of a probe.

    Args:
        body: Answer of the probe, untrusted.
        identity: Labels of its container.
        since: Start of the watched server, Unix time: profiles of earlier runs are another server's.
        reserved: Base names of the exporter's own families.

    Raises:
        PollError: It is no valid report.
    """
    begin = time.thread_time()
    report, rejected = read(body, reserved)
    facts = read_facts(report.families)
    lines = [write(family, identity) for family in report.families]
    profiles = of_runs(run for run in report.runs if not run.boot_id and run.started_at >= since)
    return Prepared(report, rejected, facts, lines, profiles, time.thread_time() - begin)
