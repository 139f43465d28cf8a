"""One turn: an arm is started, its report is read until there are enough runs, and it is ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from infercanary.ab.interruption import Interruption
from infercanary.ab.neighbours import is_quiet
from infercanary.client.fetch import PollError, Received, fetch, open_session, read
from infercanary.client.limits import Limits
from infercanary.compare.recording import shown
from infercanary.contract.report import Family, Run
from infercanary.contract.vocabulary import COLD_START, COLD_START_METRIC, FAILING
from infercanary.judge.model import Generation, Sample, Start, kept
from infercanary.judge.profiles import merged, of_runs

_ASK_SECONDS = 3.0
_FIRST_PAUSE, _LEAST_PAUSE, _MOST_PAUSE = 0.2, 1.0, 5.0
_MOST_RUNS = 3  # times the runs that are needed, if some are contended
_RARE_RUNS, _RARE = 2, 0.1  # after so many times the runs with so small a share of quiet ones, all count
_UNSETTLED_RUNS = 20  # times the runs that are needed: a canary that is not steady by then never will be
_DETAIL = 300  # characters
_SWEEP_SOON = 120.0  # seconds: a sweep that is further away is not waited for
_SWEEP_PATIENCE = 2.0  # times its interval
_PASSED_OVER = 15  # times that an address is skipped after a timeout
_LIMITS = Limits()

_STATE = "infercanary_canary_state"
_INTERVAL = "infercanary_interval_seconds"
_SWEEP_INTERVAL = "infercanary_sweep_interval_seconds"
_SWEPT_AT = "infercanary_sweep_timestamp_seconds"


class StartFailed(Exception):
    """Raised for a start that gave no runs; the text says why."""


class OutOfTime(Exception):
    """Raised when the budget is used up."""


class Running(Protocol):
    """A started arm. ``urls`` are the addresses at which its probe may answer, the most likely first."""

    @property
    def urls(self) -> Sequence[str]: ...

    def ended(self) -> str:
        """Return why it has ended; empty while it runs.

        Returns:
            One line.
        """
        ...

    def last_words(self) -> str:
        """Return the last line that it logged; empty without one."""
        ...

    def end(self) -> None:
        """Stop and remove it."""
        ...


class Arm(Protocol):
    """One of the two sides of an experiment: an image, or an interpreter of this host."""

    @property
    def name(self) -> str: ...

    def start(self, number: int) -> Running:
        """Start it for turn ``number``.

        Args:
            number: Of the turn, from 1 on; names are made of it.

        Returns:
            What was started; the caller ends it.

        Raises:
            StartFailed: It did not start; another try may help.
            UsageError: It would never start.
        """
        ...


class Turn(NamedTuple):
    """The result of one start."""

    starts: Mapping[str, Start]
    """Canary → its settled runs, in order."""
    start: float
    """Seconds that Docker, or this host, took to start it."""
    answered: Mapping[str, float]
    """Canary → seconds from the request to start until the first inference was answered."""
    seconds: float
    """Seconds of the whole turn."""
    interval: float
    """Seconds between runs, as the probe reports."""


class Needed(NamedTuple):
    """When a turn has enough: so many runs of ``canary``, or of every canary where that is empty."""

    runs: int
    canary: str
    start_seconds: float
    """Seconds within which the first run must come, and each later one after the one before."""


Notify = Callable[[str], None]


def take(
    side: Arm, number: int, needed: Needed, deadline: float, interruption: Interruption, notify: Notify
) -> Turn:
    """Take one turn of ``side``. Whatever happens, what was started is ended.

    Args:
        side: The arm to start.
        number: The turn's number, for the container's name.
        needed: When there are enough runs.
        deadline: Monotonic seconds at which it gives up.
        interruption: Whether a signal came.
        notify: Is called with what is going on, in a few words.

    Returns:
        The runs of each canary, and the seconds of the turn.

    Raises:
        StartFailed: The start gave no runs.
        OutOfTime: The deadline has passed.
        ExperimentInterrupted: A signal came.
    """
    begin = time.monotonic()
    running = side.start(number)
    try:
        return _Asked(running, needed, begin, deadline, interruption, notify).turn()
    finally:
        running.end()


@dataclass
class _Asked:
    """Reads the report of one start until it has enough runs."""

    running: Running
    needed: Needed
    begin: float
    deadline: float
    interruption: Interruption
    notify: Notify

    def __post_init__(self) -> None:
        self._urls = list(self.running.urls)
        self._passed_over = dict.fromkeys(self._urls, 0)
        self._cursor = ""
        self._last: Received | None = None
        self._why = "nothing answers"
        self._runs: dict[str, list[Run]] = {}
        self._start = time.monotonic() - self.begin
        self._answered: dict[str, float] = {}
        self._good = 0
        self._progressed = self.begin  # when the last steady run came
        self._had_enough: float | None = None  # when there were enough runs, and only a sweep was missing

    def turn(self) -> Turn:
        self.notify("starting")
        pause = _FIRST_PAUSE
        while True:
            self.interruption.pause(min(pause, max(0.0, self.deadline - time.monotonic())))
            if time.monotonic() >= self.deadline:
                raise OutOfTime
            self._ask()
            if self._last is not None and self._enough(self._last):
                return self._done(self._last)
            if why := self.running.ended():
                raise StartFailed(_with(why, self.running.last_words()))
            if time.monotonic() - self._progressed > self.needed.start_seconds:
                what = f"no report ({self._why})" if self._last is None else "no steady run"
                if self._good:
                    what = "no more steady runs"
                why = f"{what} within {self.needed.start_seconds:g} s (--start-timeout)"
                raise StartFailed(_with(why, self.running.last_words()))
            pause = self._pause()

    def _ask(self) -> None:
        for url in self._urls:
            if self._passed_over[url]:
                self._passed_over[url] -= 1
                continue
            try:
                body = asyncio.run(_fetched(url, self._cursor))
                found = read(body, _LIMITS)
            except PollError as error:
                self._why = f"{error.reason.replace('_', ' ')}: {error}"
                # If Docker runs in a virtual machine, a container's own address never answers, and waiting for it would
                # count as time to the first answer.
                if error.reason == "timeout" and url != self._urls[0]:
                    self._passed_over[url] = _PASSED_OVER
                continue
            took = time.monotonic() - self.begin
            for labels, warm_up in _points(found.accepted.families, COLD_START_METRIC):
                if labels[1:] == ("warm_up",):
                    # Warm-up comes after the first inference, and the probe reports both at once.
                    self._answered.setdefault(labels[0], max(self._start, took - warm_up))
            self._urls, self._last, self._cursor = [url], found, found.report.cursor
            for run in found.accepted.runs:
                if not run.boot_id and (not self.needed.canary or run.canary == self.needed.canary):
                    self._runs.setdefault(run.canary, []).append(run)
            return

    def _canaries(self, found: Received) -> list[str]:
        names = dict.fromkeys(labels[0] for labels, _ in _points(found.accepted.families, _STATE) if labels)
        if self.needed.canary:
            if names and self.needed.canary not in names:
                raise StartFailed(f"it has no canary `{self.needed.canary}`; it has {', '.join(names)}")
            return [self.needed.canary]
        return [*names] or [*self._runs]

    def _enough(self, found: Received) -> bool:
        names = self._canaries(found)
        states = {labels for labels, on in _points(found.accepted.families, _STATE) if on}
        good = {name: self._settled(name) for name in names}
        for name in names:
            runs = self._runs.get(name, [])
            if runs and not good[name] and (name, FAILING) in states:
                raise StartFailed(_with(f"canary {name} fails", runs[-1].detail or runs[-1].outcome))
            if len(runs) >= _UNSETTLED_RUNS * self.needed.runs:
                raise StartFailed(f"canary {name} is not steady after {len(runs)} runs")
        done = {name: min(self.needed.runs, self._count(samples)) for name, samples in good.items()}
        least = min(done.values(), default=0)
        # Of the slowest canary: progress of another does not make up for one that hangs.
        if (slowest := min(map(len, good.values()), default=0)) > self._good:
            self._good, self._progressed = slowest, time.monotonic()
        if names and least >= self.needed.runs:
            now = time.monotonic()
            self._had_enough = self._had_enough or now
            if not self._is_to_be_swept(found, names, now - self._had_enough):
                return True
            self.notify("sweep")
            return False
        if any(self._runs.values()):
            self.notify(f"{least} of {self.needed.runs} runs" if least else "warming up")
        else:
            self.notify("loading")
        return False

    def _is_to_be_swept(self, found: Received, names: Sequence[str], waited: float) -> bool:
        """Return whether a sweep of a canary will soon have given its numbers, which the run after it brings."""
        swept_at = {labels[0]: at for labels, at in _points(found.accepted.families, _SWEPT_AT) if labels}
        for labels, interval in _points(found.accepted.families, _SWEEP_INTERVAL):
            name = labels[0] if labels else ""
            if name not in names or not 0 < interval <= _SWEEP_SOON or waited > _SWEEP_PATIENCE * interval:
                continue
            at = swept_at.get(name)
            if at is None or not any(sample.started_at > at for sample in self._settled(name)):
                return True
        return False

    def _settled(self, canary: str) -> list[Sample]:
        return [run for run in map(kept, self._runs.get(canary, ())) if run.is_settled]

    def _count(self, samples: Sequence[Sample]) -> int:
        """Return how many runs count: the uncontended ones, or all if those are too rare."""
        quiet = sum(map(is_quiet, samples))
        rare = len(samples) >= _RARE_RUNS * self.needed.runs and quiet < _RARE * len(samples)
        return len(samples) if rare or len(samples) >= _MOST_RUNS * self.needed.runs else quiet

    def _pause(self) -> float:
        """Return the seconds until the missing runs may be there: each request disturbs the probe a little.

        The pause while a canary opens is the error of its first answer.
        """
        if self._last is None or any(
            on and labels[1:] == ("opening",) for labels, on in _points(self._last.accepted.families, _STATE)
        ):
            return _FIRST_PAUSE
        least = min((len(runs) for runs in self._runs.values()), default=0)
        expected = (self.needed.runs - least) * self._interval(self._last)
        return min(_MOST_PAUSE, max(_LEAST_PAUSE, expected))

    def _interval(self, found: Received) -> float:
        return next((value for _, value in _points(found.accepted.families, _INTERVAL)), 1.0)

    def _done(self, found: Received) -> Turn:
        cold: dict[str, dict[str, float]] = {}
        for labels, value in _points(found.accepted.families, COLD_START_METRIC):
            if len(labels) == 2 and labels[1] in COLD_START:
                cold.setdefault(labels[0], {})[labels[1]] = value
        generation = Generation(
            service="",
            container="",
            boot_id=found.report.boot_id,
            started_at=found.report.started_at,
            environment=found.accepted.environment,
            outputs=found.accepted.outputs,
            profiles=merged({}, of_runs(run for runs in self._runs.values() for run in runs)),
            cold_start=cold,
        )
        starts = {name: Start(generation, self._settled(name)) for name in self._canaries(found)}
        seconds = time.monotonic() - self.begin
        return Turn(starts, self._start, self._answered, seconds, self._interval(found))


async def _fetched(url: str, cursor: str) -> bytes:
    async with open_session(url, _LIMITS.report_bytes) as session:
        return await fetch(session, url, cursor, _ASK_SECONDS, _LIMITS.report_bytes)


def _points(families: Sequence[Family], name: str) -> list[tuple[tuple[str, ...], float]]:
    return [
        (point.labels, point.value)
        for family in families
        if family.name == name
        for point in family.points
        if isinstance(point.value, (int, float))
    ]


def _with(why: str, detail: str) -> str:
    """Return ``why`` with ``detail``, which others wrote, made safe for a terminal."""
    return f"{why}: {shown(detail, _DETAIL)}" if detail else why
