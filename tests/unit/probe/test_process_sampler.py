"""The sampler of processes, with real processes."""

import os
import sys
import time
from contextlib import contextmanager

import psutil
import pytest
from fresh import in_a_pid_namespace, running

from infercanary.probe.samplers import processes
from infercanary.probe.samplers.processes import ProcessSampler

CPU, MEMORY = "infercanary_cpu_seconds_total", "infercanary_resident_memory_bytes"
WORK = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"


def sampled(of):
    return {
        f.name: {p.labels[-1]: p.value for p in f.points if isinstance(p.value, float)} for f in of.sample()
    }


@contextmanager
def worker(folder, name):
    program = folder / name
    if not program.exists():
        program.symlink_to(sys.executable)
    with running(program, "-c", WORK) as (child, _):
        yield psutil.Process(child.pid)


@pytest.fixture(autouse=True)
def every_process(monkeypatch):
    monkeypatch.setattr(processes, "in_container", lambda: True)
    monkeypatch.setattr(processes, "MOST", 100_000)


def test_outside_of_a_container_it_shows_its_own_memory_alone(monkeypatch):
    monkeypatch.setattr(processes, "in_container", lambda: False)
    found = sampled(ProcessSampler())
    assert found == {MEMORY: {"": pytest.approx(psutil.Process().memory_info().rss, rel=0.2)}}


def test_other_processes_are_summed_by_command(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "COMMANDS", 100_000)
    of, others = ProcessSampler(), ProcessSampler()
    before, known = sampled(of), len(sampled(others)[CPU])
    with worker(tmp_path, "infer-worker") as one, worker(tmp_path, "infer-worker") as other:
        with monkeypatch.context() as patch:
            patch.setattr(processes, "COMMANDS", known)
            nameless = sampled(others)
        beside = sampled(of)
        assert 0.5 <= beside[CPU]["infer-worker"] < 60
        both = one.memory_info().rss + other.memory_info().rss
        assert beside[MEMORY]["infer-worker"] == pytest.approx(both, rel=0.3)
    after = sampled(of)
    for shown in (before[CPU], nameless[CPU], nameless[MEMORY], after[MEMORY]):
        assert "infer-worker" not in shown
    assert nameless[CPU]["others"] >= 0.25
    assert nameless[MEMORY]["others"] > 1 << 20
    assert after[CPU]["infer-worker"] == beside[CPU]["infer-worker"], (
        "a counter keeps the CPU time of ended processes"
    )


def test_it_is_not_one_of_the_others_and_a_sample_reads_a_bounded_number(monkeypatch):
    begin = time.process_time()
    while time.process_time() - begin < 0.2:
        pass
    read = {pid for pid, *_ in processes._others()}
    assert os.getpid() not in read
    assert os.getppid() in read
    monkeypatch.setattr(processes, "MOST", 1)
    assert len(sampled(ProcessSampler())[MEMORY]) == 2, "this process, and one other"


def test_an_id_that_is_used_again_is_another_process(monkeypatch):
    seconds = iter((3.0, 5.0, 1.0, 1.5))
    monkeypatch.setattr(processes, "_others", lambda: iter([(os.getpid(), "python", next(seconds), 1)]))
    of = ProcessSampler()
    assert [sampled(of)[CPU]["python"] for _ in range(4)] == [3.0, 5.0, 6.0, 6.5]


@pytest.mark.root
def test_in_a_container_the_others_are_those_of_the_container():
    script = (
        "from infercanary.probe.samplers.processes import ProcessSampler\n"
        "for f in ProcessSampler().sample(): print(f.name, *(p.labels for p in f.points))\n"
    )
    printed = in_a_pid_namespace('sleep 60 & "$0" -c "$1"; kill $!', script)
    assert printed.splitlines() == [
        f"{CPU} ('beside', '', 'sh') ('beside', '', 'sleep')",
        f"{MEMORY} ('process', '') ('beside', 'sh') ('beside', 'sleep')",
    ]
