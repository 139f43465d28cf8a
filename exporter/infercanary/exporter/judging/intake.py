"""What probes reported goes into the store, in one transaction: what cannot be stored costs itself alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from infercanary.exporter.judging.queue import StartReport
from infercanary.exporter.judging.silence import Canary
from infercanary.judge.model import ServiceKey, kept
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.store import Store

log = structlog.get_logger(__name__)


class Taken(msgspec.Struct):
    """What the store took."""

    runs: int = 0
    """Those that are new."""
    ran: set[Canary] = set()
    """Canaries with new runs."""
    ended: set[ServiceKey] = set()
    """Services of which a start said how it ended."""
    found: dict[tuple[ServiceKey, str], tuple[int, int]] = {}
    """Service and container → runs of earlier starts whose image is known, and those that are left out."""
    failures: int = 0
    """Reports that could not be stored."""


def take(store: Store, reports: Sequence[StartReport]) -> Taken:
    """Store what was reported.

    Args:
        store: Where to.
        reports: In the order in which they came.

    Returns:
        What it took.

    Raises:
        StoreAway: The store cannot do it now: offer all reports again.
    """
    taken = Taken()
    # Exporters that have the same containers lock them in the same order.
    reports = sorted(reports, key=lambda report: (report.generation.key, report.generation.container))
    try:
        if reports:
            with store.transaction():
                for report in reports:
                    _take_one(store, report, taken)
    except StoreAway:
        raise
    except Exception:  # one that cannot be stored must not hold up the rest
        taken = _take_each_alone(store, reports)
    for (service, container), (_, runs) in taken.found.items():
        if runs:
            log.info("runs of earlier starts are left out: their image is not known", service=str(service),
                     container=container, runs=runs)  # fmt: skip
    return taken


def _take_each_alone(store: Store, reports: Sequence[StartReport]) -> Taken:
    """Store each report in a transaction of its own, and say which cannot be stored."""
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
    """Store the runs of one report, unless their start is not known."""
    start, runs = report.generation, len(report.runs)
    if report.is_found:
        known = store.start_of(start.key, start.container, start.boot_id)
        counts = (0, runs) if known is None else (runs, 0)
        before = taken.found.get((start.key, start.container), (0, 0))
        taken.found[start.key, start.container] = before[0] + counts[0], before[1] + counts[1]
        if known is None:
            return
        start = known
    taken.runs += store.take(start, map(kept, report.runs))
    for canary in {run.canary for run in report.runs}:
        taken.ran.add((start.key, canary))
    if not runs:
        taken.ended.add(start.key)
