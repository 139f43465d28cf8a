"""Storing of reports, in one transaction: a report that cannot be stored costs itself alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import structlog

from infercanary.exporter.judging.queue import StartReport
from infercanary.exporter.judging.schedule import Canary
from infercanary.judge.model import ServiceKey, kept
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.store import Store

log = structlog.get_logger(__name__)


class Taken(msgspec.Struct):
    """Outcome of storing reports."""

    runs: int = 0
    """New runs."""
    ran: set[Canary] = set()
    """Canaries with new runs."""
    ended: set[ServiceKey] = set()
    """Services of which a start reported its end."""
    known: Counter[tuple[ServiceKey, str]] = msgspec.field(default_factory=Counter)
    """Service and container → runs of earlier starts whose image is known."""
    left_out: Counter[tuple[ServiceKey, str]] = msgspec.field(default_factory=Counter)
    """Service and container → runs of earlier starts whose image is unknown."""
    failures: int = 0
    """Reports that could not be stored."""


def take(store: Store, reports: Sequence[StartReport]) -> Taken:
    """Store reports, those of one container in order.

    Raises:
        StoreAway: The store cannot do it now: offer all reports again.
    """
    taken = Taken()
    # Exporters that have the same containers lock them in the same order.
    reports = sorted(reports, key=lambda report: (report.generation.key, report.generation.container))
    try:
        if reports:
            with store.session.transaction():
                for report in reports:
                    _take_one(store, report, taken)
    except StoreAway:
        raise
    except Exception:  # one that cannot be stored must not hold up the rest
        taken = _take_each_alone(store, reports)
    for (service, container), runs in taken.left_out.items():
        log.info("runs of earlier starts are left out: their image is not known", service=str(service),
                 container=container, runs=runs)  # fmt: skip
    return taken


def _take_each_alone(store: Store, reports: Sequence[StartReport]) -> Taken:
    taken = Taken()
    for report in reports:
        try:
            _take_one(store, report, taken)
        except StoreAway:
            raise
        except Exception as error:
            taken.failures += 1
            start, is_ours = report.generation, not isinstance(error, StoreError)
            log.error("runs not stored", service=str(start.key), container=start.container, error=str(error),
                      exc_info=is_ours)  # fmt: skip
    return taken


def _take_one(store: Store, report: StartReport, taken: Taken) -> None:
    start, runs = report.generation, len(report.runs)
    if report.is_found:
        known = store.start_of(start.key, start.container, start.boot_id)
        counter = taken.left_out if known is None else taken.known
        counter[start.key, start.container] += runs
        if known is None:
            return
        start = known
    taken.runs += store.take(start, map(kept, report.runs))
    taken.ran |= {(start.key, run.canary) for run in report.runs}
    if not runs:
        taken.ended.add(start.key)
