"""Finds the recorded benchmark of a running image."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from infercanary.exporter.judging.findings import Finding
from infercanary.judge.differences import changes
from infercanary.judge.model import Generation, Start
from infercanary.judge.result import Benchmarked
from infercanary.store.benchmarks import read
from infercanary.store.session import Session


def with_benchmark(finding: Finding, newest: Iterable[Generation], session: Session, canary: str) -> Finding:
    """Return a finding with the last benchmark of the judged image, if the image's digest is known.

    Benchmarks with a comparison have priority, and then benchmarks on the same class of hardware.

    Args:
        finding: Finding on the canary.
        newest: Newest start of each container of the service.
        session: Session of the store.
    """
    boots = finding.sides.new or finding.sides.others
    start = next((start for start in newest if (start.container, start.boot_id) in boots), None)
    if start is None or not start.is_known:
        return finding
    here, benchmark = _on_hardware(start), Benchmarked()
    found = read(session, canary, {start.image_id, start.image_digest} - {""})  # newest first
    compared = [each for each in found if each.verdict] or found
    alike = [each for each in compared if here.is_comparable(_on_hardware(each.last_start).hardware)]
    for last in (alike or compared)[:1]:
        then = last.last_start
        benchmark = Benchmarked(
            command=then.service,
            at=last.at,
            verdict=last.verdict,
            shift=last.shift,
            is_other_host=len({start.host, then.host, ""}) == 3,
            is_other_hardware=not alike,
            changes=changes(then.environment, start.environment, canary),
        )
    result = msgspec.structs.replace(finding.result, benchmark=benchmark)
    return msgspec.structs.replace(finding, result=result)


def _on_hardware(start: Generation) -> Start:
    """Return a copy of the start whose hardware is compared even if the host is unknown."""
    return Start(msgspec.structs.replace(start, host="any"), ())
