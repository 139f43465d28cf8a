"""One turn: start an arm, read its report until there are enough runs, and end the arm."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from infercanary.ab.neighbours import is_quiet
from infercanary.client.accept import read
from infercanary.client.fetch import PollError, fetch
from infercanary.command.interruption import Interruption
from infercanary.contract.report import Report, Run
from infercanary.contract.text import printable, shortened
from infercanary.contract.vocabulary import COLD_START, COLD_START_METRIC, FAILING
from infercanary.judge.identity import Digests
from infercanary.judge.model import Generation, Sample, Start, kept
from infercanary.judge.origin import NOWHERE, Origin
from infercanary.judge.profiles import merged, of_runs

_ASK_SECONDS = 3.0
_FIRST_PAUSE, _PAUSE = 0.2, 2.0
_MOST_RUNS = 3  # with contended runs: multiple of the needed runs to wait for
_DETAIL = 300  # characters
_SWEEP_SOON = 120.0  # seconds; longest interval of an awaited sweep
_SWEEP_PATIENCE = 4.0  # time to await a sweep after the first run, in intervals of the sweep

_STATE, _FAILURE = "infercanary_canary_state", "infercanary_canary_failure_info"
_LOADING = "unreachable", "not_ready"  # failure reasons while a server loads its model
_SWEEP_INTERVAL = "infercanary_sweep_interval_seconds"
_SWEPT_AT = "infercanary_sweep_timestamp_seconds"


class StartFailed(Exception):
    """A start gave no runs; the text has the reason."""


class OutOfTime(Exception):
    """The experiment's time budget is used up."""


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One side of an experiment. ``mean`` and ``sd`` are computed from the counted runs, in seconds."""

    name: str
    host: str = ""
    """Name of the host that runs the arm."""
    image_id: str = ""
    digests: Digests = Digests()
    image_bytes: int | None = None
    origin: Origin = NOWHERE
    settings: Mapping[str, str] = {}
    """Settings that differ from the other side: value by key of `--a` and `--b`."""
    starts: int = 0
    runs: int = 0
    mean: float | None = None
    sd: float | None = None
    cold_start: dict[str, float] = {}
    """Median duration of each step of a deployment, seconds."""
    swing: dict[str, float] = {}
    """Half of the range of each step's durations, divided by their median: 0.05 is ± 5 %."""


class Arm(Protocol):
    """One of the two sides of an experiment: an image, or an interpreter of this host.

    Only one start of an arm exists at a time.
    """

    summary: ArmSummary

    def start(self) -> Sequence[str]:
        """Start the arm. The caller always calls :meth:`end` afterwards.

        Returns:
            Possible addresses of its probe, the most likely first.

        Raises:
            StartFailed: The arm did not start.
        """
        ...

    def ended(self) -> str:
        """Return the reason why the start ended; empty while it runs."""
        ...

    def last_words(self) -> str:
        """Return the last line of the start's log; empty if the log is empty."""
        ...

    def end(self) -> None:
        """Stop and remove the start, if it exists."""
        ...


class Turn(NamedTuple):
    """Result of one start."""

    starts: Mapping[str, Start]
    """Settled runs by canary, in order of time."""
    steps: Mapping[str, Mapping[str, float]]
    """Seconds by canary and step of a deployment: the start, the time from the start request to the first answered
    inference, and the steps of a cold start.
    """
    seconds: float
    """Seconds of the whole turn."""


class Plan(NamedTuple):
    """Limits of an experiment.

    Each turn needs ``runs`` runs of ``canary``, or of every canary if ``canary`` is empty.
    """

    restarts: int
    """Maximum number of starts of each side."""
    runs: int
    budget: float
    """Duration limit of the experiment, seconds."""
    start_timeout: float
    """Time limit in seconds, for the first run and between two consecutive runs."""
    canary: str = ""


def last_line(text: bytes) -> str:
    """Return the last line that is not blank; empty if every line is blank."""
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


