"""Time since the container's start, with real processes in a PID namespace like a container's."""

import sys
import time

import psutil
import pytest
from fresh import in_a_pid_namespace, printed, running

from infercanary.contract.started import started
from infercanary.probe.start import of_container, since_start

PRINT = "from infercanary.probe.start import in_container, since_start; print(in_container(), since_start())"


@pytest.mark.parametrize(
    ("own", "first", "seconds"), [(88.0, 90.0, 90.0), (5.0, 9e5, None), (0.0, -0.004, 0.0)]
)
def test_a_cold_start_is_the_containers(own, first, seconds):
    """The result is the time since the container's first process, but not after a restart days later."""
    assert of_container(own, first) == seconds


def test_of_a_process_that_has_just_started():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    with running(sys.executable, "-c", "import time\nprint(flush=True)\ntime.sleep(60)") as (child, _):
        assert before - 0.02 <= started(child.pid) <= time.clock_gettime(time.CLOCK_BOOTTIME)
    with pytest.raises(psutil.NoSuchProcess):
        started(child.pid)


def found(text):
    contained, seconds = text.split()
    return contained == "True", float(seconds)


def test_outside_of_a_container_it_is_since_the_process_started():
    begin = time.monotonic()
    contained, seconds = found(printed(PRINT))
    if contained:
        pytest.skip("the tests themselves run in a container")
    assert 0 < seconds < time.monotonic() - begin + 0.02


@pytest.mark.root
def test_in_a_container_it_is_since_its_first_process_started():
    contained, seconds = found(in_a_pid_namespace('sleep 0.5; "$0" -c "$1"; :', PRINT))
    assert contained
    assert 0.5 <= seconds < 60


def test_without_proc_it_is_since_the_import(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert 0 <= (since_start() or -1) < 3600
