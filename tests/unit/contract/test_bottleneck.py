"""Which resource a run's time went to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.bottleneck import LIMITS, OFF_CPU, Parts, parts, shares
from infercanary.contract.vocabulary import PHASES
from tests.for_each import for_each

CPU = {"compute": 0.010}
AWAKE = {"queued": 0.0, "blocked": 0.0, "reading": 0.0}

CASES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "nothing in its way": ({"phases": CPU, "off_cpu": AWAKE}, {"compute": 1.0}),
    "a neighbour on its CPU": (
        {"phases": CPU, "off_cpu": {**AWAKE, "queued": 0.004}},
        {"compute": 0.6, "scheduling": 0.4},
    ),
    "a lock": ({"phases": CPU, "off_cpu": {**AWAKE, "blocked": 0.005}}, {"compute": 0.5, "scheduling": 0.5}),
    "a file that is not in the page cache": (
        {"phases": CPU, "off_cpu": {**AWAKE, "reading": 0.007, "queued": 0.001}},
        {"compute": 0.2, "scheduling": 0.1, "io": 0.7},
    ),
    "a kernel without run queues": (
        {"phases": CPU, "off_cpu": {"reading": 0.0, "asleep": 0.003}},
        {"compute": 0.7, "unknown": 0.3},
    ),
    "an earlier probe": ({"phases": CPU, "off_cpu": {}}, {"unknown": 1.0}),
    "an earlier probe, without run queues": ({"phases": CPU, "off_cpu": {}}, {"unknown": 1.0}),
    "no phases": ({"phases": {}, "off_cpu": {**AWAKE, "queued": 0.001}}, {"compute": 0.9, "scheduling": 0.1}),
    "a target's own queue": (
        {"phases": {"queue": 0.006, "compute": 0.004}, "off_cpu": {**AWAKE, "blocked": 0.005}},
        {"compute": 0.4, "scheduling": 0.6},
    ),
    "a GPU that is the bottleneck": (
        # The thread sleeps while the device works: that is no lock.
        {
            "phases": {"queue": 0.001, "h2d": 0.001, "compute": 0.006, "d2h": 0.001, "launch": 0.002},
            "off_cpu": {**AWAKE, "blocked": 0.008},
        },
        {"compute": 0.6, "io": 0.2, "scheduling": 0.1, "unknown": 0.1},
    ),
    "a GPU that waits for launches": (
        {"phases": {"queue": 0.001, "h2d": 0.0, "compute": 0.008, "launch": 0.0085}, "off_cpu": AWAKE},
        {"scheduling": 0.9, "unknown": 0.1},
    ),
    "a server": (
        {
            "phases": {"connect": 0.001, "send": 0.001, "wait": 0.006, "receive": 0.001},
            "off_cpu": {**AWAKE, "blocked": 0.008, "queued": 0.001},
        },
        {"io": 0.3, "scheduling": 0.1, "unknown": 0.6},
    ),
    "a server that streams": (
        {"phases": {"first_token": 0.004, "tokens": 0.006}, "off_cpu": {**AWAKE, "blocked": 0.010}},
        {"unknown": 1.0},
    ),
}  # fmt: skip


@for_each(CASES.items(), lambda case: case[0])
def test_the_shares_of_a_run(case: tuple[str, tuple[dict[str, Any], dict[str, float]]]) -> None:
    _, (run, expected) = case
    found = shares(parts(0.010, **run))
    assert {limit: share for limit, share in found.items() if share > 1e-9} == pytest.approx(expected)


def test_of_an_empty_run_nothing_is_known() -> None:
    assert shares(parts(0.0, {}, {})) == {}
    assert not Parts(0.0, 0.0, 0.0, 0.0).is_launched_slowly


SECONDS = st.floats(0, 1e6)


@given(
    SECONDS,
    st.dictionaries(st.sampled_from([*PHASES, "tokenize"]), SECONDS),
    st.dictionaries(st.sampled_from([*OFF_CPU, "of a newer probe"]), SECONDS),
)
def test_whatever_a_probe_reports_shares_are_shares(
    latency: float, phases: dict[str, float], off_cpu: dict[str, float]
) -> None:
    found = parts(latency, phases, off_cpu)
    assert min(found) >= 0
    assert sum(found[:4]) == pytest.approx(latency)
    each = shares(found)
    assert each.keys() <= set(LIMITS)
    assert not each or sum(each.values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 + 1e-9 for share in each.values())
