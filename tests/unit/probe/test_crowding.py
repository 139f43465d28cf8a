"""Who had the CPU that a canary waited for: a busy process and a busy thread beside it, on one real CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from infercanary.probe import HostClock, Phase
from infercanary.probe.canary import Canary
from infercanary.probe.contention import Helped, explain_repeats, off_cpu
from infercanary.probe.histogram import Tally
from infercanary.probe.result import RunResult
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.network import RECEIVED, NetworkSampler
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.tags import Window, tags, values
from infercanary.probe.targets import Target

CPU = max(os.sched_getaffinity(0))
REPEATS = 12  # of fewer, two processes that share a CPU need not have had the same part of it

pytestmark = pytest.mark.quiet


class Spin(Target):
    """Computes for about 15 ms, on one CPU; ``phase`` is what it calls that.

    Of less than two ticks of the scheduler all waiting may come between the repeats, where the CPU's clock is read.
    """

    def __init__(self, phase: str = "compute", length: int = 1_500_000) -> None:
        self.clock = HostClock()
        self._phase = phase
        self._length = length

    def open(self) -> None: ...

    def run(self, phase: Phase) -> None:
        os.sched_setaffinity(0, {CPU})
        with phase(self._phase):
            sum(range(self._length))

    def values(self, _result: Any) -> Sequence[float]:
        return [1.0]

    def environment(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None: ...


class Container(ContainerCpu):
    """A container of this process and of others, whose CPU time the kernel counts one by one."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def seconds(self) -> float | None:
        return process_time() + sum(_ran(pid) for pid in self._pids)


