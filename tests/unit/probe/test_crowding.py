"""Origin of a canary's CPU wait: a busy process and a busy thread beside the canary, on one real CPU."""

import hashlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from unittest.mock import patch

import pytest
from fresh import running

from infercanary.probe.contention import Helped, explain_repeats, off_cpu
from infercanary.probe.samplers import Unavailable, cgroup, network
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.network import RECEIVED, NetworkSampler
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.tags import Sample, Window, tags, values
from tests.kernel_files import tree
from tests.targets import Scripted, opened

CPU = max(os.sched_getaffinity(0))
REPEATS = 12  # with fewer repeats, two processes on one CPU may get quite different shares

pytestmark = pytest.mark.quiet


def spin():
    """Compute for about 15 ms on one CPU, which is more than two ticks of the scheduler. In shorter repeats, all
    CPU wait may fall between the repeats, where the thread's CPU clock is read.
    """
    os.sched_setaffinity(0, {CPU})
    sum(range(1_500_000))


class Container(ContainerCpu):
    def __init__(self, *pids):
        self._pids = pids

    def seconds(self):
        return process_time() + sum(_ran(pid) for pid in self._pids)


def _ran(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def busy_process():
    code = f"import os\nos.sched_setaffinity(0, {{{CPU}}})\nprint(1, flush=True)\nwhile True: pass"
    return running(sys.executable, "-c", code)


@contextmanager
def busy_thread():
    end, data = threading.Event(), b"x" * (8 << 20)

    def work():
        os.sched_setaffinity(0, {CPU})
        while not end.is_set():
            hashlib.sha256(data).digest()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        try:
            yield
        finally:
            end.set()


def round_of(container, phase="compute"):
    with patch("infercanary.probe.timed_target.ContainerCpu", lambda: container):
        canary = opened(Scripted(spin, phase=phase))
    done = canary.round(REPEATS)
    assert done.outcome == "ok"
    assert canary.close(10.0)
    return done


def tagged(done):
    return {*tags(Window(done, 0.0, {}, Sample(), {}, Sample(), Sample()))} & {
        "cpu_wait_outside",
        "cpu_wait_inside",
    }


def summed(each):
    assert len(each) == REPEATS
    assert None not in each
    return sum(seconds for seconds in each if seconds is not None)


# Other processes on this machine may also use the CPU. They count as outside, so no test may require their
# absence.


def test_a_busy_process_in_the_container_crowds_it_and_one_outside_preempts_it():
    with busy_process() as (other, _):
        done, outside = round_of(Container(other.pid)), round_of(Container())
    assert "cpu_wait_inside" in tagged(done)
    assert tagged(outside) == {"cpu_wait_outside"}
    assert done.inside is not None
    assert outside.inside is not None
    # The CPU wait inside is the CPU time of the other process during the canary's run.
    share = done.inside.share(done.busy - done.usage.cpu_seconds)
    assert summed(done.crowds) == pytest.approx(done.inside.processes_seconds * share, rel=0.5)
    assert summed(done.crowds) + summed(done.waits) == pytest.approx(done.usage.run_queue_seconds)
    assert summed(outside.crowds) < 0.1 * summed(outside.waits)
    assert done.inside.cores > 10 * outside.inside.cores
    assert done.crowded
    assert outside.waited


def test_a_busy_thread_of_the_own_process_crowds_it():
    with busy_thread():
        done = round_of(Container())
    assert "cpu_wait_inside" in tagged(done)
    assert done.inside is not None
    assert done.inside.processes_seconds < 0.2 * done.inside.cpu_seconds


@pytest.mark.parametrize("phase", ["wait", "compute"])
def test_cpu_wait_inside_is_unknown_for_another_container(tmp_path, monkeypatch, phase):
    monkeypatch.setattr(cgroup, "_PROC", tmp_path)
    container = Container() if phase == "wait" else ContainerCpu()
    with busy_process():
        done = round_of(container, phase)
    assert done.inside is None
    assert done.crowded is None
    assert done.waited is not None, "other processes had the CPU, wherever they were"
    assert tagged(done) == {"cpu_wait_outside"}


SNMP = "Ip: A B\nIp: 1 2\nTcp: ActiveOpens InSegs OutSegs\nTcp: 3 6468811 7\nUdp: InDatagrams\nUdp: 9\n"


@pytest.mark.parametrize(
    ("interfaces", "known"), [(["lo", "eth0"], True), (["lo", "eth0/device"], False), ([], False)]
)
def test_received_segments_are_known_with_a_separate_network(tmp_path, monkeypatch, interfaces, known):
    tree(tmp_path, {"snmp": SNMP} | {f"net/{name}/mtu": "" for name in interfaces})
    monkeypatch.setattr(network, "_SNMP", tmp_path / "snmp")
    monkeypatch.setattr(network, "_INTERFACES", tmp_path / "net")
    sampler = NetworkSampler()
    if known:
        assert values(sampler.sample()) == {RECEIVED.name: {(): 6468811.0}}
    else:
        with pytest.raises(Unavailable, match="shares the host's network"):
            list(sampler.sample())


# Time off the CPU -----------------------------------------------------------------------------------------------


# Milliseconds of 10: computed, queued, computed by the process. Helpers in percent: computed by one, waited,
# waited by all. Then the result.
OFF_CPU = """
2 1 8  -        queued=1 blocked=7 reading=0   for a lock
2 1 8  60,0,0   queued=1 blocked=1 reading=0   they computed for 6 ms
2 1 5  30,20,40 queued=5 blocked=0 reading=0   it slept 7 ms: 1 ms another computed longer, 4 ms others waited
10 0 8 60,40,40 queued=4 blocked=0 reading=0   it spins until the last is done
0 0 72 90,10,80 queued=1 blocked=0 reading=0   it computes little, and sleeps while another computes
2 1 8  reads    queued=1 blocked=0 reading=7
2 ? 2  -        reading=0 asleep=8             a kernel that counts no run queue
2 ? 2  reads    reading=8 asleep=0
"""


@pytest.mark.parametrize("row", OFF_CPU.strip().splitlines())
def test_why_it_did_not_compute(row):
    computed, queued, process, beside, *expected = row.split()
    helped = Helped(*(int(share) / 100 for share in beside.split(","))) if "," in beside else None
    used = ThreadUsage(
        cpu_seconds=int(computed) / 1e3, run_queue_seconds=None if queued == "?" else int(queued) / 1e3,
        process_cpu_seconds=int(process) / 1e3, blocks_read=8 * (beside == "reads"),
    )  # fmt: skip
    pairs = (word.split("=") for word in expected if "=" in word)
    assert off_cpu(used, 0.010, helped) == pytest.approx({name: int(number) / 1e3 for name, number in pairs})


def test_one_repeat_that_waited_for_its_helpers_has_not_slowed_the_others():
    """Regression: in one of 50 repeats of 1 ms, a helper had no CPU for half a second. On a busy machine, a
    canary of 32 µs was called scheduling-bound by 86 %.
    """
    walls = [0.001] * 49 + [0.501]
    # the thread spins until its helpers end
    used = [ThreadUsage(wall, 0.0, process_cpu_seconds=wall) for wall in walls]
    share = 0.5 / sum(walls)
    for count, helped, queued in (
        (50, Helped(0.1, share, share), [0.0] * 49 + [0.5]),
        (49, Helped(0.6, 0.4, 0.4), [0.0004] * 49),  # if all repeats take equally long, all of them waited
    ):
        _, _, why = explain_repeats(used[:count], walls[:count], 1, None, helped)
        assert [repeat["queued"] for repeat in why] == pytest.approx(queued)
