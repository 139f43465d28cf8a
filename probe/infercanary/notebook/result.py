"""Result of measured runs or of runs from a file. It has numbers, a table for a notebook, and a journal."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from infercanary.command.extras import needed_by
from infercanary.command.settings import UsageError
from infercanary.contract.journal import JournalEntry, encode, environment_id
from infercanary.contract.report import Run
from infercanary.contract.vocabulary import labelled_tags
from infercanary.render.document import Document, Fact
from infercanary.render.text import render_text
from infercanary.render.units import count, quantities, value

if TYPE_CHECKING:
    from infercanary.compare.notebook import ComparedResults

_SHOWN = ("torch", "onnxruntime", "numpy", "cuda", "driver", "gpu", "cpu", "python")


@dataclass(frozen=True)
class TimingResult:
    """Runs of one canary in one process. Times are seconds.

    Args:
        boot_id: Id of the probe that made the runs.
        runs: Runs in order of time, with their repeats.
        environment: Version or setting by component.
        outputs: Fingerprint of the output by canary.
        process: Id of the process that made the runs; 0 for runs from a file.
    """

    canary: str
    boot_id: str
    runs: Sequence[Run]
    environment: Mapping[str, str]
    outputs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    process: int = 0

    @property
    def medians(self) -> list[float]:
        return [median(run.latencies) for run in self.runs if run.latencies]

    @property
    def median(self) -> float:
        """Median of the runs' medians, in seconds."""
        return median(self.medians)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the median latency, with a level of at least 95 %; None for fewer than 8 runs.

        The interval assumes independent runs, but no distribution. For a verdict, use `compare`.
        """
        ordered = sorted(self.medians)
        # Ranks from the binomial distribution: two standard deviations cover 95 % for every number of runs.
        rank = math.floor(len(ordered) / 2 - math.sqrt(len(ordered)))
        return (ordered[rank - 1], ordered[-rank]) if rank >= 1 else None

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds of each phase over the runs."""
        names = dict.fromkeys(name for run in self.runs for name in run.phases)
        return {name: median(r.phases[name] for r in self.runs if name in r.phases) for name in names}

    @property
    def tags(self) -> dict[str, float]:
        """Share of the runs that have each tag, such as ``cpu_wait_outside``."""
        counts = Counter(tag for run in self.runs for tag in labelled_tags(run.tags, run.clock_reason))
        return {tag: count / len(self.runs) for tag, count in counts.most_common()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a journal for ``infercanary compare`` and :func:`infercanary.read`; return the journal's path.

        Raises:
            UsageError: The file exists already, or cannot be written.
        """
        environment = environment_id(self.environment)
        first = JournalEntry(
            self.boot_id, environment, components=dict(self.environment), outputs=dict(self.outputs)
        )
        path = Path(path)
        try:
            with path.open("xb") as file:
                file.write(encode(first))
                file.writelines(encode(JournalEntry(self.boot_id, environment, run=run)) for run in self.runs)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror}); give another path") from None
        return path

    def compare(self, candidate: TimingResult, *, restart_sd: float | None = None) -> ComparedResults:
        """Compare another result with this result as the baseline.

        Args:
            candidate: The new result.
            restart_sd: Restart SD as a ratio. Default: 0 if one process measured both results; otherwise the judge
                estimates it.

        Returns:
            The verdict with its sentence; a notebook also shows charts.

        Raises:
            UsageError: The extra `exporter` is missing, or the results have no canary in common.
        """
        with needed_by("compare", "exporter"):
            from infercanary.compare.notebook import answer
        if restart_sd is None and self.process and self.process == candidate.process:
            restart_sd = 0.0
        # A run from this process belongs to no image, unlike a run from a probe's journal.
        subject = "code" if self.process or candidate.process else "image"
        with tempfile.TemporaryDirectory(prefix="infercanary-") as folder:
            old, new = self.save(Path(folder) / "old"), candidate.save(Path(folder) / "new")
            return answer(old, new, (self.canary, candidate.canary), restart_sd, subject)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each run: time (UTC), median, minimum, maximum, phases in
        seconds, tags.

        Raises:
            UsageError: pandas is not installed.
        """
        with needed_by("to_pandas", "notebook"):
            import pandas
        rows = [
            {
                "started_at": pandas.to_datetime(run.started_at, unit="s", utc=True),
                "canary": run.canary,
                "outcome": run.outcome,
                "median": median(run.latencies) if run.latencies else None,
                "min": min(run.latencies, default=None),
                "max": max(run.latencies, default=None),
                **{f"phase_{name}": seconds for name, seconds in run.phases.items()},
                "tags": ", ".join(labelled_tags(run.tags, run.clock_reason)),
                "boot_id": run.boot_id or self.boot_id,
            }
            for run in self.runs
        ]
        return pandas.DataFrame(rows)

    @property
    def document(self) -> Document:
        """Return the result as a document for the renderers."""
        repeats = sum(len(run.latencies) for run in self.runs)
        latency = f"median {value(self.median, 's')}" if self.medians else "no median"
        environment = (f"{name} {self.environment[name]}" for name in _SHOWN if name in self.environment)
        return Document(
            name=self.canary,
            sentence=f"{latency}, {count(len(self.runs), 'run')}, {count(repeats, 'repeat')} in all",
            facts=[
                Fact("interval", " to ".join(value(end, "s") for end in self.interval or ())),
                Fact("phases", quantities(self.phases, "s")),
                Fact("tags", quantities(self.tags, "ratio")),
                Fact("environment", ", ".join(environment)),
            ],
        )

    def __str__(self) -> str:
        return render_text(self.document).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        try:
            from infercanary.pages.html import environment
        except ModuleNotFoundError:  # without the extra `exporter`, the notebook shows text
            return None
        parts: Any = environment().get_template("document.html").module
        return str(parts.document(self.document))
