"""Fractions of a run's time that each resource takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.bottleneck import LIMITS, OFF_CPU, Parts, parts, shares
from infercanary.contract.vocabulary import PHASES
from tests.for_each import for_each

# A run of 10 ms: its phases, its time off the CPU, and the resulting fractions, all in tenths.
CASES = r"""
a neighbour on its CPU                 | compute=10 | awake queued=4             | compute=6 scheduling=4
a lock                                 | compute=10 | awake blocked=5            | compute=5 scheduling=5
a file that is not in the page cache   | compute=10 | awake reading=7 queued=1   | compute=2 scheduling=1 io=7
a kernel without run queues            | compute=10 | reading=0 asleep=3         | compute=7 unknown=3
an earlier probe                       | compute=10 |                            | unknown=10
no phases                              |            | awake queued=1             | compute=9 scheduling=1
a target's own queue                   | queue=6 compute=4 | awake blocked=5     | compute=4 scheduling=6
a GPU that is the bottleneck: its thread sleeps meanwhile | queue=1 h2d=1 compute=6 d2h=1 launch=2 | awake blocked=8 \
    | compute=6 io=2 scheduling=1 unknown=1
a GPU that waits for launches          | queue=1 h2d=0 compute=8 launch=8.5 | awake | scheduling=9 unknown=1
a server                               | connect=1 send=1 wait=6 receive=1 | awake blocked=8 queued=1 \
    | io=3 scheduling=1 unknown=6
a server that streams                  | first_token=4 tokens=6 | awake blocked=10 | unknown=10
"""


def parsed(text, tenth):
    text = text.replace("awake", "queued=0 blocked=0 reading=0")
    return {name: float(number) * tenth for name, number in (word.split("=") for word in text.split())}


@for_each(CASES.strip().replace("\\\n", "").splitlines())
def test_the_shares_of_a_run(case):
    _, phases, off_cpu, expected = case.split("|")
    found = shares(parts(0.010, parsed(phases, 0.001), parsed(off_cpu, 0.001)))
    assert {limit: share for limit, share in found.items() if share > 1e-9} == pytest.approx(
        parsed(expected, 0.1)
    )


def test_an_empty_run_has_no_shares():
    assert shares(parts(0.0, {}, {})) == {}
    assert not Parts(0.0, 0.0, 0.0, 0.0).is_launched_slowly


SECONDS = st.floats(0, 1e6)


@given(
    SECONDS,
    st.dictionaries(st.sampled_from([*PHASES, "tokenize"]), SECONDS),
    st.dictionaries(st.sampled_from([*OFF_CPU, "of a newer probe"]), SECONDS),
)
def test_whatever_a_probe_reports_shares_are_shares(latency, phases, off_cpu):
    found = parts(latency, phases, off_cpu)
    assert min(found) >= 0
    assert sum(found[:4]) == pytest.approx(latency)
    each = shares(found)
    assert each.keys() <= set(LIMITS)
    assert not each or sum(each.values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 + 1e-9 for share in each.values())
