"""The sampler of the threads of host process and canaries, with this process and with simulated threads."""

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from fresh import in_a_fresh_process

from infercanary.probe import Probe
from infercanary.probe.pool import Pool
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.threads import Place, ThreadSampler, ThreadUsage, thread_place, thread_usage
from infercanary.probe.tags import values
from tests.kernel_files import tree
from tests.scenarios import typed
from tests.targets import Scripted, opened

CPUS = os.sched_getaffinity(0)

needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def sampled(sampler):
    """Return the values by name without prefix; labels follow after spaces, except "" and "process"."""
    found = {}
    for family in sampler.sample():
        for point in family.points:
            assert isinstance(point.value, float)
            name = family.name.removeprefix("infercanary_").removeprefix("process_").removesuffix("_total")
            labels = (label for label in point.labels if label not in ("", "process"))
            found[" ".join((name, *labels))] = point.value
    return found


@contextmanager
def waiting(count, begin=lambda: None):
    stop, begun = threading.Event(), threading.Barrier(count + 1)

    def wait():
        begin()
        begun.wait(60)
        stop.wait(60)

    with ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(wait)
        begun.wait(60)
        try:
            yield
        finally:
            stop.set()


def test_context_switches_are_those_of_all_threads():
    """psutil reads /proc/self/status, which has only the main thread."""
    before = sampled(ThreadSampler())["context_switches voluntary"]

    def sleep():
        for _ in range(200):
            time.sleep(0.0005)

    thread = threading.Thread(target=sleep)
    thread.start()
    thread.join()
    assert sampled(ThreadSampler())["context_switches voluntary"] - before >= 200


def beside_three_pinned_threads():
    """Return samples before three threads are pinned, with a GPU near the first CPU, and with a GPU near all CPUs."""
    before, near, far = sampled(ThreadSampler()), min(CPUS), max(CPUS)
    cpus = iter((near, far, far))

    def pin():
        os.sched_setaffinity(threading.get_native_id(), {next(cpus)})
        time.sleep(0.001)  # after it wakes up, it is on a permitted CPU

    with waiting(3, pin):
        found = sampled(ThreadSampler(local_cpus=lambda: {"0": frozenset({near})}))
        found["threads"] = len(os.listdir("/proc/self/task"))
        return before, found, sampled(ThreadSampler(local_cpus=lambda: {"0": frozenset(CPUS)}))


@needs_two_cpus
def test_pinned_threads_are_counted_and_those_off_the_gpus_node():
    """The other threads may run on any CPU. Pinned threads do not reduce the CPUs of the process."""
    before, found, everywhere = in_a_fresh_process(beside_three_pinned_threads)
    assert (before["pinned_threads"], found["pinned_threads"]) == (0, 3)
    assert found["allowed_cpus"] == before["allowed_cpus"] == len(CPUS)
    assert found["cpu_seconds"] >= before["cpu_seconds"] > 0
    assert 2 <= found["off_node_threads"] <= found["threads"] - 1
    assert everywhere["off_node_threads"] == 0


# CPUs by the cgroup | computing threads | granted CPUs | threads for each CPU. A single thread may be
# throttled, but waits for no other. Of 1000 CPUs, the affinity mask is the limit.
GRANTED = f"""
~    | ~                | {len(CPUS)} | ~
0.5  | 4                | 0.5         | 4.0
0.5  | 1                | 0.5         | 1.0
1000 | {3 * len(CPUS)}  | {len(CPUS)} | 3.0
0.5  | 0                | 0.5         | ~
{"1.5 | 6 | 1.5 | 4.0" if len(CPUS) > 1 else ""}
"""


@pytest.mark.parametrize(("by_cgroup", "computing", "granted", "ratio"), typed(GRANTED))
def test_granted_cpus_and_oversubscription(monkeypatch, by_cgroup, computing, granted, ratio):
    monkeypatch.setattr("infercanary.probe.samplers.threads.granted_cpus", lambda: by_cgroup)
    found = sampled(ThreadSampler(compute_threads=lambda: computing))
    assert found["granted_cpus"] == granted
    assert found.get("thread_oversubscription_ratio") == ratio