@dataclass
class TurnReader:
    """Runs one turn: starts an arm, and reads its reports until there are enough runs.

    Args:
        arm: The arm to start.
        plan: Limits of the experiment, such as the number of needed runs.
        deadline: Time at which the reader gives up; monotonic clock, seconds.
        interruption: Ends the turn after a signal.
    """

    arm: Arm
    plan: Plan
    deadline: float
    interruption: Interruption

    def __post_init__(self) -> None:
        # ``_progressed`` is the time of the last steady run.
        self._begin = self._progressed = time.monotonic()
        self._last: Report | None = None
        self._why = "nothing answers"
        self._runs: dict[str, list[Run]] = defaultdict(list)
        self._steps: dict[str, dict[str, float]] = defaultdict(dict)
        self._good = 0

    def take(self) -> Turn:
        """Run the turn, and return its result. The arm's start ends in any case.

        Raises:
            StartFailed: The start gave no runs.
            OutOfTime: The deadline has passed.
            Interrupted: A signal came.
        """
        try:
            self._urls = self.arm.start()
            self._start = time.monotonic() - self._begin
            while not self._is_done():
                self.interruption.pause(self._pause())
            return self._turn()
        finally:
            self.arm.end()

    def _is_done(self) -> bool:
        if time.monotonic() >= self.deadline:
            raise OutOfTime
        self._ask()
        if self._has_enough():
            return True
        if why := self.arm.ended():
            raise self._failed(why)
        if time.monotonic() - self._progressed > self.plan.start_timeout:
            missing = "no steady run" if self._last else f"no report ({self._why})"
            why = next((runs[-1].detail for runs in self._runs.values() if runs), "")
            raise self._failed(f"{missing} within {self.plan.start_timeout:g} s (--start-timeout)", why)
        return False

    def _failed(self, why: str, detail: str = "") -> StartFailed:
        """Return an error. A text from an untrusted container is made safe for a terminal."""
        detail = shortened(printable(detail or self.arm.last_words()), _DETAIL)
        return StartFailed(f"{why}: {detail}" if detail else why)

    def _ask(self) -> None:
        for url in self._urls:
            try:
                cursor = self._last.cursor if self._last else ""
                received, _ = read(asyncio.run(fetch(url, cursor, _ASK_SECONDS)))
            except PollError as error:
                self._why = f"{error.reason.replace('_', ' ')}: {error}"
                continue
            if any(self._runs.values()) and self._last and self._last.boot_id != received.boot_id:
                raise self._failed("the server ended and restarted during its runs")
            self._last, self._urls = received, [url]
            took = time.monotonic() - self._begin
            for (canary, step), seconds in self._points(COLD_START_METRIC).items():
                if step == "warm_up":
                    # The probe reports the first inference and the later warm-up together, so subtract the warm-up.
                    self._steps[canary].setdefault("first_answer", max(self._start, took - seconds))
            for run in self._last.runs:
                if not run.boot_id:
                    self._runs[run.canary].append(run)
            return

    def _points(self, name: str, labels: int = 2) -> dict[tuple[str, ...], float]:
        """Return a metric's values in the last report by label values. Only points with ``labels`` labels count."""
        return {
            point.labels: point.value
            for family in (self._last.families if self._last else ())
            if family.name == name
            for point in family.points
            if isinstance(point.value, (int, float)) and len(point.labels) == labels
        }

    def _settled(self) -> dict[str, list[Sample]]:
        """Return the settled runs of each canary that the turn needs."""
        names = [*dict.fromkeys(canary for canary, _ in self._points(_STATE))]
        if names and self.plan.canary:
            if self.plan.canary not in names:
                raise StartFailed(f"the probe has no canary `{self.plan.canary}`; it has {', '.join(names)}")
            names = [self.plan.canary]
        return {name: [run for run in map(kept, self._runs[name]) if run.is_settled] for name in names}

    def _has_enough(self) -> bool:
        states, settled, runs = self._points(_STATE), self._settled(), self.plan.runs
        loading = {name for name, reason, _ in self._points(_FAILURE, 3) if reason in _LOADING}
        for name, samples in settled.items():
            if self._runs[name] and not samples and states.get((name, FAILING)) and name not in loading:
                last = self._runs[name][-1]
                raise self._failed(f"canary {name} fails", last.detail or last.outcome)
        # The slowest canary measures progress: other canaries may hide a hang.
        if (slowest := min(map(len, settled.values()), default=0)) > self._good:
            self._good, self._progressed = slowest, time.monotonic()
        # Wait for enough uncontended runs, but for at most ``_MOST_RUNS`` times as many runs of any kind.
        return slowest >= runs and not any(
            (len(samples) < _MOST_RUNS * runs and sum(map(is_quiet, samples)) < runs)
            or self._awaits_sweep(name, samples)
            for name, samples in settled.items()
        )

    def _awaits_sweep(self, canary: str, runs: Sequence[Sample]) -> bool:
        """True if a sweep of the canary is due soon. The next run after a sweep carries the sweep's measures."""
        interval = self._points(_SWEEP_INTERVAL, 1).get((canary,), math.inf)
        swept_at = self._points(_SWEPT_AT, 1).get((canary,), math.inf)
        latest = runs[0].started_at + _SWEEP_PATIENCE * interval
        return 0 < interval <= _SWEEP_SOON and runs[-1].started_at <= min(swept_at, latest)

    def _pause(self) -> float:
        """Return the seconds until the next request.

        Each request slows the probe a little, so requests are rare. The pause limits the precision of ``first_answer``,
        so the pause is short while a canary opens.
        """
        states = self._points(_STATE)
        is_opening = any(on for (_, state), on in states.items() if state == "opening")
        return _PAUSE if states and not is_opening else _FIRST_PAUSE

    def _turn(self) -> Turn:
        assert self._last is not None
        points, settled, cold = self._points(COLD_START_METRIC), self._settled(), {}
        for name in settled:
            cold[name] = {step: points[name, step] for step in COLD_START if (name, step) in points}
            self._steps[name] |= {"start": self._start, **cold[name]}
        report = self._last
        generation = Generation(
            service="",
            container="",
            boot_id=report.boot_id,
            started_at=report.started_at,
            environment=report.environment,
            outputs=report.outputs,
            profiles=merged({}, of_runs(run for runs in self._runs.values() for run in runs)),
            cold_start=cold,
        )
        starts = {name: Start(generation, samples) for name, samples in settled.items()}
        return Turn(starts, self._steps, time.monotonic() - self._begin)
