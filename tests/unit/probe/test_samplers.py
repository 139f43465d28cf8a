"""The guard about a sampler, and the samplers of threads and cgroups."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from infercanary.probe.histogram import Tally
from infercanary.probe.report import Family, Metric
from infercanary.probe.samplers import Guard, Unavailable, available
from infercanary.probe.samplers.cgroup import CgroupSampler, parse_cpu_list
from infercanary.probe.samplers.threads import ThreadSampler

VALUE = Metric("infercanary_value", "gauge", "V.")


class Scripted:
    name = "scripted"

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None
        self.asked = 0

    def sample(self) -> Iterable[Family]:
        self.asked += 1
        self.act()
        yield VALUE.family(self.asked)


def values(families: Iterable[Family]) -> dict[str, float | dict[tuple[str, ...], float]]:
    """Name → value, or label values → value."""
    found: dict[str, float | dict[tuple[str, ...], float]] = {}
    for family in families:
        points = {point.labels: point.value for point in family.points}
        assert all(isinstance(value, float) for value in points.values())
        found[family.name] = points if family.labels else points[()]  # type: ignore[assignment]
    return found


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def told(tally: Tally) -> tuple[float, float]:
    found = values(tally.families())
    success, duration = found["infercanary_sampler_success"], found["infercanary_sampler_duration_seconds"]
    assert isinstance(success, dict) and isinstance(duration, dict)
    return success[("scripted",)], duration[("scripted",)]


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (ValueError("bad\nsecond line"), logging.WARNING, "sampler scripted: ValueError: bad"),
        (SystemExit(1), logging.WARNING, "sampler scripted: SystemExit: 1"),
        (KeyboardInterrupt(), logging.WARNING, "sampler scripted: KeyboardInterrupt"),
        (Unavailable("no such thing here"), logging.INFO, "sampler scripted: no such thing here"),
    ],
)
def test_a_sampler_that_raises_costs_only_its_own_families(
    caplog: pytest.LogCaptureFixture, error: BaseException, level: int, text: str
) -> None:
    caplog.set_level(logging.INFO)
    sampler, tally = Scripted(), Tally()
    guard = Guard(sampler, tally, deadline=30)
    guard.sample()
    assert values(guard.families) == {VALUE.name: 1.0}
    assert told(tally)[0] == 1
    sampler.act = raising(error)
    for _ in range(3):
        guard.sample()
    assert guard.families == (), "stale numbers beside green health are worse than none"
    assert told(tally)[0] == 0
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, text)], (
        "once, not at each sample"
    )
    sampler.act = lambda: None
    guard.sample()
    assert values(guard.families) == {VALUE.name: 5.0}
    assert told(tally)[0] == 1
    assert caplog.records[-1].getMessage() == "sampler scripted: works again"
    assert guard.close(30)


def test_a_sampler_that_hangs_is_given_up_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    sampler, tally, go_on = Scripted(), Tally(), threading.Event()
    guard = Guard(sampler, tally, deadline=0.1)
    guard.sample()
    sampler.act = lambda: go_on.wait(60)
    guard.sample()
    assert guard.families == ()
    success, seconds = told(tally)
    assert success == 0 and 0.1 <= seconds < 20
    guard.sample()
    assert sampler.asked == 2, "it is not asked again while it hangs"
    assert told(tally) == (0, seconds)
    assert [r.getMessage() for r in caplog.records] == ["sampler scripted: hangs: no answer within 0.1 s"]
    sampler.act = lambda: None
    go_on.set()
    deadline = time.monotonic() + 30
    while not guard.families:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        guard.sample()
    assert told(tally)[0] == 1
    assert guard.close(30)


def test_a_sampler_that_fails_half_way_shows_nothing() -> None:
    class Half(Scripted):
        def sample(self) -> Iterable[Family]:
            yield VALUE.family(1)
            raise OSError("gone")

    guard = Guard(Half(), Tally(), deadline=30)
    guard.sample()
    assert guard.families == ()
    guard.close(30)


def test_built_in_samplers_work_or_say_why_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    names = []
    for sampler in available():
        tally = Tally()
        guard = Guard(sampler, tally, deadline=30)
        guard.sample()
        names.append(sampler.name)
        assert bool(guard.families) or any(sampler.name in r.getMessage() for r in caplog.records)
        guard.close(30)
    assert names == ["threads", "cgroup", "nvml"]


# Threads ---------------------------------------------------------------------------------------------------


def test_threads_of_this_process() -> None:
    sampler = ThreadSampler()
    before = values(sampler.sample())
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    after = values(sampler.sample())
    stop.set()
    for thread in threads:
        thread.join()

    def rise(name: str) -> float:
        first, last = before[name], after[name]
        assert isinstance(first, float) and isinstance(last, float)
        return last - first

    assert rise("infercanary_process_threads") == 5
    assert after["infercanary_process_allowed_cpus"] == len(os.sched_getaffinity(0))
    assert rise("infercanary_process_cpu_seconds_total") >= 0
    switches = after["infercanary_process_context_switches_total"]
    assert isinstance(switches, dict) and set(switches) == {("voluntary",), ("involuntary",)}


def test_context_switches_are_those_of_all_threads() -> None:
    """/proc/self/status, which psutil reads, has the main thread's only."""

    def voluntary() -> float:
        found = values(ThreadSampler().sample())["infercanary_process_context_switches_total"]
        assert isinstance(found, dict)
        return found[("voluntary",)]

    before = voluntary()

    def sleep() -> None:
        for _ in range(200):
            time.sleep(0.0005)

    thread = threading.Thread(target=sleep)
    thread.start()
    thread.join()
    assert voluntary() - before >= 200


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_pinned_thread_is_counted_and_does_not_narrow_the_process() -> None:
    stop, pinned = threading.Event(), threading.Event()
    cpus = os.sched_getaffinity(0)

    def pin() -> None:
        os.sched_setaffinity(threading.get_native_id(), {min(cpus)})
        pinned.set()
        stop.wait(60)

    thread = threading.Thread(target=pin)
    thread.start()
    assert pinned.wait(60)
    found = values(ThreadSampler().sample())
    stop.set()
    thread.join()
    assert found["infercanary_process_pinned_threads"] == 1
    assert found["infercanary_process_allowed_cpus"] == len(cpus)