def test_more_threads_than_cpus_are_a_warning_once(monkeypatch, caplog):
    monkeypatch.setattr("infercanary.probe.samplers.threads.granted_cpus", lambda: 1.0)
    sampler = ThreadSampler(compute_threads=lambda: 8)
    for _ in range(2):
        list(sampler.sample())
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "8 computing threads share 1 CPUs" in record.getMessage()


def test_threads_that_vanish_while_it_looks():
    """A thousand short threads run during samples. No sample may fail because a thread ended."""
    sampler = ThreadSampler(local_cpus=lambda: {"0": frozenset(CPUS)})

    def churn():
        for _ in range(100):
            with waiting(10):
                pass

    samples = []
    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        while not churning.done():
            samples.append(sampled(sampler))
    assert len(samples) >= 3
    for name in ("migrations", "run_queue_seconds"):
        counts = [found.get(name, 0.0) for found in samples]
        assert counts == sorted(counts), "a counter never goes back"


def live(folder, threads):
    """Write the threads of the process into ``folder``: ``id migrations``, where the id may be a range.

    Thread 1 ran last on CPU 1, and so on. Each thread waited for 100 ns for each migration.
    """
    shutil.rmtree(folder / "task", ignore_errors=True)
    for entry in filter(None, threads.split(", ")):
        ids, moves = entry.split()
        first, _, last = ids.partition("-")
        for tid in range(int(first), int(last or first) + 1):
            head = f"nr_migrations : 7 ({tid}, #threads: 1)\n---\nse.exec_start : 1\n"
            files = {
                "sched": f"{head}se.nr_migrations    :      {moves}\n",
                "schedstat": f"123456 {100 * int(moves)} 77\n",
                "stat": f"{tid} (a b) S (c) R {'1 ' * 35}{tid} 0 0\n",
            }
            tree(folder / "task" / str(tid), files)


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """The threads of the process are those of a folder, and may run on CPUs 0 and 1."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _tid: {0, 1})
    monkeypatch.setattr("infercanary.probe.samplers.threads._TASK", str(tmp_path / "task"))
    return tmp_path


def moved(sampler):
    found = sampled(sampler)
    assert found["run_queue_seconds"] == pytest.approx(found["migrations"] * 100e-9)
    return found["migrations"]


def test_counters_keep_the_share_of_threads_that_ended(simulated, monkeypatch):
    sampler = ThreadSampler()
    # In the last step, a thread with two migrations reuses the second id.
    for threads, moves in {"1 10, 2 5": 15, "1 12, 2 9": 21, "1 12": 21, "1 13, 2 2": 24}.items():
        live(simulated, threads)
        assert moved(sampler) == moves

    def exhausted(_path, _flags):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:  # without free descriptors, a host still lists its threads
        patch.setattr(os, "open", exhausted)
        assert moved(sampler) == 24
    assert moved(sampler) == 24, "nothing is counted twice"


def test_a_sample_reads_some_of_many_threads_and_later_ones_the_others(simulated, monkeypatch):
    """Each change is counted, but some are counted late; new threads come first."""
    monkeypatch.setattr("infercanary.probe.samplers.threads.DETAILED", 40)
    sampler = ThreadSampler()
    for threads, moves in (
        ("1-100 1", [40, 80, 100, 100]), ("1-100 3", [180, 260, 300, 300]), ("1-2 3", [300]),
        ("1-2 4, 101-140 1", [340, 342]),
    ):  # fmt: skip
        live(simulated, threads)
        assert [moved(sampler) for _ in moves] == moves


@pytest.mark.parametrize("text", ["", "0 0 0\n", "garbage\n", "1 2\n", "-1 x 3\n", "\0\0\0"], ids=repr)
def test_a_kernel_that_does_not_count(simulated, monkeypatch, text):
    live(simulated, "0-1 0, 17 0")
    sampler = ThreadSampler(local_cpus=lambda: {"0": frozenset({0}), "1": frozenset({1})})
    assert sampled(sampler)["off_node_threads"] == 1, (
        "the last CPU is found after a name with spaces and brackets"
    )
    for file in (simulated / "task").glob("*/*"):
        file.write_text(text)
    found = sampled(ThreadSampler(local_cpus=lambda: {"0": frozenset({0})}))
    assert not found.keys() & {"migrations", "run_queue_seconds"}
    assert found["off_node_threads"] == 0
    monkeypatch.setattr("infercanary.probe.samplers.threads._TASK", str(simulated / "none/task"))
    with pytest.raises(Unavailable, match="task cannot be read"):
        list(ThreadSampler().sample())


# Usage of one thread ---------------------------------------------------------------------------------------------


def test_usage_is_that_of_the_calling_thread():
    def work():
        before, begin = thread_usage(), time.thread_time()
        while time.thread_time() - begin < 0.05:
            pass
        for _ in range(5):
            time.sleep(0.001)
        return thread_usage() - before

    begin = thread_usage()
    with ThreadPoolExecutor(1) as pool:
        worked = pool.submit(work).result()
    assert 0.04 < worked.cpu_seconds < 0.5
    assert worked.voluntary >= 5
    assert (thread_usage() - begin).cpu_seconds < worked.cpu_seconds


def test_usage_adds_up_and_what_is_not_known_stays_so(monkeypatch):
    total = ThreadUsage() + (ThreadUsage(3.0, 0.5, 20, 4, 7) - ThreadUsage(1.0, 0.25, 15, 3, 5))
    assert total[:5] == (2.0, 0.25, 5, 1, 2)
    assert (total + total)[:5] == (4.0, 0.5, 10, 2, 4)
    monkeypatch.setattr("infercanary.probe.samplers.threads._read", lambda path: b"")
    untold = thread_usage()
    assert (untold - total)[1] is (total + untold)[4] is untold.migrations is None
    # The wait for others is the CPU wait minus the CPU time of the process's other threads.
    for queued, waited in {0.5: 0.2, 0.2: 0.0, None: None}.items():
        usage = ThreadUsage(cpu_seconds=0.4, run_queue_seconds=queued, process_cpu_seconds=0.7)
        assert usage.waited == pytest.approx(waited)


@needs_two_cpus
@pytest.mark.parametrize("cpu", [min(CPUS), max(CPUS)])
def test_the_place_is_that_of_the_thread_that_is_asked_for(cpu, monkeypatch):
    tids, here = list[int](), threading.get_native_id()

    def pin():
        os.sched_setaffinity(0, {cpu})
        tids.append(threading.get_native_id())

    with waiting(1, pin):
        assert thread_place(tids[0]) == Place(frozenset({cpu}), cpu)
        assert thread_place(here).cpus == CPUS
    deadline = time.monotonic() + 10  # the kernel's thread ends after Python's
    while thread_place(tids[0]) != Place(None, None):
        assert time.monotonic() < deadline, "it ended"
    monkeypatch.setattr("infercanary.probe.samplers.threads._read", lambda path: b"")
    assert thread_place(here) == Place(frozenset(CPUS), None), "only the known part of the place is given"


NODES = {"0": frozenset({0, 1}), "1": frozenset({2, 3})}


# Allowed CPUs, last CPU and GPUs of a canary | True if nodes are known | number of allowed CPUs, and 1 if off
# its node
PLACES = """
0     0 ? nodes   1 0
0,5   5 ? nodes   2 1
0,1,2 ? ? nodes   3 ?
?     0 ? nodes   ? 0
?     ? ? nodes   ? ?
0     0 ? unknown 1 ?
?     2 0 nodes   ? 1
?     2 1 nodes   ? 0
?     2 0,1 nodes ? 0
?     2 - nodes   ? ?
?     2 7 nodes   ? ?
"""


@pytest.mark.parametrize("row", PLACES.strip().splitlines())
def test_the_known_part_of_a_canarys_place_is_shown(row):
    cpus, cpu, gpus, nodes, *expected = row.split()
    place = Place(
        None if cpus == "?" else frozenset(map(int, cpus.split(","))), None if cpu == "?" else int(cpu),
        None if gpus == "?" else frozenset(gpus.strip("-").split(",")) - {""},
    )  # fmt: skip
    local = NODES if nodes == "nodes" else {}
    found = sampled(ThreadSampler(places=lambda: {"a": place}, local_cpus=lambda: local))
    names = ("allowed_cpus canary a", "off_node_threads canary a")
    assert [f"{found[name]:g}" if name in found else "?" for name in names] == expected
    assert ("off_node_threads" in found) == bool(local)


# A real canary, and the thread pools of its engine -----------------------------------------------------------------

NEAR, FAR = min(CPUS), max(CPUS)


def reported(canary, *local):
    """Return the sampler's values for a canary, beside a GPU whose node has these CPUs."""
    places = {} if canary.place is None else {canary.name: canary.place}
    near = {"0": frozenset(local)} if local else {}
    found = sampled(ThreadSampler(places=lambda: places, local_cpus=lambda: near))
    own = " canary a"
    return {name.removesuffix(own): value for name, value in found.items() if name.endswith(own)}


