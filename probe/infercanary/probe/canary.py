"""One canary: opened, warmed up, and run round by round. Its metrics are filled by the record."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from time import perf_counter

from infercanary.command.settings import UsageError
from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import COMPUTE_THREADS, DEVICE_COMPONENTS, CanaryState, Outcome
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.memory import Ended
from infercanary.probe.output import fingerprint
from infercanary.probe.pool import NoTurn, Pool
from infercanary.probe.record import Record
from infercanary.probe.round import Round
from infercanary.probe.runner import Opened, Repeats, Runner
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.threads import Place
from infercanary.probe.start import since_start
from infercanary.probe.steady import WINDOW, is_steady
from infercanary.probe.targets import Failure, NoCuda, Reason, Target, is_reason
from infercanary.probe.targets.libraries import MISFITS, misfit
from infercanary.probe.watcher import Memory

log = logging.getLogger("infercanary.probe")

_REOPEN_SECONDS = 60.0, 3600.0
_SHORT_SECONDS = 60.0, 600.0  # between runs while memory does not suffice: each takes some from the server
_PUT_OFF_SECONDS = 5.0, 600.0  # the same where runs are put off, which takes nothing
_RATE_SECONDS = 1.0, 60.0  # the same after a server refused requests for their rate
_REOPEN_DUTY = 0.01  # a failing open() may load a model each time: it keeps to this share of the time
_ABSENT = ("unreachable", "not_ready", "timed_out")  # nothing was loaded here: a server was waited for
_WAITED = 1.5  # what a run cost over what it took: from here on it was a good part of it that it waited
_MAX_SKIPPED = 5  # runs skipped in a row: under a load that never pauses, a contended run is better than none


class Canary:
    """Opens, warms up and times one target, whose failures do not leave it.

    The target runs in a thread of its own with a deadline: a hang costs this canary its runs, and nothing else.

    Args:
        name: The label ``canary``.
        target: What is timed.
        tally: Where its metrics are counted.
        timeout: Seconds that a run may take.
        open_timeout: Seconds that opening and warming up may take.
        pool: The server's own; None to run in a thread of the canary's own.
        container: CPU time of the container, read around each run; None for one of its own.
        sweep: What of its sweep changes what that measures; None without one.
        memory: Watches its opening, and may refuse it; None for nothing.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        tally: Tally,
        timeout: float,
        open_timeout: float,
        pool: Pool | None = None,
        container: ContainerCpu | None = None,
        sweep: object = None,
        memory: Memory | None = None,
    ) -> None:
        self.name = name
        self.state: CanaryState = "opening"
        self.is_open = False
        self.environment: dict[str, str] = {}
        self.device = str(target.device) if str(target.device).startswith("cuda") else "cpu"
        """Where the target computes: ``cpu`` or ``cuda[:N]``. The controls that follow its runs go there too."""
        self.compute_threads = 0
        """How many threads its engine computes with on the CPU; 0 where that is not known."""
        self.output: tuple[float, ...] | None = None
        """The fingerprint of the first steady output since the start; empty where outputs hold no numbers."""
        self.crowding = 1.0
        """What the last run cost, over the time that it took: above 1 where it waited in the server's pool."""
        self.last_tags: tuple[str, ...] = ()
        """Of its last run."""
        self.place: Place | None = None
        """Where the thread of the last run was; None where that failed."""
        self.mistake: UsageError | None = None
        """What the user must fix before it can be opened."""
        self._target = target
        self._is_pooled = pool is not None
        self._runner = Runner(name, target, timeout, pool, container, sweep, memory)
        self._record = Record(name, tally, target.reasons)
        self._open_timeout = open_timeout
        self._opening_since: float | None = None
        self._retry_at = 0.0
        self._limited_until = 0.0
        self._rest = 0.0  # seconds until the next run, where memory did not suffice for the last
        self._unfit = ""  # why its libraries do not fit, where the target does not say it
        self._costs: deque[float] = deque(maxlen=5)  # busy seconds per repeat, of the last runs
        self._unsteady: deque[float] | None = deque(maxlen=8 * WINDOW)  # wall seconds; None once steady
        self._reference: list[float] | None = None
        self._failed: Round | None = None  # without having run, and not taken yet
        self._skipped = 0  # runs in a row
        self._complaint = ""
        self._lack = ""  # why its runs are put off
        self._record.state(self.state)

    @property
    def repeat_cost(self) -> float:
        """Cost per repeat (s): the median of the last runs, so that one contended run does not change the plan."""
        return statistics.median(self._costs) if self._costs else 0.0

    @property
    def is_fit(self) -> bool:
        """Whether it is open, and its last run went well."""
        return self.is_open and self.state in ("warming", "steady")

    @property
    def limited_seconds(self) -> float:
        """Seconds for which it makes no request, since the server refused some for their rate."""
        return max(0.0, self._limited_until - perf_counter())

    @property
    def gives_way(self) -> bool:
        """Whether its last run waited for requests or for others on the GPU: they then wait for it, too."""
        return self.state == "busy" or (self._is_pooled and self.crowding > _WAITED)

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """CUDA's numbers of the GPUs that it runs on; None where that is not known, as of a server."""
        if not self._target.device:
            return None
        if self.device == "cpu" or self.cuda_missing:  # it runs on the CPU instead
            return ()
        return (int(self.device.partition(":")[2] or 0),)

    @property
    def cuda_missing(self) -> str:
        """Why it found no CUDA, which it was to run on; empty where it did, or does not need any."""
        return str(self._target.cuda_missing) or self._unfit

    @property
    def is_opening(self) -> bool:
        """Whether its thread is loading or warming up, which disturbs other canaries' runs."""
        return self._opening_since is not None

    def open(self, seconds: float) -> None:
        """Open the target in its thread, or go on waiting for that, for at most ``seconds``.

        The canary is then open, ``failing``, ``out_of_memory``, or still ``opening``. After a failure the next attempt
        waits for a minute or more, and calls before that do nothing; an attempt past its deadline is still taken when
        it ends.

        Args:
            seconds: How long this call may wait; the attempt itself has its own deadline.
        """
        now = perf_counter()
        if self.is_open or (self._opening_since is None and now < self._retry_at):
            return
        self.mistake = None
        try:
            if self._opening_since is None:
                self._runner.begin_opening()
                self._opening_since = now
            left = self._opening_since + self._open_timeout - now
            opened = self._runner.opened(min(seconds, max(0.0, left)))
        except (Interrupted, StillBusy):
            return
        except DeadlineExceeded:
            if self._opening_since is not None and perf_counter() >= self._opening_since + self._open_timeout:
                self._runner.opening_hangs()
                self._fail(
                    f"not open after {self._open_timeout:g} s (open_timeout_seconds); still waiting for it"
                )
            return
        except NoCuda as error:
            missing = self.cuda_missing
            self._put_off(f"cannot be opened: {error}", reason=missing if is_reason(missing) else None)
        except UsageError as error:
            # Libraries of a model's module that do not fit are no mistake in the settings.
            found = misfit(str(error))
            reason = found.reason if found is not None else None
            self._put_off(f"cannot be opened: {error}", found is not None or self.state != "opening", reason)
            # The caller reports the first mistake: on the command line it ends the probe.
            self.mistake = error if found is None else None
        except Failure as error:
            if error.reason == "rate_limited":
                self._wait(error, "opening")
            else:
                self._put_off(
                    f"cannot be opened: {error}", reason=error.reason, retry_after=error.retry_after
                )
        except BaseException as error:
            found = misfit(one_line(error))
            fix = f"; {found.fix}" if found is not None else ""
            self._put_off(f"cannot be opened: {one_line(error)}{fix}", reason=found.reason if found else None)
        else:
            self._take(opened)
            if opened.limited is not None:
                self._wait(opened.limited, self.state)
        if self.device != "cpu":
            self._record.failing.cuda(self.cuda_missing, self.is_open)
        self._runner.rest()
        self._opening_since = None

    def failed(self) -> Round | None:
        """The last attempt to open it, or a run that was put off, as a failed run; None where there is none.

        Returns:
            The run, without latencies; a second call returns None.
        """
        failed, self._failed = self._failed, None
        return failed

    def put_off(self, why: str) -> None:
        """Make no run, since too little memory is left for one; the next is 5 s later, then 10, up to ten minutes.

        Args:
            why: A line. The first is logged and shown for as long as that lasts: sizes in it change with each.
        """
        now = perf_counter()
        if now < self._retry_at:
            return
        self._retry_at = now + self._longer_rest(*_PUT_OFF_SECONDS)
        self._failed = Round("raised", self._lack or why, reason="out_of_memory")
        self._lack = self._failed.detail
        self._record.failed(self._failed)
        self._fail(self._lack, state="out_of_memory")

    def close_for_memory(self, ended: Ended) -> None:
        """Close the target, since the server needs its memory; it is opened again later.

        Args:
            ended: Why, and until when it is left alone.
        """
        if not self.is_open or not self._runner.release():
            return
        self.is_open = False
        self._retry_at = perf_counter() + max(0.0, ended.retry_at - time.monotonic())
        self._failed = Round("raised", ended.why, reason="out_of_memory")
        self._record.failed(self._failed)
        self._fail(ended.why, state="out_of_memory")

    def round(self, repeats: int) -> Round | None:
        """Run one round of the open canary. Whatever the target does, this does not raise.

        Args:
            repeats: How many at most.

        Returns:
            What it did; None where the probe stops meanwhile, and while a lack of memory is waited out.
        """
        begin = perf_counter()
        if begin < self._retry_at:
            return None
        place = None
        try:
            ran = self._runner.run(repeats, self._skipped < _MAX_SKIPPED, self.compute_threads > 1)
        except Interrupted:
            return None
        except StillBusy:
            result = Round("timed_out", "still hanging in an earlier run")
        except NoTurn as error:
            result = Round("busy", str(error))
        except DeadlineExceeded as error:
            result = Round("timed_out", str(error), (), *self._runner.spent(begin))
        except Failure as error:
            outcome: Outcome = "timed_out" if error.reason == "timed_out" else "raised"
            words = self._waiting(error) if error.reason == "rate_limited" else str(error)
            result = Round(outcome, words, (), *self._runner.spent(begin), reason=error.reason)
        except BaseException as error:
            result = Round("raised", one_line(error), (), *self._runner.spent(begin))
        else:
            place = ran.place
            busy, cost = self._runner.spent(begin)
            result = self._judge(ran)._replace(busy=busy, cost=cost)
            if result.outcome == "ok" and self._reference is None:
                self._refer_to(ran.values)
        self.place = place
        self._runner.rest()
        self._account(result)
        return result

    def tag(self, tags: tuple[str, ...], eligible: bool) -> None:
        """Count the tags of the last round.

        Args:
            tags: Their names; all of them are in ``TAGS``.
            eligible: Whether the round is fit for comparing images.
        """
        self.last_tags = tags
        self._record.tags(tags, eligible)

    def measured(self, measures: Mapping[str, float]) -> None:
        """Show what the last round took beside its time.

        Args:
            measures: Name (of :mod:`infercanary.contract.measures`) → value; empty where it failed.
        """
        self._record.measured(measures)

    def be_a_guest(self) -> None:
        """Run in a server's process from now on: counts that are the server's too are not reset."""
        self._runner.taking.is_guest = True

    def interrupt(self) -> None:
        """End the wait for the target, now and from now on; callable from any thread."""
        self._runner.interrupt()

    def close(self, seconds: float) -> bool:
        """Let go of the target as soon as it does not run; whether that was within ``seconds``.

        Args:
            seconds: How long to wait.
        """
        ended = self._runner.close(seconds, self.is_open or self.is_opening)
        if not ended:
            log.warning("canary %s: still hanging; its thread ends with the process", self.name)
        return ended

    def _refer_to(self, values: list[float]) -> None:
        """Compare later outputs with the first steady one that holds numbers."""
        if not values:
            if self.output is None:
                log.warning("canary %s: output not checked: no numbers were read from it", self.name)
            self.output = ()
        elif self.state == "steady":
            self._reference, self.output = values, fingerprint(values)

    def _judge(self, ran: Repeats) -> Round:
        done = Round(
            "ok",
            "",
            ran.timings,
            usage=ran.usage,
            waits=ran.waits,
            crowds=ran.crowds,
            inside=ran.inside,
            off_cpu=ran.off_cpu,
            helpers=self.compute_threads > 1,
            readings=ran.readings,
            inferences=ran.inferences,
            measures=ran.measures,
        )
        if not all(map(math.isfinite, ran.values)):
            return done._replace(outcome="not_finite", detail="the output holds NaN or infinity")
        if self._reference is None:
            return done
        return done._replace(output_error=relative_error(ran.values, self._reference))

    def _take(self, opened: Opened) -> None:
        self._record.opened(opened)
        self.environment = opened.environment
        self.compute_threads = _threads(opened.environment, COMPUTE_THREADS)
        self._costs.append(statistics.median(opened.latencies or [opened.first_run]))
        self.is_open, self._unfit, self._retry_at = True, "", 0.0
        self._settle(opened.latencies, opened.aside)
        self._recover()

    def _wait(self, failure: Failure, state: CanaryState) -> None:
        """Wait in this state, since the server refused requests for their rate while the canary was opened."""
        self._failed = Round("raised", self._waiting(failure), reason=failure.reason)
        self._record.failed(self._failed)
        self._fail(self._failed.detail, state=state)

    def _waiting(self, failure: Failure) -> str:
        """Make no request for as long as a server asks; the failure's words, and until when."""
        # Longer each time also where it says how long: that may be for a single request.
        wait = max(self._longer_rest(*_RATE_SECONDS), failure.retry_after or 0.0)
        self._retry_at = self._limited_until = perf_counter() + wait
        until = datetime.fromtimestamp(time.time() + wait, timezone.utc)
        return f"rate-limited, waiting until {until:%H:%M:%S} UTC: {failure}"

    def _put_off(
        self,
        complaint: str,
        log_it: bool = True,
        reason: Reason | None = None,
        retry_after: float | None = None,
    ) -> None:
        now = perf_counter()
        took = now - self._opening_since if self._opening_since is not None else 0.0
        least, most = _REOPEN_SECONDS
        if reason in _ABSENT:
            took = 0.0
        if reason == "out_of_memory":
            least = self._longer_rest()
        self._retry_at = now + min(most, max(least, took / _REOPEN_DUTY, retry_after or 0.0))
        self._unfit = reason if reason in MISFITS else ""
        # What does not fit together is what must be seen; where it runs, it does not run.
        self.environment = {
            name: version for name, version in self._runner.unopened.items() if name not in DEVICE_COMPONENTS
        }
        self._failed = Round("raised", complaint, reason=reason)
        self._record.failed(self._failed)
        self._fail(complaint, log_it, _failed(reason))

    def _account(self, result: Round) -> None:
        if result.reason == "out_of_memory":
            self._retry_at = perf_counter() + self._longer_rest()
        elif result.outcome == "ok":
            self._rest = 0.0
        self._skipped = self._skipped + 1 if result.outcome == "busy" else 0
        if result.latencies:
            self._costs.append(result.cost / len(result.latencies))
            self.crowding = result.cost / result.busy if result.busy else 1.0
            self._settle(result.latencies)
            self._record.run(result)
        else:
            self._record.failed(result)
        if result.outcome == "ok":
            self._recover()
        elif result.outcome == "busy":
            self._fail(f"skipped: {result.detail}", state="busy")
        else:
            self._fail(f"{result.outcome}: {result.detail}", state=_failed(result.reason))

    def _longer_rest(self, least: float = _SHORT_SECONDS[0], most: float = _SHORT_SECONDS[1]) -> float:
        self._rest = min(most, max(least, 2 * self._rest))
        return self._rest

    def _settle(self, latencies: Iterable[float], aside: float = 0.0) -> None:
        """Whether it is steady by now, or was so many seconds ago; scheduled runs go on where warm-up stopped."""
        if self._unsteady is None:
            return
        self._unsteady.extend(latencies)
        if is_steady(list(self._unsteady)):
            self._unsteady = None
            if (seconds := since_start()) is not None:
                self._record.steady(max(0.0, seconds - aside))

    def _enter(self, state: CanaryState) -> None:
        self.state = state
        self._record.state(state)

    def _recover(self) -> None:
        if self._complaint:
            log.info("canary %s: answers again", self.name)
        self._complaint = self._lack = ""
        self._enter("steady" if self._unsteady is None else "warming")

    def _fail(self, complaint: str, log_it: bool = True, state: CanaryState = "failing") -> None:
        self._enter(state)
        if log_it and complaint != self._complaint:  # once per change, not once per run
            log.error("canary %s: %s", self.name, complaint)
        self._complaint = complaint


def _failed(reason: Reason | None) -> CanaryState:
    return "out_of_memory" if reason == "out_of_memory" else "failing"


def _threads(environment: Mapping[str, str], components: Iterable[str]) -> int:
    """The number that the first known one of ``components`` has; 0 where none is known."""
    text = next(filter(None, (environment.get(component, "") for component in components)), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
