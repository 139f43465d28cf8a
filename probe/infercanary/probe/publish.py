"""What the exporter gets: the numbers, the environment and the runs, as one consistent answer, and in the journal."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from infercanary.command.paths import unwritable
from infercanary.command.settings import UsageError
from infercanary.contract.report import SCHEMA_VERSION, Family, Metric, Report, Run, encode, joined
from infercanary.contract.vocabulary import CONTROLS_MADE_OF
from infercanary.probe.access import Access
from infercanary.probe.canary import Canary
from infercanary.probe.controls import Controls
from infercanary.probe.environment import ENVIRONMENT, fingerprint
from infercanary.probe.histogram import Tally
from infercanary.probe.journal import ERRORS as JOURNAL_ERRORS
from infercanary.probe.journal import Journal, last_runs
from infercanary.probe.ring import Ring
from infercanary.probe.sampling import Sampling
from infercanary.probe.serve import ReportServer

START = Metric(
    "infercanary_probe_start_timestamp_seconds",
    "gauge",
    "When the probe started, Unix time.",
    reading="`changes(…[1h])` counts restarts, after which all counters of the probe start again.",
)
CPU = Metric(
    "infercanary_probe_cpu_seconds_total",
    "counter",
    "CPU time of the probe itself (loop, samplers and server), without the canaries' own work.",
    reading="`rate(…[5m])` is a small fraction of a core. If it rises, a sampler became expensive.",
)

_RING_RUNS = 2048
_LEAST_JOURNAL_BYTES = 64 << 10


class Publisher:
    """Collects what the probe knows, and answers the exporter from a snapshot of it.

    :meth:`report` may be called from any thread, all other methods from the probe's own.
    """

    def __init__(
        self,
        tally: Tally,
        sampling: Sampling,
        canaries: Sequence[Canary],
        journal: str | os.PathLike[str] | None,
        journal_bytes: int,
        controls: Controls | None = None,
    ) -> None:
        """Open the journal, and find the runs in it that earlier probes of this container left.

        Args:
            tally: Metrics of the canaries and of the probe itself.
            sampling: Metrics of the samplers.
            canaries: Their environments and reference outputs are reported.
            journal: The file; None for none.
            journal_bytes: The most that it and the file before it take.
            controls: What they are made of is reported; None for none.

        Raises:
            UsageError: The journal cannot be written or read there.
        """
        self.address = ""
        """Where it answers; empty before :meth:`serve`."""
        self._tally = tally
        self._sampling = sampling
        self._canaries = canaries
        self._controls = controls
        self._boot_id = uuid.uuid4().hex
        self._started_at = time.time()
        self._journal: Journal | None = None
        found: list[Run] = []
        if journal is not None:
            found = self._open_journal(Path(journal), journal_bytes)
        self._last_of = {run.boot_id: run.started_at for run in found}
        self._ring = Ring(self._boot_id, _RING_RUNS, found)
        self._engines: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._families: tuple[Family, ...] = ()
        self._outputs: dict[str, tuple[float, ...]] = {}
        self._snapshot = threading.Lock()
        self._server: ReportServer | None = None
        self._cpu_before = 0.0
        tally.set(START, self._started_at)

    def starts_within(self, seconds: float) -> int:
        """How many earlier probes of this container ran so recently, as far as the journal shows.

        Args:
            seconds: Before now.

        Returns:
            0 without a journal.
        """
        return sum(self._started_at - last <= seconds for last in self._last_of.values())

    def serve(self, listen: str, access: Access) -> None:
        """Answer on ``listen`` from now on.

        Args:
            listen: ``host:port``, or ``unix:///path``.
            access: Who may ask, and over what.

        Raises:
            UsageError: It cannot listen there.
        """
        self._cpu_before = time.thread_time()
        self.publish()
        self._server = ReportServer(listen, self.report, access)
        self.address = self._server.address

    def observe_environment(self, *, final: bool = False) -> None:
        """Take the canaries' environments together; with ``final``, even where no target has reported one.

        Canaries may differ in a component (one on the CPU, one on a GPU): it then has all their values.

        Args:
            final: Whether warm-up is over, so that what is still missing is not waited for.
        """
        found: dict[str, set[str]] = {}
        for canary in self._canaries:
            for component, value in canary.environment.items():
                found.setdefault(component, set()).add(value)
        engines = {component: ", ".join(sorted(values)) for component, values in found.items()}
        if self._controls is not None and self._controls.made_of:
            engines[CONTROLS_MADE_OF] = self._controls.made_of
        if engines != self._engines or (final and not self._environment):
            self._engines, self._environment = engines, fingerprint(engines)

    def keep(self, runs: list[Run]) -> None:
        """Publish ``runs``, and write them to the journal where it serves: ``--once`` runs beside a probe that does.

        Args:
            runs: The newest, in order.
        """
        if self._journal is not None and self._server is not None:
            self._journal.append(runs, self._environment, self._reference_outputs())
            self._tally.set(JOURNAL_ERRORS, self._journal.lost)
        self.publish(runs)

    def publish(self, runs: Iterable[Run] = ()) -> None:
        """Swap in a new snapshot: ``runs`` together with the numbers that count them.

        Args:
            runs: The newest, in order; none where only the numbers changed.
        """
        cpu = time.thread_time() - self._cpu_before + self._sampling.cpu_seconds
        self._tally.set(CPU, cpu + (self._server.cpu_seconds if self._server is not None else 0.0))
        environment = ENVIRONMENT.family(dict.fromkeys(self._environment.items(), 1.0))
        families = joined([*self._tally.families(), *self._sampling.families, environment])
        outputs = self._reference_outputs()
        with self._snapshot:
            self._ring.extend(runs)
            self._families, self._outputs = families, outputs

    def report(self, since: str) -> bytes:
        """The report for a caller with this cursor, as JSON.

        Args:
            since: The caller's cursor; an empty or unknown one begins with the oldest run that is kept.
        """
        with self._snapshot:
            runs, cursor, lost = self._ring.since(since)
            families, environment, outputs = self._families, self._environment, self._outputs
        boot_id, started_at = self._boot_id, self._started_at
        return encode(
            Report(SCHEMA_VERSION, boot_id, started_at, cursor, lost, families, environment, runs, outputs)
        )

    def stop_serving(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    def close(self, seconds: float) -> bool:
        """Close the journal; whether that was within ``seconds``.

        Args:
            seconds: How long to wait for what is being written.
        """
        return self._journal is None or self._journal.close(seconds)

    def _open_journal(self, path: Path, max_bytes: int) -> list[Run]:
        """The runs that earlier probes wrote there last."""
        if why := unwritable(path):
            raise UsageError(f"journal: {why}")
        if max_bytes < _LEAST_JOURNAL_BYTES:
            raise UsageError(f"journal_bytes: {max_bytes} is too little; give {_LEAST_JOURNAL_BYTES} or more")
        self._journal = Journal(path, self._boot_id, max_bytes)
        try:
            return last_runs(path, _RING_RUNS // 2)
        except OSError as error:
            raise UsageError(f"journal: `{path}` cannot be read ({error.strerror}); fix its rights") from None

    def _reference_outputs(self) -> dict[str, tuple[float, ...]]:
        return {c.name: c.output for c in self._canaries if c.output is not None}
