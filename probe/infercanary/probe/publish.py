"""Publishes numbers, environment and runs to the exporter in one consistent answer, and writes runs to the journal."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
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
    "Unix time at which the probe started.",
    reading="`changes(…[1h])` counts restarts, after which all counters of the probe start again.",
)
CPU = Metric(
    "infercanary_probe_cpu_seconds_total",
    "counter",
    "CPU time of the probe itself (loop, samplers and server), without the canaries' own work.",
    reading="`rate(…[5m])` is a small fraction of a core. A rise means that a sampler became expensive.",
)

_RING_RUNS = 2048


class Publisher:
    """Collects the probe's results, and answers the exporter from a snapshot.

    :meth:`report` may be called from any thread, all other methods only from the probe's own thread.

    Args:
        tally: Metrics of the canaries and of the probe itself.
        sampling: Metrics of the samplers.
        canaries: Source of the environments and reference outputs.
        controls: Source of one component of the environment; None without controls.
        journal: Path of the journal, with runs of earlier probes of this container; None without a journal.

    Raises:
        UsageError: The journal cannot be written or read.
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
        """Address of the report; empty before :meth:`serve`."""
        self._tally = tally
        self._sampling = sampling
        self._canaries = canaries
        self._controls = controls
        self._boot_id = uuid.uuid4().hex
        self._started_at = time.time()
        self._journal: Journal | None = None
        earlier = []
        if journal is not None:
            path = Path(journal)
            self._journal = Journal(path, self._boot_id)
            if why := unwritable(path):
                raise UsageError(f"journal: {why}")
            try:
                earlier = last_runs(path, _RING_RUNS // 2)
            except OSError as error:
                raise UsageError(
                    f"journal: `{path}` cannot be read ({error.strerror}); fix the file's permissions"
                ) from None
        self._last_of = {run.boot_id: run.started_at for run in earlier}
        self._ring = RunBuffer(self._boot_id, _RING_RUNS, earlier)
        self._engines: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._families: tuple[Family, ...] = ()
        self._encoded: msgspec.Raw | None = None  # the families as JSON, encoded once for all requests
        self._outputs: dict[str, tuple[float, ...]] = {}
        self._snapshot = threading.Lock()
        self._server: ReportServer | None = None
        self._cpu_before = 0.0
        tally.set(START, self._started_at)

    def starts_within(self, seconds: float) -> int:
        """Return the number of earlier probes of this container with a run in the last ``seconds``, according to the
        journal.
        """
        return sum(self._started_at - last <= seconds for last in self._last_of.values())

    def serve(self, listen: str, access: Access) -> None:
        """Start answering requests.

        Args:
            listen: See :func:`infercanary.contract.address.listen_place`.
            access: TLS and token.

        Raises:
            UsageError: The address cannot be used.
        """
        self._cpu_before = time.thread_time()
        self.publish()
        self._server = ReportServer(listen, self.report, access)
        self.address = self._server.address

    def observe_environment(self, *, final: bool = False) -> None:
        """Combine the canaries' environments. With ``final``, do so even if no target has reported an environment.

        If canaries differ in a component (for example a CPU and a GPU), the component has all their values.
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

    def publish(self, runs: Sequence[Run] = ()) -> None:
        """Replace the snapshot: add ``runs`` (the newest, in order), and update the numbers in the same step.

        Runs are written to the journal only while serving, because ``--once`` may run beside a serving probe.
        """
        outputs = {c.name: c.output for c in self._canaries if c.output is not None}
        if self._journal is not None and self._server is not None:
            self._journal.append(runs, self._environment, outputs)
            self._tally.set(JOURNAL_ERRORS, self._journal.lost)
        cpu = time.thread_time() - self._cpu_before + self._sampling.cpu_seconds
        self._tally.set(CPU, cpu + (self._server.cpu_seconds if self._server is not None else 0.0))
        environment = ENVIRONMENT.family(dict.fromkeys(self._environment.items(), 1.0))
        families = joined([*self._tally.families(), *self._sampling.families, environment])
        with self._snapshot:
            self._ring.extend(runs)
            self._families, self._encoded, self._outputs = families, None, outputs

    def report(self, since: str) -> bytes:
        """Return the report as JSON, with runs after ``since``. For an unknown cursor, begin with the oldest kept
        run.
        """
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
        if self._server is not None:
            self._server.close()

    def close(self, seconds: float) -> bool:
        """Close the journal. True if the journal was closed within ``seconds``."""
        return self._journal is None or self._journal.close(seconds)