@needs_two_cpus
def test_its_place_is_that_of_the_thread_that_lives_for_the_round():
    cpus: frozenset[int] = frozenset()

    def pin():
        if cpus:
            os.sched_setaffinity(0, cpus)

    target = Scripted(pin)
    canary = opened(target)
    assert canary.place is None and reported(canary, NEAR) == {}, "it has not run yet"
    for cpu in (FAR, NEAR):
        cpus = frozenset({cpu})
        canary.round(5)
        assert canary.place == Place(frozenset({cpu}), cpu)
        assert reported(canary, NEAR) == {"allowed_cpus": 1, "off_node_threads": cpu != NEAR}
    assert reported(canary) == {"allowed_cpus": 1}, "no GPU is known"
    cpus = frozenset()
    canary.round(5)
    assert reported(canary, *CPUS) == {"allowed_cpus": len(CPUS), "off_node_threads": 0}
    target.act = lambda: 1 / 0
    canary.round(5)
    assert reported(canary, *CPUS) == {} and canary.close(10), "after a failed run the place is unknown"
    with ThreadPoolExecutor(1, initializer=lambda: os.sched_setaffinity(0, {FAR})) as executor:
        canary = opened(Scripted(), Pool(executor, None))
        canary.round(5)
        assert reported(canary, NEAR) == {"allowed_cpus": 1, "off_node_threads": 1}, (
            "the place is of the server's pool"
        )
        assert canary.close(10)


