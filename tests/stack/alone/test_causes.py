"""Docker causes each disturbance, which must appear in its own metric and in the tags of the affected runs.

No tag of another cause may appear. Each cause has its own container: a canary that uses only CPU time runs
about once a second, first without the disturbance, then with it, then without. Other work on the machine can
take CPUs at any time, so runs may be `stalled` or `cpu_wait_outside` by chance, but no run may have another
cause's tag.
"""

import time
from typing import NamedTuple

import psutil
import pytest
from canaries import PROBE
from harness import OWN_LABEL, PROJECT, eventually, run

from infercanary.contract.report import Report, Run
from tests.scenarios import cases

# In CI, the stack's own test has a quota with its alert.
pytestmark = [pytest.mark.quiet, pytest.mark.campaign]

QUIET_RUNS, CONTENDED_RUNS = 4, 6

# Metrics that increase with each cause. Run-queue seconds are not listed, because they increase on a busy
# machine at any time.
COUNTED = {
    "cgroup_throttled": (
        "infercanary_cgroup_cpu_throttled_periods_total",
        "infercanary_cgroup_cpu_throttled_seconds_total",
    ),
    "memory_limit": ("infercanary_cgroup_memory_limit_hits_total",),
    "stalled": ("infercanary_stalled_seconds_total",),
}
CAUSES = {*COUNTED, "cpu_wait_outside", "cpu_wait_inside", "cpuset_changed", "io_pressure", "gc"}
BY_CHANCE = {"cpu_wait_outside", "stalled"}
# Largest fraction of runs that may also have another tag, because the disturbance really causes both.
FOLLOWS = {
    ("memory_limit", "io_pressure"): 1.0,  # the kernel reads pages that do not fit from the disk again
    ("memory_limit", "cpu_wait_inside"): 1.0,  # the container also contains the process that reads the file
    ("cgroup_throttled", "gc"): 1 / CONTENDED_RUNS,  # a CPU period may end during a garbage collection
}
RUN_QUEUE = "infercanary_run_queue_seconds_total"
CPUSET = "infercanary_cgroup_cpuset_cpus"
GRANTED = "infercanary_process_granted_cpus"

FILE_BYTES = 192 << 20  # half of the file fits; with less memory, a run of the canary would not fit


class Seen(NamedTuple):
    before: Report
    after: Report
    quiet: list[Run]
    contended: list[Run]
    idle: float
    """Idle share of the machine's CPU time since the disturbance began."""

    def grown(self, metric):
        return (value(self.after, metric) or 0.0) - (value(self.before, metric) or 0.0)


def value(report, metric):
    """Return the metric's value (of the canary's thread if there are several threads), or None."""
    points = [point for family in report.families if family.name == metric for point in family.points]
    points = [point for point in points if "process" not in point.labels]
    assert len(points) <= 1
    return float(points[0].value) if points else None


def seen_by(canary, disturb):
    before, quiet = canary.ran(QUIET_RUNS, time.time())
    disturb()
    cpus = psutil.cpu_times()
    after, contended = canary.ran(CONTENDED_RUNS, time.time())
    seen = Seen(before, after, quiet, contended, idle_since(cpus))
    print(f"the machine was {seen.idle:.0%} idle")
    print("quiet:", *(each.tags for each in quiet))
    print("contended:", *(each.tags for each in contended))
    for metric in (RUN_QUEUE, *(metric for metrics in COUNTED.values() for metric in metrics)):
        print(metric, seen.grown(metric))
    return seen


def idle_since(before):
    """Return the idle fraction of the machine's CPU time since ``before`` (psutil.cpu_times())."""
    spent = [now - then for now, then in zip(psutil.cpu_times(), before, strict=True)]
    return spent[before._fields.index("idle")] / sum(spent)


def assert_only(cause, seen):
    """Check that the cause's tag appears by the second run, and that no other cause's tag appears."""
    assert any(cause in run.tags for run in seen.contended[:2]), cause
    assert all(run.outcome == "ok" for run in (*seen.quiet, *seen.contended))
    for other in CAUSES:
        quiet, contended = (
            sum(other in run.tags for run in runs) / len(runs) for runs in (seen.quiet, seen.contended)
        )
        if other in BY_CHANCE:
            # On a machine with other load, these tags are correct.
            assert other == cause or contended <= quiet + 0.7 or seen.idle < 0.5, other
        else:
            share = FOLLOWS.get((cause, other), 0.0)
            assert quiet <= share, other
            assert other == cause or contended <= share, other
    for other, metrics in COUNTED.items():
        for metric in metrics:
            assert (seen.grown(metric) > 0) == (other == cause), metric
    assert seen.grown("infercanary_cgroup_oom_kills_total") == 0


