"""Sweeps of real torch models on the CPU and of a server, by a separate probe and in a server's process."""

import time

import pytest
from probe_process import ProbeProcess, run_probe
from scripted import Scripted
from watching import fetch, until

from infercanary.contract.measures import throughput_of
from infercanary.probe import Sweep, TorchTarget

pytestmark = pytest.mark.takes(90)

torch = pytest.importorskip("torch")


def canary(sweep, model="swept:layers", width=1024):
    options = f"{{model: '{model}', inputs: [{{shape: [1, {width}]}}]}}"
    return f"{{c: {{target: torch, options: {options}, sweep: {{{sweep}}}}}}}"


def sweeping(folder, canaries, duty_cap=1):
    return ProbeProcess(
        folder, canaries, "controls: false", duty_cap=duty_cap, environment={"OMP_NUM_THREADS": "1"}
    )


def point(seen, batch, concurrency=1):
    """Return latency and rate of a point."""
    labels = "c", str(batch), str(concurrency)
    latency = seen.value("infercanary_sweep_latency_seconds", *labels)
    rate = seen.value("infercanary_sweep_samples_per_second", *labels)
    assert latency is not None and rate is not None, labels
    return latency, rate


def has_swept(seen):
    return seen.value("infercanary_sweep_timestamp_seconds", "c")


def swept(probe):
    return until(lambda: has_swept(s := fetch(probe.address)) and s)


def test_throughput_against_latency(tmp_path):
    loads = (1, 1), (4, 1), (64, 1), (1, 2)
    sweep = "batches: [1, 4, 64], concurrency: [1, 2], seconds: 4, every_seconds: 1"
    with sweeping(tmp_path, canary(sweep)) as probe:
        first = probe.until(has_swept)
        for batch, concurrency in loads:
            latency, rate = point(first, batch, concurrency)
            # The mean is at least half of the median, so the rate has a limit even on a busy machine.
            assert 0 < rate * latency <= 2.0 * batch * concurrency * 1.05

        def grows(seen):
            """More samples take longer, but more are done per second; with other load, not in each sweep."""
            slow, fast = point(seen, 1), point(seen, 64)
            return fast[0] > slow[0] and fast[1] > 1.5 * slow[1]

        seen = probe.until(grows)
        assert seen.runs("c", "ok") >= 3, "runs continue during the sweep"
        # The run after a sweep reports the sweep's values.
        seen = probe.ran(runs=seen.runs("c", "ok") + 1)
        given = {pair for run in seen.report.runs for pair in run.measures.items()}
        assert {(throughput_of(*load), point(first, *load)[1]) for load in loads} <= given
        assert not any("beside_canary" in run.tags for run in seen.report.runs)
        assert probe.end() == 0


def test_a_point_that_hangs_holds_up_neither_runs_nor_the_end(tmp_path):
    canaries = canary("batches: [1, 4], seconds: 3, every_seconds: 1", "swept:hangs", 8)
    with sweeping(tmp_path, canaries) as probe:
        seen = probe.until(lambda _: "sweep of batch 4: timed_out" in probe.output())
        seen = probe.ran(runs=seen.runs("c", "ok") + 3)
        assert sum("beside_canary" in run.tags for run in seen.report.runs) >= 3, (
            "runs beside the sweep are tagged"
        )
        assert point(seen, 1)[1] > 0
        begin = time.monotonic()
        assert probe.end() == 0
        assert time.monotonic() - begin < 9.0
    assert "canary c: the sweep still hangs" in probe.output()


def test_no_sweep_beside_a_canary_that_opens(started):
    slow = Scripted(open="hang")
    probe = started(
        {"c": TorchTarget(torch.nn.Linear(8, 8).eval(), torch.ones(1, 8)), "slow": slow},
        sweeps={"c": Sweep(batches=(1,), seconds=1, every_seconds=1)},
        open_timeout_seconds=1,
    )
    # A sweep is due every two seconds, and runs have continued for more than three.
    seen = until(lambda: (s := fetch(probe.address)).runs("c", "ok") >= 32 and s)
    assert not has_swept(seen)
    assert all("beside_canary" in run.tags for run in seen.report.runs if run.canary == "c")
    slow.go_on.set()
    swept(probe)
    probe.stop()


def test_once_does_not_sweep(tmp_path):
    code, out, said = run_probe(
        tmp_path, canary("batches: [1, 4], every_seconds: 1", "swept:raises", 8), "--once"
    )
    assert code == 0 and "sweep" not in out + said, said