def _ran(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def busy_process() -> Iterator[int]:
    """A process that computes on the canary's CPU."""
    code = f"import os\nos.sched_setaffinity(0, {{{CPU}}})\nprint(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread of this process that computes on the canary's CPU, and holds no interpreter lock meanwhile."""
    import hashlib

    end, data = threading.Event(), b"x" * (8 << 20)

    def work() -> None:
        os.sched_setaffinity(0, {CPU})
        while not end.is_set():
            hashlib.sha256(data).digest()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def round_of(
    container: ContainerCpu, target: Spin | None = None, repeats: int = REPEATS
) -> tuple[RunResult, Tally]:
    """One round of a canary in ``container``."""
    tally = Tally()
    canary = Canary("a", target or Spin(), tally, 30.0, 30.0, None, container)
    canary.open(30.0)
    assert canary.is_open
    try:
        done = canary.round(repeats)
        assert done is not None and done.outcome == "ok"
        return done, tally
    finally:
        assert canary.close(10.0)


def tagged(done: RunResult) -> set[str]:
    window = Window(done, 0.0, *({},) * 5)
    return {*tags(window)} & {"cpu_wait_outside", "cpu_wait_inside"}


def summed(each: Sequence[float | None]) -> float:
    assert len(each) == REPEATS and None not in each
    return sum(seconds for seconds in each if seconds is not None)


# Whoever else is on this machine may take the CPU too: that is outside, and no test of these counts on its absence.


def test_a_busy_process_in_the_container_crowds_it_and_one_outside_preempts_it() -> None:
    with busy_process() as other:
        inside, _ = round_of(Container(other))
        outside, _ = round_of(Container())
    assert "cpu_wait_inside" in tagged(inside)
    assert tagged(outside) == {"cpu_wait_outside"}
    assert inside.inside is not None and outside.inside is not None
    # What the other process took while the canary ran is what it waited for.
    away = inside.busy - inside.usage.cpu_seconds
    assert summed(inside.crowds) == pytest.approx(
        inside.inside.processes_seconds * inside.inside.share(away), rel=0.5
    )
    assert summed(inside.crowds) + summed(inside.waits) == pytest.approx(inside.usage.run_queue_seconds)
    assert summed(outside.crowds) < 0.1 * summed(outside.waits)
    assert inside.inside.cores > 10 * outside.inside.cores
    assert inside.crowded and outside.waited


def test_a_busy_thread_of_the_own_process_crowds_it() -> None:
    with busy_thread():
        done, _ = round_of(Container())
    assert "cpu_wait_inside" in tagged(done)
    assert done.inside is not None and done.inside.processes_seconds < 0.2 * done.inside.cpu_seconds


@pytest.mark.parametrize("phase", ["wait", "compute"])
def test_where_the_container_is_not_the_canarys_nothing_is_known(tmp_path: Path, phase: str) -> None:
    """A canary that calls a server, which may be in another container; and a process that is in no container."""
    container = Container() if phase == "wait" else ContainerCpu(tmp_path, tmp_path)
    with busy_process():
        done, _ = round_of(container, Spin(phase))
    assert done.inside is None and done.crowded is None
    assert done.waited is not None, "other processes had the CPU, wherever they were"
    assert tagged(done) == {"cpu_wait_outside"}


SNMP = "Ip: A B\nIp: 1 2\nTcp: ActiveOpens InSegs OutSegs\nTcp: 3 6468811 7\nUdp: InDatagrams\nUdp: 9\n"


@pytest.mark.parametrize(
    ("interfaces", "known"), [(["lo", "eth0"], True), (["lo", "eth0/device"], False), ([], False)]
)
def test_what_it_receives_is_known_of_a_container_with_its_own_network(
    tmp_path: Path, interfaces: list[str], known: bool
) -> None:
    (tmp_path / "snmp").write_text(SNMP)
    for name in interfaces:
        (tmp_path / "net" / name).mkdir(parents=True)
    sampler = NetworkSampler(tmp_path / "snmp", tmp_path / "net")
    if known:
        assert values(sampler.sample()) == {RECEIVED.name: {(): 6468811.0}}
    else:
        with pytest.raises(Unavailable, match="no network of its own"):
            list(sampler.sample())


# Why it did not compute ------------------------------------------------------------------------------------------


def test_waiting_for_a_cpu_and_for_a_lock_is_scheduling() -> None:
    with busy_process():
        queued, _ = round_of(Container())
    lock, _ = round_of(Container(), Sleep())
    assert named(queued) == "scheduling" and named(lock) == "scheduling"
    assert lock.idle["blocked"] == pytest.approx(0.015, rel=0.5) and lock.idle["reading"] == 0


def test_a_file_that_is_not_in_the_page_cache_is_io(tmp_path: Path) -> None:
    done, _ = round_of(Container(), Read(tmp_path / "weights"))
    if not done.usage.blocks_read:
        pytest.skip("temporary files are in memory here")
    assert done.bottlenecks["io"] > 0.1
    assert done.idle["reading"] > 0 and done.idle["blocked"] == 0


def named(done: RunResult) -> str:
    assert sum(done.bottlenecks.values()) == pytest.approx(1.0)
    return max(done.bottlenecks, key=lambda limit: done.bottlenecks[limit] if limit != "compute" else 0.0)


class Sleep(Spin):
    """Waits for what nobody gives it, and computes a little."""

    def run(self, phase: Phase) -> None:
        with phase("compute"):
            threading.Event().wait(0.015)


class Read(Spin):
    """Reads a file that the kernel has just forgotten."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def open(self) -> None:
        self._path.write_bytes(os.urandom(8 << 20))
        with self._path.open("rb") as file:
            os.fsync(file)

    def run(self, phase: Phase) -> None:
        with phase("compute"), self._path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read()


def test_a_caller_waits_for_its_engines_threads_and_those_for_a_cpu() -> None:
    used = ThreadUsage(cpu_seconds=0.002, run_queue_seconds=0.001, process_cpu_seconds=0.008)
    alone, helped = off_cpu(used, 0.010), off_cpu(used, 0.010, Helped(0.6, 0.0, 0.0))
    assert alone == approx(queued=0.001, blocked=0.007), "for a lock"
    assert helped == approx(queued=0.001, blocked=0.001), "they computed for 6 ms"
    # It slept 7 ms: for 1 ms another computed longer than it did, and for 4 ms others waited for a CPU.
    crowded = off_cpu(used._replace(process_cpu_seconds=0.005), 0.010, Helped(0.3, 0.2, 0.4))
    assert crowded == approx(queued=0.005, blocked=0.0)
    spinning = used._replace(cpu_seconds=0.010, run_queue_seconds=0.0)
    assert off_cpu(spinning, 0.010, Helped(0.6, 0.4, 0.4)) == approx(queued=0.004), "until the last is done"
    assert off_cpu(used._replace(blocks_read=8), 0.010)["reading"] == pytest.approx(0.007)


def test_threads_with_work_of_their_own_length_are_not_waiting() -> None:
    """A caller that computes little sleeps while another computes: one millisecond of ten it waited for a CPU."""
    used = ThreadUsage(cpu_seconds=0.0, run_queue_seconds=0.0, process_cpu_seconds=0.072)
    assert off_cpu(used, 0.010, Helped(0.9, 0.1, 0.8)) == approx(queued=0.001)


def test_one_repeat_that_waited_for_its_helpers_has_not_slowed_the_others() -> None:
    """49 repeats of 1 ms, and one in which a helper was without a CPU for half a second: seen on a busy machine, where
    a canary of 32 µs was said to be scheduling by 86 %."""
    walls = [0.001] * 49 + [0.501]
    ends = [sum(walls[: i + 1]) for i in range(50)]
    used = [ThreadUsage(end, 0.0, process_cpu_seconds=end) for end in ends]  # it spins until they are done
    waited = 0.5 / sum(walls)
    _, _, why = explain_repeats(used, walls, 1, None, Helped(0.1, waited, waited))
    assert [each["queued"] for each in why[:49]] == pytest.approx([0.0] * 49)
    assert why[49]["queued"] == pytest.approx(0.5)
    _, _, alike = explain_repeats(used[:49], walls[:49], 1, None, Helped(0.6, 0.4, 0.4))
    assert [each["queued"] for each in alike] == pytest.approx([0.0004] * 49), (
        "where all take as long, all waited"
    )


def approx(queued: float, blocked: float = 0.0, reading: float = 0.0) -> object:
    return pytest.approx({"queued": queued, "blocked": blocked, "reading": reading})


def test_where_the_kernel_counts_no_run_queue_sleep_is_unknown_but_for_reads() -> None:
    used = ThreadUsage(cpu_seconds=0.002, run_queue_seconds=None, process_cpu_seconds=0.002)
    assert off_cpu(used, 0.010) == {"reading": 0.0, "asleep": 0.008}
    assert off_cpu(used._replace(blocks_read=8), 0.010) == {"reading": 0.008, "asleep": 0.0}
