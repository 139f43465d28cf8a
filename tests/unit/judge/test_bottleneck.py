"""Shares of a change that each resource explains."""

import math

import pytest

from infercanary.judge.bottleneck import bottlenecks
from infercanary.judge.causes import Attribution
from infercanary.judge.model import Pair
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import Shift
from tests.factories import HOUR, start
from tests.scenarios import cases, named

OFF_CPU = ("queued", "blocked", "reading")
PHASES = ("compute", "launch", "h2d", "wait", "receive")

# Name | milliseconds before | after: latency, and the known parts of it | factors of controls | shares
TABLE = """
a lower instruction set | 10 queued=0 | 20 queued=0 | cpu_spin=1 memory_copy=1 | compute=1
a faster program | 10 queued=0 | 5 queued=0 | cpu_spin=1 memory_copy=1 | compute=1
a neighbour in memory | 10 queued=0 | 13 queued=0 | cpu_spin=1 memory_copy=1.4 | memory=1
it slows computing, too | 10 queued=0 | 12.1 queued=0 | cpu_spin=1.1 memory_copy=1.5 | compute=.5 memory=.5
more than the control felt | 10 queued=0 | 12.1 queued=0 | cpu_spin=1 memory_copy=1.1 | memory=.5 unknown=.5
a lower clock | 10 queued=0 | 13 queued=0 | cpu_spin=1.3 memory_copy=1.3 | compute=1
a busy sibling on its core | 10 queued=0 | 20 queued=10 | cpu_spin=1 memory_copy=1 | scheduling=1
dropped cache | 10 queued=0 | 20 queued=1 reading=8 | cpu_spin=1 memory_copy=1 | io=.8 scheduling=.1 compute=.1
a lock | 10 queued=0 | 14 blocked=4 | cpu_spin=1 memory_copy=1 | scheduling=1
shorter work, a longer wait | 10 queued=0 | 14 queued=8 | cpu_spin=1 memory_copy=1 | scheduling=2 compute=-1
no controls | 10 queued=0 | 13 queued=0 | | unknown=1
no control of the memory | 10 queued=0 | 13 queued=0 | cpu_spin=1 | unknown=1
controls of another device | 10 queued=0 | 13 queued=0 | gpu_fma=1 gpu_copy=1 | unknown=1
probes that do not know | 10 | 20 | cpu_spin=1 memory_copy=1 | unknown=1
a newer probe, which knows | 10 | 20 queued=10 | cpu_spin=1 memory_copy=1 | unknown=1
transfers | 10 h2d=2 compute=8 launch=1 | 16 h2d=6 compute=10 launch=1 | gpu_fma=1 gpu_copy=1 | io=.667 compute=.333
launches that the device awaits | 10 compute=10 launch=6 | 20 compute=20 launch=20 | gpu_fma=1 gpu_copy=1 | scheduling=1
slower launches, enough to do | 10 compute=10 launch=2 | 20 compute=20 launch=6 | gpu_fma=1 gpu_copy=1 | compute=1
the memory of a GPU | 10 compute=10 launch=2 | 15 compute=15 launch=2 | gpu_fma=1 gpu_copy=1.6 | memory=1
a clock that the copy followed | 10 compute=10 launch=2 | 13 compute=13 launch=2 | gpu_copy=1.35 clock=1.3 | compute=1
a server | 10 wait=8 receive=2 | 20 wait=14 receive=6 | cpu_spin=1 memory_copy=1 | unknown=.6 io=.4
no change | 10 queued=0 | 10 queued=0 | cpu_spin=1 memory_copy=1 |
a control that is not sure | 10 queued=0 | 13 queued=0 | cpu_spin=1 memory_copy=1.3/.2 | unknown=1
a control that is nearly sure | 10 queued=0 | 13 queued=0 | cpu_spin=1 memory_copy=1/.05 | compute=1
a control that says nothing | 10 queued=0 | 13 queued=0 | cpu_spin=1 memory_copy=1.3/inf | unknown=1
some runs that do not know | 10 queued=0 | 20 queued=10 some=0 | cpu_spin=1 memory_copy=1 | unknown=1
"""


def numbers(text, unit=1.0):
    return {name: unit * float(value) for name, _, value in (word.partition("=") for word in text.split())}


def samples(text):
    latency, _, rest = text.partition(" ")
    known, median = numbers(rest, 1e-3), float(latency) / 1e3
    off_cpu = {name: known.get(name, 0.0) for name in OFF_CPU} if {*OFF_CPU} & {*known} else {}
    phases = {name: known[name] for name in PHASES if name in known} or {"compute": median}
    found = start(seconds=[median] * 8, control=0, phases=phases, off_cpu=off_cpu).samples
    unknown = start(seconds=[median] * 8, control=0, phases=phases).samples
    return [*found[:4], *unknown] if "some" in known else found


@cases(named(TABLE))
def test_the_resource_that_grew(before, after, controls, shares):
    shifts = {}
    for name, _, value in (word.partition("=") for word in controls.split()):
        ratio, error = f"{value}/.002".split("/")[:2]
        shifts[name] = Shift(math.log(float(ratio)), float(error), 20.0)
    clock, least = shifts.pop("clock", None), LIVE.decide.log_effect
    found = bottlenecks(
        samples(before), samples(after), shifts, clock,
        lambda shift: abs(shift.log) >= max(least, LIVE.attribute.moved_sigmas * shift.se),
    )  # fmt: skip
    assert found == pytest.approx(numbers(shares), abs=0.006)
    assert [*found.values()] == sorted(found.values(), reverse=True)


def test_causes_name_it():
    old, new = (
        start(
            "a", image, at, seconds, 40, noise=0.0, controls={"cpu_spin": 0.001, "memory_copy": 0.001},
            phases={"compute": seconds}, off_cpu={"queued": queued, "blocked": 0.0, "reading": 0.0},
        )
        for image, at, seconds, queued in (("old", 0.0, 0.010, 0.0), ("new", HOUR, 0.020, 0.009))
    )  # fmt: skip
    causes = Attribution().explain(Shift(math.log(2), 0.01, 20.0), [Pair([old], [new])], "c")
    assert causes.bottlenecks == pytest.approx({"scheduling": 0.9, "compute": 0.1}, abs=0.01)
