"""What probes reported goes into the store, in one transaction: what cannot be stored costs itself alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from infercanary.exporter.judging.queue import StartReport
from infercanary.exporter.judging.silence import Canary
from infercanary.judge.model import ServiceKey, kept
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.store import Store

log = structlog.get_logger(__name__)


class Taken(NamedTuple):
    """What the store took."""

    runs: int
    """Those that are new."""
    ran: dict[Canary, set[str]]
    """Canaries → the containers that reported runs of them."""
    ended: set[ServiceKey]
    """Services of which a start said how it ended."""
    found: Mapping[tuple[ServiceKey, str], tuple[int, int]]
    """Service and container → runs of earlier starts whose image is known, and those that are left out."""
    failures: int
    """Reports that could not be stored."""


def take(store: Store, reports: Sequence[StartReport]) -> Taken:
    """Store what was reported.

    Args:
        store: Where to.
        reports: In the order in which they came.

    Returns:
        What it took.

    Raises:
        StoreError: The transaction could not be begun or ended: nothing was stored.
        StoreAway: The store cannot do it now: nothing was stored.
    """
    if not reports:
        return Taken(0, {}, set(), {}, 0)
    ran: defaultdict[Canary, set[str]] = defaultdict(set)
    ended: set[ServiceKey] = set()
    known: Counter[tuple[ServiceKey, str]] = Counter()
    unknown: Counter[tuple[ServiceKey, str]] = Counter()
    stored = failures = 0
    with store.transaction():
        for report in reports:
            key, container = report.generation.key, report.generation.container
            where = {"service": str(key), "container": container}
            try:
                new = _take_one(store, report)
            except StoreAway:
                raise
            except StoreError as error:
                # One that cannot be taken must not hold up the rest; a full disk fails the whole transaction.
                failures += 1
                log.error("runs not stored", **where, error=str(error))
                continue
            except Exception:  # a row that a failing disk made another one of
                failures += 1
                log.exception("runs not stored by a fault of the exporter", **where)
                continue
            if new is None:
                unknown[key, container] += len(report.runs)
                continue
            if report.is_found:
                known[key, container] += len(report.runs)
            stored += new
            for canary in {run.canary for run in report.runs}:
                ran[key, canary].add(container)
            if not report.runs:
                ended.add(key)
    for (service, container), runs in unknown.items():
        log.info("runs of earlier starts are left out: their image is not known", service=str(service),
                 container=container, runs=runs)  # fmt: skip
    found = {key: (known[key], unknown[key]) for key in known | unknown}
    return Taken(stored, dict(ran), ended, found, failures)


def _take_one(store: Store, report: StartReport) -> int | None:
    """Store the runs of one report; how many of them are new, or None where their start is not known."""
    start = report.generation
    if report.is_found:
        known = store.start_of(start.key, start.container, start.boot_id)
        if known is None:
            return None
        start = known
    return store.take(start, map(kept, report.runs))