def test_a_cpu_quota(start):
    canary = start()
    seen = seen_by(canary, lambda: run("docker", "update", "--cpus", "0.5", canary.name))
    assert value(seen.after, GRANTED) == 0.5 < (value(seen.before, GRANTED) or 0.0)
    assert_only("cgroup_throttled", seen)
    # The remaining part of one CPU quota period, at least once.
    assert seen.grown("infercanary_cgroup_cpu_throttled_seconds_total") > (0.03 if seen.idle > 0.5 else 0.0)
    assert_not_taken_for_preemption(canary)


def assert_not_taken_for_preemption(canary):
    """Check that at most two of the throttled runs also have the tag `cpu_wait_outside`.

    The kernel counts throttled time as CPU wait, so every run would have the tag if nothing were subtracted.
    While a neighbour is busy, the test waits.
    """

    def apart():
        throttled = [run for run in canary.report().runs if "cgroup_throttled" in run.tags][-CONTENDED_RUNS:]
        waited = ["cpu_wait_outside" in run.tags for run in throttled]
        print("cpu_wait_outside, of the last throttled runs:", sum(waited), "of", len(waited))
        return len(waited) == CONTENDED_RUNS and sum(waited) <= 2

    cpus = psutil.cpu_times()
    try:
        eventually("throttled runs without CPU wait", 60, apart)
    except AssertionError:
        if idle_since(cpus) > 0.5:
            raise


def test_another_set_of_cpus(start):
    canary = start("--cpuset-cpus", "0-1")
    seen = seen_by(canary, lambda: run("docker", "update", "--cpuset-cpus", "0", canary.name))
    assert value(seen.before, CPUSET) == 2
    assert value(seen.after, CPUSET) == 1
    assert_only("cpuset_changed", seen)


def test_a_neighbour_on_the_same_cpu(start, image):
    canary = start("--cpuset-cpus", "0")
    neighbour = f"{PROJECT}-neighbour"
    run(
        *("docker", "create", "--name", neighbour, "--label", OWN_LABEL, "--no-healthcheck"),
        *("--network", "none", "--cpuset-cpus", "0", image, "sh", "-c", "while :; do :; done"),
    )
    seen = seen_by(canary, lambda: run("docker", "start", neighbour))
    assert_only("cpu_wait_outside", seen)
    # With equal weights, the canary waits as long as it computes, in every run.
    assert all("cpu_wait_outside" in run.tags for run in seen.contended[1:])
    assert seen.grown(RUN_QUEUE) > 0.3 * sum(sum(run.latencies) for run in seen.contended)


def test_a_memory_limit(start):
    reading = (
        f"head -c {FILE_BYTES} /dev/zero >/tmp/file; sync /tmp/file; while cat /tmp/file; do sleep 0.3; done"
    )
    canary = start(command=("sh", "-c", f"({reading}) >/dev/null & exec {' '.join(PROBE)}"))

    def limit():
        files = "/sys/fs/cgroup/memory.current /sys/fs/cgroup/memory/memory.usage_in_bytes"
        used = run("docker", "exec", canary.name, "sh", "-c", f"cat {files} 2>/dev/null || true")
        limit = int(used) - FILE_BYTES // 2
        # Set twice as much with swap, which is Docker's default. If both limits are equal, cgroup v1 reaches
        # the one with swap first, and memory.failcnt does not increase.
        run("docker", "update", "--memory", str(limit), "--memory-swap", str(2 * limit), canary.name)

    assert_only("memory_limit", seen_by(canary, limit))


@cases(
    [(("kill", "--signal", "STOP"), ("kill", "--signal", "CONT")), (("pause",), ("unpause",))],
    ids=["signal", "freezer"],
)
def test_a_stop_of_two_seconds(stop, resume, start):
    canary = start()
    stood_still = 0.0

    def stall():
        nonlocal stood_still
        run("docker", *stop, canary.name)
        begin = time.monotonic()
        time.sleep(2)
        run("docker", *resume, canary.name)
        stood_still = time.monotonic() - begin

    seen = seen_by(canary, stall)
    assert_only("stalled", seen)
    # The stop begins during a sampler's tick of a quarter of a second. The rest of this tick does not count.
    assert stood_still - 0.4 < seen.grown("infercanary_stalled_seconds_total") < stood_still + 0.2