def test_threads_that_vanish_while_it_looks() -> None:
    """A thousand short threads, sampled all the while: no sample may fail over one that ended."""
    sampler, done = ThreadSampler(), threading.Event()

    def churn() -> None:
        for _ in range(100):
            threads = [threading.Thread(target=time.sleep, args=(0.0005,)) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        done.set()

    churner = threading.Thread(target=churn)
    churner.start()
    samples, migrations = 0, []
    while not done.is_set():
        found = values(sampler.sample())
        samples += 1
        migrations.append(found.get("infercanary_process_migrations_total", 0.0))
    churner.join()
    assert samples >= 3
    assert migrations == sorted(migrations), "a counter never goes back"


def proc(folder: Path, moves: dict[int, int]) -> None:
    for old in (folder / "task").glob("*/sched"):
        old.unlink()
        old.parent.rmdir()
    for tid, count in moves.items():
        (folder / "task" / str(tid)).mkdir(parents=True)
        (folder / "task" / str(tid) / "sched").write_text(
            f"python ({tid}, #threads: 1)\nse.exec_start : 1.0\nse.nr_migrations      :        {count}\n"
        )


def test_migrations_keep_the_share_of_threads_that_ended(tmp_path: Path) -> None:
    sampler = ThreadSampler(tmp_path)
    totals = []
    main = os.getpid()
    for moves in ({main: 10, 999_991: 5}, {main: 12, 999_991: 9}, {main: 12}, {main: 13, 999_991: 2}):
        proc(tmp_path, moves)
        totals.append(values(sampler.sample())["infercanary_process_migrations_total"])
    # 15; +2 +4; the second thread ended; +1, and its id is used again by one that has moved twice.
    assert totals == [15, 21, 21, 24]


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "task" / str(os.getpid())).mkdir(parents=True)
    found = values(ThreadSampler(tmp_path).sample())
    assert "infercanary_process_migrations_total" not in found
    assert "infercanary_process_run_queue_seconds_total" not in found
    (tmp_path / "schedstat").write_text("123456 2500000000 77\n")
    assert values(ThreadSampler(tmp_path).sample())["infercanary_process_run_queue_seconds_total"] == 2.5


# cgroup ----------------------------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


