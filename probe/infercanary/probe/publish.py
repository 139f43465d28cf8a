"""What the exporter gets: the numbers, the environment and the runs, as one consistent answer, and in the journal."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import msgspec

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
from infercanary.probe.run_buffer import RunBuffer
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


class Publisher:
    """Collects what the probe knows, and answers the exporter from a snapshot of it.

    :meth:`report` may be called from any thread, all other methods from the probe's own.

    Args:
        tally: Metrics of the canaries and of the probe itself.
        sampling: Metrics of the samplers.
        canaries: Their environments and reference outputs are reported.
        controls: Their component of the environment is reported; None for none.
        journal: The file, with the runs that earlier probes of this container left; None for none.

    Raises:
        UsageError: The journal cannot be written or read there.
    """

    def __init__(
        self,
        tally: Tally,
        sampling: Sampling,
        canaries: Sequence[Canary],
        controls: Controls | None,
        journal: str | None,
    ) -> None:
        self.address = ""
        """Where it answers; empty before :meth:`serve`."""
        self._tally = tally
        self._sampling = sampling
        self._canaries = canaries
        self._controls = controls
        self._boot_id = uuid.uuid4().hex
        self._started_at = time.time()
        self._journal: Journal | None = None
        earlier: list[Run] = []
        if journal is not None:
            self._journal = Journal(Path(journal), self._boot_id)
            earlier = _read_journal(Path(journal))
        self._last_of = {run.boot_id: run.started_at for run in earlier}
        self._ring = RunBuffer(self._boot_id, _RING_RUNS, earlier)
        self._engines: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._families: tuple[Family, ...] = ()
        self._encoded: msgspec.Raw | None = None  # the families, once for all callers
        self._outputs: dict[str, tuple[float, ...]] = {}
        self._snapshot = threading.Lock()
        self._server: ReportServer | None = None
        self._cpu_before = 0.0
        tally.set(START, self._started_at)

    def starts_within(self, seconds: float) -> int:
        """Return how many earlier probes of this container ran so recently, as far as the journal shows."""
        return sum(self._started_at - last <= seconds for last in self._last_of.values())

    def serve(self, listen: str, access: Access) -> None:
        """Answer from now on.

        Args:
            listen: See :func:`infercanary.contract.address.listen_place`.
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
        """
        values: dict[str, set[str]] = {}
        for canary in self._canaries:
            for component, value in canary.environment.items():
                values.setdefault(component, set()).add(value)
        engines = {component: ", ".join(sorted(several)) for component, several in values.items()}
        if self._controls is not None and self._controls.made_of:
            engines[CONTROLS_MADE_OF] = self._controls.made_of
        if engines != self._engines or (final and not self._environment):
            self._engines, self._environment = engines, fingerprint(engines)

    def keep(self, runs: list[Run]) -> None:
        """Publish ``runs``, and write them to the journal where it serves: ``--once`` runs beside a probe that does."""
        if self._journal is not None and self._server is not None:
            self._journal.append(runs, self._environment, self._reference_outputs())
            self._tally.set(JOURNAL_ERRORS, self._journal.lost)
        self.publish(runs)

    def publish(self, runs: Iterable[Run] = ()) -> None:
        """Swap in a new snapshot: ``runs``, the newest in order, together with the numbers that count them."""
        cpu = time.thread_time() - self._cpu_before + self._sampling.cpu_seconds
        self._tally.set(CPU, cpu + (self._server.cpu_seconds if self._server is not None else 0.0))
        environment = ENVIRONMENT.family(dict.fromkeys(self._environment.items(), 1.0))
        families = joined([*self._tally.families(), *self._sampling.families, environment])
        outputs = self._reference_outputs()
        with self._snapshot:
            self._ring.extend(runs)
            self._families, self._encoded, self._outputs = families, None, outputs

    def report(self, since: str) -> bytes:
        """The report for a caller with this cursor, as JSON; an unknown one begins with the oldest run that is kept."""
        with self._snapshot:
            self._encoded = self._encoded or msgspec.Raw(msgspec.json.encode(self._families))
            runs, cursor, lost = self._ring.since(since)
            families, environment, outputs = self._encoded, self._environment, self._outputs
        return encode(
            Report(
                SCHEMA_VERSION, self._boot_id, self._started_at, cursor, lost, cast("tuple[Family, ...]", families),
                environment, runs, outputs,
            )
        )  # fmt: skip

    def stop_serving(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    def close(self, seconds: float) -> bool:
        """Close the journal; whether that was within ``seconds``."""
        return self._journal is None or self._journal.close(seconds)

    def _reference_outputs(self) -> dict[str, tuple[float, ...]]:
        return {c.name: c.output for c in self._canaries if c.output is not None}


def _read_journal(path: Path) -> list[Run]:
    """Return the runs that earlier probes wrote there last."""
    if why := unwritable(path):
        raise UsageError(f"journal: {why}")
    try:
        return last_runs(path, _RING_RUNS // 2)
    except OSError as error:
        raise UsageError(f"journal: `{path}` cannot be read ({error.strerror}); fix its rights") from None
