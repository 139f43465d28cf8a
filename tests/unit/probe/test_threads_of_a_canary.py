"""The thread that runs a canary, and the pools of threads that its engine has: of a real canary."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infercanary.contract.vocabulary import POOLS
from infercanary.probe import HostClock, Phase, Probe
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.pool import Pool
from infercanary.probe.record import THREAD_POOL
from infercanary.probe.samplers.threads import Place, ThreadSampler
from infercanary.probe.tags import values

CPUS = os.sched_getaffinity(0)
NEAR, FAR = min(CPUS), max(CPUS)
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


class Target:
    """Does nothing, on any CPU or, in the thread that calls it, on ``cpu``."""

    def __init__(self, **environment: str) -> None:
        self.clock = HostClock()
        self.cpu: int | None = None
        self.breaks = False
        self._environment = environment

    def open(self) -> None: ...

    def run(self, phase: Phase) -> None:
        if self.cpu is not None:
            os.sched_setaffinity(0, {self.cpu})
        if self.breaks:
            raise ValueError("broken on purpose")

    def values(self, _result: Any) -> Sequence[float]:
        return [1.0]

    def environment(self) -> Mapping[str, str]:
        return self._environment

    def close(self) -> None: ...


Make = Callable[..., tuple[Canary, Tally]]


@pytest.fixture
def opened() -> Iterator[Make]:
    """Makes an open canary of a target."""
    canaries: list[Canary] = []

    def make(target: Target, pool: Pool | None = None) -> tuple[Canary, Tally]:
        tally = Tally()
        canaries.append(canary := Canary("a", target, tally, 30.0, 30.0, pool))
        canary.open(30.0)
        assert canary.is_open
        return canary, tally

    yield make
    for canary in canaries:
        assert canary.close(10.0)


def reported(canary: Canary, *local: int) -> dict[str, float]:
    """What the sampler reports of it, beside a GPU whose node has these CPUs."""
    places = {} if canary.place is None else {canary.name: canary.place}
    sampler = ThreadSampler(
        places=lambda: places, local_cpus=lambda: {"0": frozenset(local)} if local else {}
    )
    return {
        family.name.removeprefix("infercanary_canary_"): point.value
        for family in sampler.sample()
        for point in family.points
        if isinstance(point.value, float) and point.labels == ("a",)
    }


@two_cpus
def test_its_place_is_that_of_the_thread_that_lives_for_the_round(opened: Make) -> None:
    target = Target()
    canary, _ = opened(target)
    assert canary.place is None and reported(canary, NEAR) == {}, "it has not run yet"
    for cpu in (FAR, NEAR):
        target.cpu = cpu
        canary.round(5)
        assert canary.place == Place(frozenset({cpu}), cpu)
        assert reported(canary, NEAR) == {"allowed_cpus": 1, "off_node": cpu != NEAR}
    assert reported(canary) == {"allowed_cpus": 1}, "no GPU is known"
    target.cpu = None
    canary.round(5)
    assert reported(canary, *CPUS) == {"allowed_cpus": len(CPUS), "off_node": 0}


@two_cpus
def test_in_the_servers_pool_it_is_that_of_its_thread(opened: Make) -> None:
    with ThreadPoolExecutor(1, initializer=lambda: os.sched_setaffinity(0, {FAR})) as executor:
        canary, _ = opened(Target(), Pool(executor, None))
        canary.round(5)
        assert reported(canary, NEAR) == {"allowed_cpus": 1, "off_node": 1}


def test_after_a_run_that_failed_its_place_is_not_known(opened: Make) -> None:
    target = Target()
    canary, _ = opened(target)
    canary.round(5)
    assert reported(canary, *CPUS).keys() == {"allowed_cpus", "off_node"}
    target.breaks = True
    canary.round(5)
    assert reported(canary, *CPUS) == {}


@pytest.mark.parametrize(
    ("environment", "pools"),
    [
        ({"torch_intra_op_threads": "4", "torch_inter_op_threads": "32"}, {"intra_op": 4, "inter_op": 32}),
        ({"onnx_intra_op_threads": "2", "onnx_inter_op_threads": "1"}, {"intra_op": 2, "inter_op": 1}),
        ({"torch_inter_op_threads": "8"}, {"inter_op": 8}),
        ({"torch_intra_op_threads": "many", "torch_inter_op_threads": "0"}, {}),
        ({"torch": "2.13.0"}, {}),
    ],
)
def test_the_pools_of_its_engine(opened: Make, environment: dict[str, str], pools: dict[str, float]) -> None:
    canary, tally = opened(Target(**environment))
    found = [family for family in tally.families() if family.name == THREAD_POOL.name]
    assert {point.labels: point.value for family in found for point in family.points} == {
        ("a", pool): threads for pool, threads in pools.items()
    }
    assert canary.compute_threads == pools.get("intra_op", 0), "the oversubscription is without inter_op"
    assert pools.keys() <= set(POOLS)


def test_a_probe_reports_them() -> None:
    probe = Probe({"a": Target(torch_intra_op_threads="4")}, controls=False)
    probe.open()
    report = probe.once()
    assert probe.close() and report is not None
    found = values(report.families)
    assert found["infercanary_canary_allowed_cpus"] == {("a",): len(CPUS)}
    assert found["infercanary_thread_pool_size"] == {("a", "intra_op"): 4}
    assert found["infercanary_thread_oversubscription_ratio"].keys() == {()}