ENGINES = """
{torch_intra_op_threads: "4", torch_inter_op_threads: "32"} | 4
{onnx_intra_op_threads: "2", onnx_inter_op_threads: "1"}    | 2
{torch_inter_op_threads: "8"}                               | 0
{torch_intra_op_threads: many}                              | 0
"""


@pytest.mark.parametrize(("components", "threads"), typed(ENGINES))
def test_the_computing_threads_of_its_engine(components, threads):
    canary = opened(Scripted(components=components))
    assert canary.compute_threads == threads and canary.close(10), "without inter_op"


def test_a_probe_reports_them():
    probe = Probe({"a": Scripted(components={"torch_intra_op_threads": "4"})}, controls=False)
    probe.open()
    report = probe.once()
    assert probe.close()
    assert report is not None
    found = values(report.families)
    assert found["infercanary_allowed_cpus"] == {("process", ""): len(CPUS), ("canary", "a"): len(CPUS)}
    # The sampler reports the values of the process, and the canary's runs report the values of the canary.
    for name in ("cpu_seconds", "context_switches", "run_queue_seconds", "migrations"):
        scopes = {labels[:2] for labels in found.get(f"infercanary_{name}_total", {})}
        assert not scopes or {("process", ""), ("canary", "a")} <= scopes, name
    assert found["infercanary_thread_oversubscription_ratio"].keys() == {()}
