"""The metrics of a canary and of its runs, and the one place where they are filled."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

from infercanary.contract.report import INTENDED, LATENCY, PHASE, Metric
from infercanary.contract.vocabulary import CANARY_STATES, OUTCOMES, TAGS, CanaryState, PoolName
from infercanary.probe.failing import Failing
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import shown
from infercanary.probe.round import Round
from infercanary.probe.runner import Opened
from infercanary.probe.targets import Reason

RUNS = Metric(
    "infercanary_runs_total",
    "counter",
    "Runs by outcome: ok, raised, timed_out (past its deadline, or still hanging), not_finite (NaN or infinity), "
    "busy (it got no turn in the server's pool, or on the device, in time).",
    ("canary", "outcome"),
    reading='Only `ok` is healthy. `sum without (outcome) (rate(infercanary_runs_total{outcome!~"ok|busy"}[15m])) > '
    "0` is an alert, and the probe's log has the reason. If no outcome grows at all, the probe does not run: see "
    "`infercanary_canary_state` and `infercanary_up`.",
)
TAGGED = Metric(
    "infercanary_tagged_runs_total",
    "counter",
    "Runs with this tag: a condition that may have slowed them. They are counted and kept like all others.",
    ("canary", "tag"),
    reading="This is each tag's share of the runs: `rate(infercanary_tagged_runs_total[1h]) / ignoring (tag) "
    "group_left sum without (outcome) (rate(infercanary_runs_total[1h]))`. If a tag comes with an image, look at the "
    "image. If it is on all containers of a host, look at the host.",
)
ELIGIBLE = Metric(
    "infercanary_eligible_ratio",
    "gauge",
    "Share of the last 100 runs that were ok, steady and without any tag: no known condition slowed them.",
    ("canary",),
    reading="Near 1 is healthy. If it is lower, `infercanary_tagged_runs_total` shows what slows the runs. The "
    "judge leaves out failed runs and runs tagged `warming`, `failing` or `beside_canary`. It keeps the others, "
    "because an image may cause its own throttling.",
)
STATE = Metric(
    "infercanary_canary_state",
    "gauge",
    "1 for the canary's current state, 0 for the others: opening, warming, steady, failing, out_of_memory, busy.",
    ("canary", "state"),
    reading='`infercanary_canary_state{state="failing"} == 1` is an alert. `out_of_memory` is an alert too: too '
    "little memory is left for the canary, on the host or on the device. The probe tries again when there is room. "
    "If `warming` lasts, the latencies never settle. If `opening` lasts, the model loads slowly or hangs, or a server "
    "limits the rate of requests: `infercanary_canary_failure_info` says until when the canary waits. `busy`: "
    "the server's pool or GPU was too busy for the last run.",
)
LOAD = Metric(
    "infercanary_load_seconds",
    "gauge",
    "Cold start: time to load the target (model, inputs).",
    ("canary",),
    reading="Compare it between images of one service. If the probe is a process of its own, the import of the "
    "engine is included. On CUDA, the first inferences are included too (they find the batch and capture the graph). "
    "A model object that is passed in takes little time.",
)
FIRST_RUN = Metric(
    "infercanary_first_run_seconds",
    "gauge",
    "Cold start: wall time of the first repeat.",
    ("canary",),
    reading="On the CPU, a value far above the median is normal: memory, kernels and `mode: compile` are prepared in "
    "the first run. On CUDA, the built-in target already runs a few inferences while it loads, so most of this time "
    "is in `infercanary_load_seconds`.",
)
WARM_UP = Metric(
    "infercanary_warm_up_seconds",
    "gauge",
    "Time of the warm-up repeats, which are not in the histograms.",
    ("canary",),
    reading="Near 20 s, or after 100 repeats, the probe stopped waiting for settled latencies: the canary continues "
    "as `warming`, and its first runs have this tag.",
)
WARM_UP_REPEATS = Metric(
    "infercanary_warm_up_repeats",
    "gauge",
    "Repeats in warm-up.",
    ("canary",),
    reading="Latencies are settled when two windows agree. Each window is half a second of repeats, but 8 at least "
    "and 24 at most. So there are 16 repeats or more, and 48 if one repeat takes under 21 ms. 100, or fewer than "
    "that, means that warm-up reached a limit: see `infercanary_warm_up_seconds`.",
)
TIME_TO_STEADY = Metric(
    "infercanary_time_to_steady_seconds",
    "gauge",
    "Cold start: time from the container's start (outside of a container, the process's start) until the canary was "
    "steady.",
    ("canary",),
    reading="Before this moment, latency is not yet comparable. Missing until then, and set once. A rollout should "
    "wait this long. `infercanary_load_seconds` and `infercanary_warm_up_seconds` show what takes this time.",
)
BATCH = Metric(
    "infercanary_repeat_inferences",
    "gauge",
    "Inferences in one repeat. It is more than 1 if one inference is too short to be timed (under 100 µs on the "
    "device).",
    ("canary",),
    reading="Latencies and phases are per inference: they are already divided by it. On the CPU it is 1. If it "
    "differs between two images, the image with fewer inferences in a repeat has more of each repeat's fixed cost "
    "per inference.",
)
OVERHEAD = Metric(
    "infercanary_clock_overhead_seconds",
    "gauge",
    "Time that the clock reads for an empty phase (CUDA: two events with nothing between them). It is never "
    "subtracted.",
    ("canary",),
    reading="It is measured once, when the canary is opened: a few microseconds or less. A phase that is not much "
    "longer than this shows changes, but not its true length.",
)
MEDIAN = Metric(
    "infercanary_run_median_seconds",
    "gauge",
    "Median wall time of the last run's repeats.",
    ("canary",),
    reading="This value is exact, while a histogram interpolates: draw this one, or `avg_over_time(…[1h])` of it. A "
    "run has 5 to 50 repeats (fewer if they would not fit its deadline). Missing after a run that failed.",
)
MINIMUM = Metric(
    "infercanary_run_minimum_seconds",
    "gauge",
    "Minimum wall time of the last run's repeats.",
    ("canary",),
    reading="This is the least disturbed repeat. If the minimum rose, the work itself takes longer (image, clocks). "
    "If only the median rose, something disturbs some of the repeats (see `infercanary_tagged_runs_total`).",
)
IQR = Metric(
    "infercanary_run_iqr_seconds",
    "gauge",
    "Interquartile range of the wall times of the last run's repeats.",
    ("canary",),
    reading="`infercanary_run_iqr_seconds / infercanary_run_median_seconds` is the scatter within a run. If it rises "
    "and the minimum does not, look for a disturbance: throttling, preemption, the garbage collector, other work on "
    "the GPU.",
)
P90 = Metric(
    "infercanary_recent_p90_seconds",
    "gauge",
    "90th percentile of the wall time of the last 64 repeats. 64 is the smallest number that allows it. Missing "
    "until there are 64.",
    ("canary",),
    reading="It spans the last 2 to 13 runs. If it is far above the median and the median stays the same, some "
    "repeats are slow and most are not: look for a disturbance first.",
)
PHASE_MEDIAN = Metric(
    "infercanary_run_phase_median_seconds",
    "gauge",
    "Median of each phase over the last run's repeats.",
    ("canary", "phase"),
    reading="It has the phases of `infercanary_phase_seconds` for the last run, exactly. Phases overlap (the host "
    "launches while the GPU computes), so their sum is not the latency.",
)
BOTTLENECK = Metric(
    "infercanary_bottleneck_ratio",
    "gauge",
    "The parts of the last run's median latency, as shares whose sum is 1: compute (the CPU or the device worked, or "
    "waited for memory), io (transfers, sockets, and reading from a disk), scheduling (launching, queues, locks, and "
    "waiting for a CPU) and unknown.",
    ("canary", "bottleneck"),
    reading="One run cannot distinguish computing from waiting for memory, so there is no `memory` here. For a "
    "change, `infercanary_shift_bottleneck_ratio` can. If `scheduling` is not small, see "
    "`infercanary_canary_run_queue_seconds_total` for CPUs, and `infercanary_run_phase_median_seconds` for `launch` "
    "and `queue`. If `io` is not small, a model or its data is read again. For a request to a server, the server's "
    "work is `unknown`. Missing after a run that failed.",
)
OUTPUT_ERROR = Metric(
    "infercanary_output_error_ratio",
    "gauge",
    "Difference of the last run's output from the first steady output since the start: relative error (L2), 1 at "
    "most.",
    ("canary",),
    reading="Below 0.01 it is rounding: about 1e-6 for float32, up to 4e-3 for bfloat16. Above that, the run is "
    "tagged `output_changed`: the same input gets another answer, so a faster run is no improvement. Missing if the "
    "output holds no numbers: the log then says `output not checked`.",
)
THREAD_POOL = Metric(
    "infercanary_thread_pool_size",
    "gauge",
    "Threads that the canary's engine has for one operation (intra_op), and for operations side by side (inter_op), "
    "as the engine reports them when it is opened; missing if it does not report them.",
    ("canary", "pool"),
    reading="`infercanary_thread_pool_size / on (instance, service, container) group_left () "
    "clamp_min(infercanary_process_granted_cpus, 1)` is the number of threads for each CPU. If it is above 1 for "
    "`intra_op`, it is an alert (`infercanary_thread_oversubscription_ratio`). `inter_op` is not part of this alert: "
    "its threads are idle in ordinary inference, no matter how many there are. They count if a model forks "
    "(`torch.jit.fork`) or if ONNX Runtime executes in parallel: then both pools compute at the same time.",
)
THREAD_CPU = Metric(
    "infercanary_canary_cpu_seconds_total",
    "counter",
    "CPU time of the thread that runs the canary's repeats, during the repeats. The CPU time of its helper threads "
    "is not included.",
    ("canary",),
    reading="Its `rate` divided by `rate(infercanary_latency_seconds_sum[5m])` (if `infercanary_repeat_inferences` "
    "is 1) is the share of a repeat in which that thread computed. The rest is waiting: for a CPU, a lock, helper "
    "threads or the device.",
)
THREAD_RUN_QUEUE = Metric(
    "infercanary_canary_run_queue_seconds_total",
    "counter",
    "Time during repeats in which the canary's thread was ready to run and waited for a CPU.",
    ("canary",),
    reading="Near 0 is healthy. A run with more than 5 % of it, without the time of throttling, is tagged "
    "`cpu_wait_outside`: see `infercanary_thread_oversubscription_ratio` for the container's own threads, and "
    "`infercanary_container_shared_cpus` for its neighbours.",
)
INSIDE = Metric(
    "infercanary_canary_inside_cpu_seconds_total",
    "counter",
    "CPU time that others in the container took while the canary's repeats ran: other threads of the process "
    "(including those that help its engine) and other processes. Missing if the container's CPU time is not known, "
    "and for a canary that calls a server.",
    ("canary",),
    reading="Its `rate` divided by `rate(infercanary_busy_seconds_total[5m])` is the number of cores that they take "
    "next to the canary. If it rises with an image, the work is the image's own, unless "
    "`infercanary_tcp_received_segments_total` rose as much: then the cause is requests. A run that waited for them "
    "is tagged `cpu_wait_inside`.",
)
THREAD_SWITCHES = Metric(
    "infercanary_canary_context_switches_total",
    "counter",
    "Context switches of the canary's thread during repeats: voluntary (it waited) and involuntary (it was pushed "
    "off its CPU).",
    ("canary", "kind"),
    reading="If `involuntary` rises, other threads want its CPU. If `voluntary` rises with an image, the image waits "
    "for the device or for helper threads in another way.",
)
THREAD_MIGRATIONS = Metric(
    "infercanary_canary_migrations_total",
    "counter",
    "Moves of the canary's thread from one CPU to another during repeats; missing if the kernel does not count them.",
    ("canary",),
    reading="A few in a run are normal without pinning. More of them mean that more threads want to run than there "
    "are CPUs, and that caches are cold after each move.",
)

_P90_REPEATS = 64
_RECENT_RUNS = 100


class Record:
    """Fills one canary's metrics in a :class:`Tally`."""

    def __init__(self, name: str, tally: Tally, reasons: Iterable[Reason] = ()) -> None:
        """Begin at zero: every outcome, reason and tag has a series from the start.

        Args:
            name: The label ``canary``.
            tally: Where the metrics are counted.
            reasons: Of a failure that its target may raise, beside those that any may have.
        """
        self._name = name
        self._tally = tally
        self._recent: deque[float] = deque(maxlen=_P90_REPEATS)  # wall seconds of steady repeats
        self._eligible: deque[bool] = deque(maxlen=_RECENT_RUNS)
        self._readings: set[Metric] = set()  # that the last run had
        self.failing = Failing(name, tally, reasons)
        """What is counted and shown of failures."""
        for outcome in OUTCOMES:  # at 0, so that the first one is an increase
            tally.add(RUNS, 0, name, outcome)
        for tag in TAGS:
            tally.add(TAGGED, 0, name, tag)

    def state(self, now: CanaryState) -> None:
        """Set the canary's state.

        Args:
            now: Its series becomes 1, those of the other states 0.
        """
        for each in CANARY_STATES:
            self._tally.set(STATE, each == now, self._name, each)

    def opened(self, opened: Opened) -> None:
        """Set what the cold start took.

        Args:
            opened: Seconds of each step, and what the warm-up found.
        """
        tally, name = self._tally, self._name
        tally.set(LOAD, opened.load, name)
        tally.set(FIRST_RUN, opened.first_run, name)
        tally.set(WARM_UP, opened.warm_up, name)
        tally.set(WARM_UP_REPEATS, len(opened.latencies), name)
        tally.set(BATCH, opened.batch, name)
        if opened.overhead is not None:
            tally.set(OVERHEAD, opened.overhead, name)

    def pools(self, threads: Mapping[PoolName, int]) -> None:
        """Set how many threads its engine has in each pool; 0 where that is not known.

        Args:
            threads: Pool → threads.
        """
        for pool, count in threads.items():
            if count:
                self._tally.set(THREAD_POOL, count, self._name, pool)

    def steady(self, seconds: float) -> None:
        """Set when it became steady for the first time, ``seconds`` after the start.

        Args:
            seconds: Since the container started, loading included.
        """
        self._tally.set(TIME_TO_STEADY, seconds, self._name)

    def failed(self, done: Round) -> None:
        """Count a run without a latency, and clear the last good one, which would look healthy.

        Args:
            done: The round; its outcome is not ``ok``.
        """
        self._count(done)
        self._recent.clear()
        for metric in (MEDIAN, MINIMUM, IQR, P90, PHASE_MEDIAN, BOTTLENECK, OUTPUT_ERROR, *self._readings):
            self._tally.forget(metric, self._name)
        self._readings.clear()

    def run(self, done: Round, steady: bool) -> None:
        """Count a run with latencies, of a canary that is ``steady`` by now or not yet.

        Args:
            done: The round; its latencies are in seconds.
            steady: Whether its repeats count for the 90th percentile.
        """
        tally, name, latencies = self._tally, self._name, done.latencies
        self._count(done)
        for timing in done.timings:
            tally.observe(LATENCY, timing.wall, name)
            for phase, seconds in timing.phases.items():
                tally.observe(PHASE, seconds, name, phase)
        if done.intended is not None:
            tally.observe(INTENDED, done.intended, name)
        tally.set(MEDIAN, statistics.median(latencies), name)
        tally.set(MINIMUM, min(latencies), name)
        tally.forget(IQR, name)
        if len(latencies) > 1:
            low, _, high = statistics.quantiles(latencies, n=4, method="inclusive")
            tally.set(IQR, high - low, name)
        if steady:
            self._recent.extend(latencies)
        if len(self._recent) == _P90_REPEATS:
            tally.set(P90, statistics.quantiles(self._recent, n=10, method="inclusive")[-1], name)
        tally.forget(PHASE_MEDIAN, name)
        for phase, seconds in done.phases.items():
            tally.set(PHASE_MEDIAN, seconds, name, phase)
        for bottleneck, share in done.bottlenecks.items():
            tally.set(BOTTLENECK, share, name, bottleneck)
        tally.forget(OUTPUT_ERROR, name)
        if done.output_error is not None:
            tally.set(OUTPUT_ERROR, done.output_error, name)
        for metric in self._readings:
            tally.forget(metric, name)
        self._readings = {reading.metric for reading in done.readings}
        for reading in done.readings:
            tally.set(reading.metric, reading.value, name, *reading.labels)
        self._thread(done)

    def tags(self, tags: Iterable[str], eligible: bool) -> None:
        """Count the tags of the run that was counted last, and whether it is fit for comparing images.

        Args:
            tags: Their names.
            eligible: Whether the run is fit for comparing images.
        """
        for tag in tags:
            self._tally.add(TAGGED, 1, self._name, tag)
        self._eligible.append(eligible)
        self._tally.set(ELIGIBLE, sum(self._eligible) / len(self._eligible), self._name)

    def measured(self, measures: Mapping[str, float]) -> None:
        """Set what the run that was counted last took beside its time; nothing of the one before stays.

        Args:
            measures: Name → value.
        """
        for metric, points in shown(measures).items():
            self._tally.forget(metric, self._name)
            for labels, value in points.items():
                self._tally.set(metric, value, self._name, *labels)

    def _count(self, done: Round) -> None:
        self._tally.add(RUNS, 1, self._name, done.outcome)
        self.failing.count(done)

    def _thread(self, done: Round) -> None:
        tally, name, usage = self._tally, self._name, done.usage
        tally.add(THREAD_CPU, usage.cpu_seconds, name)
        tally.add(THREAD_SWITCHES, usage.voluntary, name, "voluntary")
        tally.add(THREAD_SWITCHES, usage.involuntary, name, "involuntary")
        if usage.run_queue_seconds is not None:
            tally.add(THREAD_RUN_QUEUE, usage.run_queue_seconds, name)
        if done.inside is not None:
            tally.add(INSIDE, done.inside.cpu_seconds, name)
        if usage.migrations is not None:
            tally.add(THREAD_MIGRATIONS, usage.migrations, name)
