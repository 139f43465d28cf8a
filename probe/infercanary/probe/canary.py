"""Canary: a timed target with its state, retries and metrics."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import perf_counter

from infercanary.command.settings import UsageError
from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import COMPUTE_THREADS, DEVICE_COMPONENTS, CanaryState, Outcome
from infercanary.probe.canary_metrics import CanaryMetrics
from infercanary.probe.complaint import Complaint
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.memory import Ended
from infercanary.probe.output import fingerprint
from infercanary.probe.pool import NoTurn, Pool
from infercanary.probe.result import Opened, RunResult
from infercanary.probe.samplers.threads import Place
from infercanary.probe.start import since_start
from infercanary.probe.steady import WINDOW, is_steady
from infercanary.probe.targets import Failure, NoCuda, Target, is_reason
from infercanary.probe.targets.libraries import MISFITS, misfit
from infercanary.probe.timed_target import TimedTarget
from infercanary.probe.watcher import Memory

log = logging.getLogger("infercanary.probe")

# Shortest and longest pause in seconds. The pause grows with each failure in a row.
_REOPEN_SECONDS = 60.0, 3600.0
_PUT_OFF_SECONDS = 5.0, 600.0  # short pause after postponed runs, because such runs take no memory
_PAUSES: Mapping[str, tuple[float, float]] = {
    "out_of_memory": (60.0, 600.0),  # long pause, because each attempt takes memory
    "rate_limited": (1.0, 60.0),
}
# maximum share of the time for retries of open(): each retry may load a model
_REOPEN_DUTY = 0.01
# failures without a loaded model, because open() waited for a server
_ABSENT = ("unreachable", "not_ready", "timed_out")
_WAITED = 1.5  # a run with a higher ratio of cost to busy time waited for its turn
_TAKE_SECONDS = 1.0


class Canary(TimedTarget):
    """A timed target with its state: opens the target, retries after failures, and runs rounds without raising.

    Args:
        open_timeout: Seconds that opening and warm-up may take.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        tally: Tally,
        timeout: float,
        open_timeout: float,
        pool: Pool | None = None,
        sweep: object = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(name, target, timeout, pool, sweep, memory)
        self.state: CanaryState = "opening"
        self.is_open = False
        self.environment: dict[str, str] = {}
        self.device = str(target.device) if str(target.device).startswith("cuda") else "cpu"
        """Device of the target and of the controls after its runs: ``cpu`` or ``cuda[:N]``."""
        self.output: tuple[float, ...] | None = None
        """Fingerprint of the first steady output since the start; empty if the output has no numbers."""
        self.crowding = 1.0
        """Cost of the last run divided by its busy time; above 1 if the run waited in the server's pool."""
        self.last_tags: tuple[str, ...] = ()
        """Tags of the last run."""
        self.place: Place | None = None
        """Place of the last run's thread; None if that run failed."""
        self.mistake: UsageError | None = None
        """Mistake in the settings that the user must correct before the target can be opened."""
        self._metrics = CanaryMetrics(name, tally, target.reasons)
        self._open_timeout = open_timeout
        self._opening_since: float | None = None
        self._retry_at = 0.0
        self._rest = 0.0  # seconds until the next run; grows with each failure that needs a pause
        self._unfit = ""  # reason why the engine's libraries do not fit, if the target gives no reason
        self._costs: deque[float] = deque(maxlen=5)  # cost per repeat of the last runs, in seconds
        # wall seconds of each warm-up repeat; None once the canary is steady
        self._unsteady: deque[float] | None = deque(maxlen=8 * WINDOW)
        self._reference: list[float] | None = None
        self._to_close: Ended | None = None  # set while a hanging run delays the closing of the target
        # failed result that belongs to no run, for the next call of failed()
        self._failed: RunResult | None = None
        self._complaint = Complaint(f"canary {name}")
        self._metrics.state(self.state)

    @property
    def repeat_cost(self) -> float:
        """Cost per repeat in seconds: the median of several runs, because contention may slow a single run."""
        return statistics.median(self._costs) if self._costs else 0.0

    @property
    def is_fit(self) -> bool:
        """True if the canary is open and its last run succeeded."""
        return self.is_open and self.state in ("warming", "steady")

    @property
    def gives_way(self) -> bool:
        """True if the last run queued behind requests or another GPU user, which also queue behind the canary."""
        return self.state == "busy" or (self.pool is not None and self.crowding > _WAITED)

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """CUDA's numbers of the canary's GPUs; empty on a CPU, None if unknown (as for a server's GPUs)."""
        if not self.target.device:
            return None
        if self.device == "cpu" or self.cuda_missing:  # on the CPU, also after a fallback of the engine
            return ()
        return (int(self.device.partition(":")[2] or 0),)

    @property
    def cuda_missing(self) -> str:
        """Reason why a canary for CUDA runs without CUDA; otherwise empty."""
        return str(self.target.cuda_missing) or self._unfit

    @property
    def is_opening(self) -> bool:
        """True while the target is loaded or warmed up, which slows other canaries' runs."""
        return self._opening_since is not None

    def open(self, seconds: float) -> None:
        """Open the target in its thread, and wait at most ``seconds``. A later call continues the wait.

        Afterwards the canary is open, ``failing``, ``out_of_memory``, or still ``opening``. After a failure, calls do
        nothing for at least a minute (after a rate limit, a second). An attempt that exceeds its deadline continues,
        and its result still counts.
        """
        now = perf_counter()
        if self.is_open or (self._opening_since is None and now < self._retry_at):
            return
        self.mistake = None
        try:
            if self._opening_since is None:
                self._worker.begin(self._open)
                self._opening_since, self._hang_reported = now, False
            left = self._opening_since + self._open_timeout - now
            opened: Opened = self._worker.result(min(seconds, max(0.0, left)))
        except (Interrupted, StillBusy):
            return
        except DeadlineExceeded:
            if self._opening_since is not None and perf_counter() >= self._opening_since + self._open_timeout:
                self._report_hang()
                self._fail(f"not open after {self._open_timeout:g} s (open_timeout_seconds); still waiting")
            return
        except Exception as error:  # the user's KeyboardInterrupt passes through
            self._refuse(error)
        else:
            self._take(opened)
        if self.device != "cpu":
            self._metrics.cuda(self.cuda_missing)
        self._opening_since = None

    def failed(self) -> RunResult | None:
        """Return the result of the last failed opening or postponed run, but only once; None if there is none."""
        failed, self._failed = self._failed, None
        return failed

    def put_off(self, why: str) -> None:
        """Postpone the run for lack of memory. Keep the first reason, because the reason's sizes change each time."""
        now = perf_counter()
        if now < self._retry_at:
            return
        self._retry_at = now + self._longer_pause(*_PUT_OFF_SECONDS)
        detail = self._complaint.text if self.state == "out_of_memory" else why
        self._count_failed(RunResult("raised", detail, reason="out_of_memory"))

    def close_for_memory(self, ended: Ended) -> None:
        """Close the target to free memory for the server. A later attempt opens the target again."""
        if self.is_opening:
            self.open(_TAKE_SECONDS)  # the target's thread may have opened the target just now
        self._to_close = ended if self.is_open else None
        if self._to_close is None:
            return
        try:
            # closing may still be in progress, but a closed target must not run
            with suppress(DeadlineExceeded, Interrupted):
                self._worker.call(self._release, self.timeout)
        except (StillBusy, RuntimeError):  # no thread is free: a later call tries again
            return
        self.is_open, self._to_close = False, None
        self._retry_at = perf_counter() + max(0.0, ended.retry_at - time.monotonic())
        self._count_failed(RunResult("raised", ended.why, reason="out_of_memory"))

    def round(self, repeats: int) -> RunResult | None:
        """Run a round of at most ``repeats`` repeats. The target's errors are not raised.

        Returns:
            None if the probe stops, the target is closed, or a pause after a failure is not over.
        """
        if self._to_close is not None:
            self.close_for_memory(self._to_close)
        begin = perf_counter()
        if begin < self._retry_at or not self.is_open:
            return None
        try:
            result = self._check(self._run(repeats))
        except Interrupted:
            return None
        except (StillBusy, NoTurn) as error:  # a skipped run takes no time
            result = _describe(error)
        except Exception as error:  # the user's KeyboardInterrupt passes through
            result = self._charge(_describe(error), begin)
            self._retry_at = perf_counter() + self._pause_after(error)
        else:
            result = self._charge(result, begin)
        self.place = result.place
        self._account(result)
        return result

    def count(self, tags: tuple[str, ...], measures: Mapping[str, float], eligible: bool) -> None:
        """Count the tags and measures of the last round. ``eligible`` means that the round can be used to compare
        images.
        """
        self.last_tags = tags
        self._metrics.found(tags, measures, eligible)

    def close(self, seconds: float) -> bool:
        """Close the target as soon as no run uses it. True if the target was closed within ``seconds``."""
        ended = self._worker.stop(seconds, self._close if self.is_open or self.is_opening else None)
        if not ended:
            log.warning("canary %s: still hanging; its thread ends with the process", self.name)
        return ended

    def _take(self, opened: Opened) -> None:
        self._metrics.opened(opened)
        self.environment = opened.environment
        self.compute_threads = _threads(opened.environment, COMPUTE_THREADS)
        self._costs.append(statistics.median(opened.latencies or [opened.first_run]))
        self.is_open, self._unfit, self._retry_at = True, "", 0.0
        self._settle(opened.latencies, opened.aside)
        self._recover()
        if self.device != "cpu" and self.cuda_missing:
            log.warning("canary %s: runs on the CPU instead of CUDA: %s", self.name, self.cuda_missing)

    def _refuse(self, error: Exception) -> None:
        """Record why the target could not be opened, and plan the next attempt."""
        result = _describe(error)
        reason = result.reason
        if isinstance(error, NoCuda):
            reason = self.cuda_missing if is_reason(self.cuda_missing) else None
        elif not isinstance(error, Failure) and (unfit := misfit(result.detail)) is not None:
            # Incompatible libraries are a failure, not a mistake in the settings, even if a model's module imports
            # them.
            reason = unfit.reason
            result = result._replace(detail=f"{result.detail}; {unfit.fix}")
        elif isinstance(error, UsageError):
            self.mistake = error  # the caller reports the first mistake, and the command ends
        now, pause = perf_counter(), self._pause_after(error)
        if reason != "rate_limited":
            least, longest = _REOPEN_SECONDS
            took = now - (self._opening_since or now) if reason not in _ABSENT else 0.0
            pause = min(longest, max(least, pause, took / _REOPEN_DUTY))
        self._retry_at = now + pause
        self._unfit = reason if reason in MISFITS else ""
        # Report the versions that do not fit together, but no device: the canary does not run.
        self.environment = {
            name: version for name, version in self._unopened.items() if name not in DEVICE_COMPONENTS
        }
        is_reported = self.mistake is not None and self.state == "opening"
        self._count_failed(
            RunResult("raised", f"cannot be opened: {result.detail}", reason=reason),
            logging.DEBUG if is_reported else logging.ERROR,
        )

    def _check(self, result: RunResult) -> RunResult:
        """Check the output, and keep the first steady output with numbers as the reference for later outputs."""
        if not all(map(math.isfinite, result.values)):
            return result._replace(outcome="not_finite", detail="the output contains NaN or infinity")
        if self._reference is not None:
            return result._replace(output_error=relative_error(result.values, self._reference))
        if not result.values:
            if self.output is None:
                log.warning(
                    "canary %s: output not checked: the target reads no numbers from the output", self.name
                )
            self.output = ()
        elif self.state == "steady":
            self._reference, self.output = list(result.values), fingerprint(result.values)
        return result

    def _account(self, result: RunResult) -> None:
        if result.outcome == "ok":
            self._rest = 0.0
        self._skipped = self._skipped + 1 if result.outcome == "busy" else 0
        if result.latencies:
            self._costs.append(result.cost / len(result.latencies))
            self.crowding = result.cost / result.busy if result.busy else 1.0
            self._settle(result.latencies)
        self._metrics.run(result)
        if result.outcome == "ok":
            self._recover()
        else:
            self._fail(f"{result.outcome}: {result.detail}", _state_of(result))

    def _count_failed(self, result: RunResult, level: int = logging.ERROR) -> None:
        """Count a missed run, and keep its result for :meth:`failed`."""
        self._failed = result
        self._metrics.run(result)
        self._fail(result.detail, _state_of(result), level)

    def _pause_after(self, error: Exception) -> float:
        """Return the pause in seconds after this failure: at least the time that a server requests; 0 for no pause."""
        if not isinstance(error, Failure) or error.reason not in _PAUSES:
            return 0.0
        # Lengthen the pause even if the server requests a time, because that time may apply to a single request.
        return max(self._longer_pause(*_PAUSES[error.reason]), error.retry_after or 0.0)

    def _longer_pause(self, least: float, longest: float) -> float:
        self._rest = min(longest, max(least, 2 * self._rest))
        return self._rest

    def _settle(self, latencies: Iterable[float], aside: float = 0.0) -> None:
        """Set the time to steady when the canary becomes steady. Scheduled runs continue an unfinished warm-up."""
        if self._unsteady is None:
            return
        self._unsteady.extend(latencies)
        if is_steady(list(self._unsteady)):
            self._unsteady = None
            if (seconds := since_start()) is not None:
                self._metrics.steady(max(0.0, seconds - aside))

    def _recover(self) -> None:
        self._complaint.set("")
        self._enter("steady" if self._unsteady is None else "warming")

    def _fail(self, complaint: str, state: CanaryState = "failing", level: int = logging.ERROR) -> None:
        self._enter(state)
        self._complaint.set(complaint, level)

    def _enter(self, state: CanaryState) -> None:
        self.state = state
        self._metrics.state(state)


def _describe(error: Exception) -> RunResult:
    reason = error.reason if isinstance(error, Failure) else None
    outcome: Outcome = "raised"
    if isinstance(error, NoTurn):
        outcome = "busy"
    elif isinstance(error, (StillBusy, DeadlineExceeded)) or reason == "timed_out":
        outcome = "timed_out"
    is_known = outcome != "raised" or isinstance(error, (Failure, UsageError))
    return RunResult(outcome, str(error) if is_known else one_line(error), reason=reason)


def _state_of(result: RunResult) -> CanaryState:
    if result.outcome == "busy":
        return "busy"
    return "out_of_memory" if result.reason == "out_of_memory" else "failing"


def _threads(environment: Mapping[str, str], components: Iterable[str]) -> int:
    """Return the number of threads from the first known component of ``components``; 0 if none is known."""
    text = next(filter(None, (environment.get(component, "") for component in components)), "")
    return int(text) if text.isascii() and text.isdigit() else 0
