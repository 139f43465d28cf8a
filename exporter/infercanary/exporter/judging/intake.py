"""Intake: stores reports in one transaction. A report that cannot be stored does not affect the other reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import structlog

from infercanary.contract.report import Metric
from infercanary.exporter.judging.queue import StartReport
from infercanary.exporter.judging.store_metrics import LEFT_OUT, STORE_ERRORS, STORED
from infercanary.judge.model import kept
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.store import Store

log = structlog.get_logger(__name__)


def take(store: Store, reports: Iterable[StartReport]) -> Counter[Metric]:
    """Store reports.

    Args:
        reports: Reports, in order of time for each container.

    Returns:
        Increase of three counters: new runs, runs of unknown starts, and reports that cannot be stored.

    Raises:
        StoreAway: The store is unavailable now. Pass all reports again later.
    """
    # A fixed order prevents a deadlock of exporters that report the same containers.
    ordered = sorted(reports, key=lambda report: report.container)
    taken: Counter[Metric] = Counter()
    try:
        with store.session.transaction():
            for report in ordered:
                taken += _take_one(store, report)
    except StoreAway:
        raise
    except Exception as error:
        if len(ordered) > 1:  # store each report alone, to lose only the faulty report
            return sum((take(store, [report]) for report in ordered), Counter())
        [report] = ordered
        log.error("runs not stored", service=str(report.generation.key), container=report.generation.container,
                  error=str(error), exc_info=not isinstance(error, StoreError))  # fmt: skip
        return Counter({STORE_ERRORS: 1})
    return taken


def _take_one(store: Store, report: StartReport) -> Counter[Metric]:
    start, runs = report.generation, report.runs
    known = store.start_of(start.key, start.container, start.boot_id) if report.is_found else start
    if known is None:
        return Counter({LEFT_OUT: len(runs)})
    return Counter({STORED: store.take(known, map(kept, runs))})