V2 = {
    "cpu.max": "150000 100000\n",
    "cpu.stat": "usage_usec 900\nuser_usec 500\nnr_periods 40\nnr_throttled 7\nthrottled_usec 2500000\n",
    "cpuset.cpus.effective": "0-3,8\n",
    "memory.current": "1048576\n",
    "memory.max": "2097152\n",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n",
    "cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 total=9\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}
FOUND = {
    "infercanary_cgroup_cpu_quota_cores": 1.5,
    "infercanary_cgroup_cpu_periods_total": 40,
    "infercanary_cgroup_cpu_throttled_periods_total": 7,
    "infercanary_cgroup_cpu_throttled_seconds_total": 2.5,
    "infercanary_cgroup_cpuset_cpus": 5,
    "infercanary_cgroup_memory_bytes": 1048576,
    "infercanary_cgroup_memory_limit_bytes": 2097152,
    "infercanary_cgroup_oom_kills_total": 1,
    "infercanary_cgroup_pressure_waiting_seconds_total": {("cpu",): 3.0, ("io",): 0.25, ("memory",): 0.0},
}


@pytest.mark.parametrize(
    ("own", "folder"),
    [
        ("0::/\n", ""),  # a private cgroup namespace, Docker's default
        ("0::/system.slice/docker-abc.scope\n", "system.slice/docker-abc.scope/"),  # the host's namespace
        ("0::/system.slice/docker-abc.scope\n", ""),  # the host's path, and only the own cgroup mounted
        ("0::/../../elsewhere\n", ""),  # moved out of its namespace
    ],
)
def test_cgroup_v2(tmp_path: Path, own: str, folder: str) -> None:
    root = tmp_path / "a" / "b"
    tree(root, {"cgroup.controllers": "cpu memory\n", **{folder + k: v for k, v in V2.items()}})
    tree(tmp_path, {"proc/cgroup": own, "elsewhere/cpu.max": "1 100\n"})
    assert values(CgroupSampler(root, tmp_path / "proc").sample()) == FOUND


def test_cgroup_v2_without_limits_or_controllers(tmp_path: Path) -> None:
    tree(tmp_path, {"cgroup.controllers": "", "proc/cgroup": "0::/\n"})
    assert values(CgroupSampler(tmp_path, tmp_path / "proc").sample()) == {}
    tree(
        tmp_path,
        {
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
            "memory.current": "4096\n",
            "cpu.stat": "usage_usec 900\n",
            "cpu.pressure": "",
        },
    )
    assert values(CgroupSampler(tmp_path, tmp_path / "proc").sample()) == {
        "infercanary_cgroup_memory_bytes": 4096
    }


V1 = {
    "cpu/x/cpu.cfs_quota_us": "150000\n",
    "cpu/x/cpu.cfs_period_us": "100000\n",
    "cpu/x/cpu.stat": "nr_periods 40\nnr_throttled 7\nthrottled_time 2500000000\n",
    "cpuset/x/cpuset.effective_cpus": "\n",
    "cpuset/x/cpuset.cpus": "0-3,8\n",
    "memory/x/memory.usage_in_bytes": "1048576\n",
    "memory/x/memory.limit_in_bytes": "2097152\n",
    "memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
}
OWN_V1 = "12:cpuset:/x\n5:memory:/x\n4:cpu,cpuacct:/x\n1:name=systemd:/x\n0::/x\n"


@pytest.mark.parametrize("inside", ["/x", ""], ids=["the host's path", "only the own cgroup mounted"])
def test_cgroup_v1(tmp_path: Path, inside: str) -> None:
    tree(tmp_path, {name.replace("/x", inside): text for name, text in V1.items()})
    tree(tmp_path, {"proc/cgroup": OWN_V1})
    expected = {k: v for k, v in FOUND.items() if "pressure" not in k}
    assert values(CgroupSampler(tmp_path, tmp_path / "proc").sample()) == expected


def test_cgroup_v1_without_limits(tmp_path: Path) -> None:
    tree(
        tmp_path,
        V1
        | {
            "cpu/x/cpu.cfs_quota_us": "-1\n",
            "memory/x/memory.limit_in_bytes": "9223372036854771712\n",
            "proc/cgroup": OWN_V1,
        },
    )
    found = values(CgroupSampler(tmp_path, tmp_path / "proc").sample())
    assert "infercanary_cgroup_cpu_quota_cores" not in found
    assert "infercanary_cgroup_memory_limit_bytes" not in found
    assert found["infercanary_cgroup_memory_bytes"] == 1048576


def test_no_cgroup_is_unavailable_and_not_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        list(CgroupSampler(tmp_path, tmp_path / "proc").sample())
    tree(tmp_path, {"proc/cgroup": "0::/\n"})
    with pytest.raises(Unavailable, match="no cgroup is mounted at"):
        list(CgroupSampler(tmp_path, tmp_path / "proc").sample())


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-3", 4), ("0-3,8,10-11\n", 7), ("", 0), ("\n", 0)])
def test_cpu_lists(text: str, count: int) -> None:
    assert parse_cpu_list(text) == count
