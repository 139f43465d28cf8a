"""The thread that runs a real canary, and the thread pools of its engine."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from infercanary.probe import Probe
from infercanary.probe.pool import Pool
from infercanary.probe.samplers.threads import Place, ThreadSampler
from infercanary.probe.tags import values
from tests.scenarios import typed
from tests.targets import Scripted, opened

CPUS = os.sched_getaffinity(0)
NEAR, FAR = min(CPUS), max(CPUS)
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def reported(canary, *local):
    """Return the sampler's values for a canary, beside a GPU whose node has these CPUs."""
    places = {} if canary.place is None else {canary.name: canary.place}
    sampler = ThreadSampler(
        places=lambda: places, local_cpus=lambda: {"0": frozenset(local)} if local else {}
    )
    return {
        family.name.removeprefix("infercanary_"): point.value
        for family in sampler.sample()
        for point in family.points
        if isinstance(point.value, float) and point.labels == ("canary", "a")
    }


@two_cpus
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
    # The values of the process come from a sampler, and those of the canary from its runs.
    for name in ("cpu_seconds", "context_switches", "run_queue_seconds", "migrations"):
        scopes = {labels[:2] for labels in found.get(f"infercanary_{name}_total", {})}
        assert not scopes or {("process", ""), ("canary", "a")} <= scopes, name
    assert found["infercanary_thread_oversubscription_ratio"].keys() == {()}
