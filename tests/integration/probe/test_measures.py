"""Measures of runs, by probes in separate processes and in a server's process, with real torch models."""

import resource
import shlex
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack

import pytest
from control_group import limited
from ports import free_port
from probe_process import PROBE, ProbeProcess
from scripted import Scripted
from watching import MODULES, ran

from infercanary.contract.measures import HOST_MEMORY, THROUGHPUT

pytestmark = pytest.mark.takes(60)

torch = pytest.importorskip("torch")


def test_more_memory_is_reported_as_that_and_throughput_is_of_all_samples(tmp_path):
    canary = "{c: {target: torch, options: {model: 'holding:model', inputs: [{shape: [4, 256]}]}}}"
    variants = {
        "plain": {},
        "held": {"HELD": "100000000"},
        "taken": {"TAKES": "100000000"},
    }
    memory = {}
    with ExitStack() as stack:
        probes = {}
        for name, more in variants.items():
            probe = ProbeProcess(
                tmp_path / name, canary, "controls: false", environment={"OMP_NUM_THREADS": "1", **more}
            )
            probes[name] = stack.enter_context(probe)
        for name, probe in probes.items():
            seen = probe.ran(runs=4)
            runs = [run for run in seen.report.runs if run.outcome == "ok"]
            values = [run.measures[HOST_MEMORY] for run in runs]
            assert 50e6 < max(values) < 1.03 * min(values), "torch alone uses this memory"
            memory[name] = statistics.median(values)
            last = runs[-1]
            assert last.measures[THROUGHPUT] == pytest.approx(4 * len(last.latencies) / sum(last.latencies))
            assert seen.value("infercanary_run_samples_per_second", "c") == last.measures[THROUGHPUT]
    for name in ("held", "taken"):
        assert memory[name] - memory["plain"] == pytest.approx(100e6, rel=0.1), name


def test_in_a_servers_process_its_peak_stays_its_own(started):
    """The probe must not reset the peak, because some servers restart a worker by ``ru_maxrss``."""
    taken = bytearray(b"x") * (200 << 20)
    del taken
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = ran(started({"a": Scripted()}).address, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >= peak
    for run in seen.report.runs:
        assert 10e6 < run.measures[HOST_MEMORY] < (peak << 10) - (100 << 20), (
            "the value is resident memory, not the peak"
        )


def test_runs_before_and_with_the_controls_memory_are_not_compared(started):
    seen = ran(started({"a": Scripted()}, controls=True).address, 5)
    first, *later = [run.measures for run in seen.report.runs]
    assert first.keys() == {THROUGHPUT}
    memory = [each[HOST_MEMORY] for each in later]
    # Meanwhile, threads of other tests may start or end in this process. The controls use 36 MiB.
    assert max(memory) - min(memory) < 24 << 20


NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SERVER = (
    "import sys, threading, faulty; held = b'x' * int(sys.argv[2]); faulty.Faulty(port=int(sys.argv[1])); "
    "threading.Event().wait()"
)


@pytest.mark.root
@pytest.mark.parametrize("is_beside", [True, False], ids=["in its container", "outside"])
def test_the_memory_of_a_server_in_the_same_container(tmp_path, is_beside):
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"]).returncode:
        pytest.skip("PID namespaces need more rights here")

    def memory_of(held, group):
        port = free_port()
        serve = [sys.executable, "-c", SERVER, str(port), str(held)]
        both = f"{shlex.join(serve)} & " if is_beside else ""
        command = group.joining(*NAMESPACE, "sh", "-c", f'{both}"$0" "$@"; :', *PROBE)
        canary = f"{{c: {{target: http, options: {{url: 'http://127.0.0.1:{port}/'}}}}}}"
        outside = None if is_beside else subprocess.Popen(serve, cwd=MODULES)
        try:
            with ProbeProcess(tmp_path, canary, "controls: false", command=command) as probe:
                seen = probe.ran(runs=3)
        finally:
            if outside is not None:
                outside.kill()
                outside.wait()
        return [run.measures.get(HOST_MEMORY) for run in seen.report.runs if run.outcome == "ok"]

    found = []
    for held in (10 << 20, 110 << 20):
        with limited(1 << 30) as group:
            found.append(memory_of(held, group))
    if not is_beside:
        assert {*found[0], *found[1]} == {None}, "only the address of the server is known"
        return
    few, many = (statistics.median(value for value in values if value is not None) for values in found)
    assert many - few == pytest.approx(100 << 20, rel=0.05)
