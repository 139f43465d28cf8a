"""Reads one answer of a probe in a worker thread: decode, check, render."""

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
    """Results of reading one answer."""

    report: Report
    """The valid part of the report."""
    rejected: Counter[Reason]
    facts: ReportFacts
    lines: list[Lines]
    """Rendered families."""
    profiles: Packed
    """Profiles from the probe's current process."""
    cpu_seconds: float


def prepared(body: bytes, identity: Mapping[str, str], since: float, reserved: Collection[str]) -> Prepared:
    """Decode, check and render one answer of a probe.

    Args:
        body: Body of the answer, untrusted.
        identity: Labels of the probe's container.
        since: Start of the watched server, Unix time. Profiles of earlier runs belong to another server.
        reserved: Base names of the exporter's own families.

    Raises:
        PollError: The body is not a valid report.
    """
    begin = time.thread_time()
    report, rejected = read(body, reserved)
    facts = read_facts(report.families)
    lines = [write(family, identity) for family in report.families]
    profiles = of_runs(run for run in report.runs if not run.boot_id and run.started_at >= since)
    return Prepared(report, rejected, facts, lines, profiles, time.thread_time() - begin)
