"""A sweep of a real torch model on the CPU, by a separate probe."""

import pytest
from probe_process import ProbeProcess, run_probe

from infercanary.contract.measures import throughput_of

pytestmark = pytest.mark.takes(20)

torch = pytest.importorskip("torch")


def canary(sweep):
    options = "{model: 'swept:layers', inputs: [{shape: [1, 1024]}]}"
    return f"{{c: {{target: torch, options: {options}, sweep: {{{sweep}}}}}}}"


def point(seen, batch, concurrency=1):
    labels = "c", str(batch), str(concurrency)
    latency = seen.value("infercanary_sweep_latency_seconds", *labels)
    rate = seen.value("infercanary_sweep_samples_per_second", *labels)
    assert latency is not None and rate is not None, labels
    return latency, rate


def has_swept(seen):
    return seen.value("infercanary_sweep_timestamp_seconds", "c")


def test_throughput_against_latency(tmp_path):
    loads = (1, 1), (4, 1), (64, 1), (1, 2)
    sweep = "batches: [1, 4, 64], concurrency: [1, 2], seconds: 4, every_seconds: 1"
    with ProbeProcess(
        tmp_path, canary(sweep), "controls: false", environment={"OMP_NUM_THREADS": "1"}
    ) as probe:
        first = probe.until(has_swept)
        for batch, concurrency in loads:
            latency, rate = point(first, batch, concurrency)
            # The mean is at least half of the median, which limits the rate even on a busy machine.
            assert 0 < rate * latency <= 2.0 * batch * concurrency * 1.05

        def grows(seen):
            """A larger batch takes longer, but processes more samples a second; other load can hide this in
            single sweeps.
            """
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


def test_once_does_not_sweep(tmp_path):
    code, out, said = run_probe(tmp_path, canary("batches: [1, 4], every_seconds: 1"), "--once")
    assert code == 0 and "sweep" not in out + said, said
