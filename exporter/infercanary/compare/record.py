"""Records results in a store (`--record`). `report` lists these results, and exporters add them to verdicts on the
image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import click

from infercanary.command.settings import UsageError
from infercanary.compare.comparison import ComparisonResult
from infercanary.compare.recording import RecordedSide
from infercanary.store.base import StoreError
from infercanary.store.benchmarks import Benchmark, compact, save
from infercanary.store.session import Session
from infercanary.store.store import check


class Recorder:
    """Collects results, and records all of them in one transaction.

    Args:
        location: Path of an SQLite file, which an exporter may have open, or a PostgreSQL URL.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._benchmarks: list[Benchmark] = []

    def check(self) -> None:
        """Open the store once, to report a mistake before a long experiment.

        Raises:
            UsageError: The store cannot be used.
        """
        with _opened(self._location):
            pass

    def add(
        self, command: str, canary: str, sides: Iterable[RecordedSide], result: ComparisonResult | None = None
    ) -> None:
        """Add the sides of a result: a baseline and a candidate, or a journal alone.

        Args:
            command: Command that made the result.
            sides: Sides of the result; a side without a start is left out.
            result: Result of the comparison; None for a journal alone.
        """
        baseline = ""
        for side in sides:
            if side.starts:
                starts = [
                    start.reporting(
                        service=command, image=side.image, image_id=side.digests.any, host=side.host
                    )
                    for start in side.starts
                ]
                benchmark = Benchmark(
                    canary=canary,
                    at=side.starts[-1].samples[-1].started_at,
                    digests=side.digests,
                    starts=[*map(compact, starts)],
                    baseline=baseline,
                    verdict=result.verdict if result and baseline else "",
                    shift=result.shift if result and baseline else None,
                )
                baseline = benchmark.id
                self._benchmarks.append(benchmark)

    def save(self) -> None:
        """Record all results.

        Raises:
            UsageError: The store cannot be written, or nothing was added.
        """
        if not self._benchmarks:
            raise UsageError("--record: nothing to record; give journals of probes with enough runs")
        with _opened(self._location) as session:
            save(session, self._benchmarks)
        text = f"benchmarks recorded in {self._location}: {len(self._benchmarks)}"
        last = self._benchmarks[-1]
        if last.last_start.service != "ab" and not last.digests.any:
            text += (
                ", but the exporter cannot find any without a digest; repeat with --image REPOSITORY@sha256:…"
            )
        click.echo(f"infercanary: {text}", err=True)


@contextmanager
def _opened(location: str) -> Iterator[Session]:
    """Open a store that an exporter may also use.

    Raises:
        UsageError: The store cannot be opened, read or written.
    """
    try:
        database = check(location)
        database.is_guest = True
        with closing(Session(database)) as session, session.work():
            yield session
    except StoreError as error:
        raise UsageError(f"--record: {error}") from None
