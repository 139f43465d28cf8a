"""The guard that calls a sampler, and survives the sampler's errors."""

import logging
import threading

import pytest
from watching import until

from infercanary.contract.report import Family, Metric
from infercanary.probe import sampling, tags
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import SampleFailed, Sampler, Unavailable, make_samplers, registered
from infercanary.probe.samplers.nvml import NvmlSampler
from infercanary.probe.samplers.threads import ThreadSampler
from infercanary.probe.sampling import SUCCESS, Guard
from tests.scenarios import refused

VALUE = Metric("infercanary_value", "gauge", "V.")


class Scripted(Sampler):
    name = "scripted"
    hanging: tuple[Family, ...] = ()
    asked = 0
    closed_in = ""

    def __init__(self, act=lambda: None):
        self.act = act

    def sample(self):
        self.asked += 1
        self.act()
        yield VALUE.family(self.asked)

    def close(self):
        self.closed_in = threading.current_thread().name


class Guarded:
    def __init__(self):
        self.sampler, self.tally = Scripted(), Tally()
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.guard = Guard(self.sampler, self.tally)

    def hang(self):
        self.entered.set()
        self.go_on.wait(60)

    def sample(self, patience=30):
        self.guard.sample(patience)
        return values(self.guard.families).get(VALUE.name), values(self.tally.families()).get(SUCCESS.name)

    def comes_back(self):
        self.sampler.act = lambda: None
        self.go_on.set()
        until(lambda: self.sample(0.01)[1] == GOOD)
        assert self.guard.close(30)
        assert self.sampler.closed_in == "infercanary-scripted"


def values(families):
    found = tags.values(families)
    return {name: points.get((), points) for name, points in found.items()}


@pytest.mark.parametrize(
    ("error", "shown", "level", "text"),
    [
        (ValueError("bad\nsecond line"), None, logging.WARNING, "ValueError: bad"),
        (SystemExit(1), None, logging.WARNING, "SystemExit: 1"),
        (Unavailable("no such thing here"), None, logging.INFO, "no such thing here"),
        (SampleFailed("the cable is out", [VALUE.family(-2)]), -2, logging.WARNING, "the cable is out"),
    ],
)
def test_a_sampler_that_raises_costs_only_its_own_families(caplog, error, shown, level, text):
    """Old values would be worse than no values, because the health looks good."""
    caplog.set_level(logging.INFO)
    one = Guarded()
    assert one.sample() == (1.0, GOOD)

    def fail():
        raise error

    one.sampler.act = fail
    for _ in range(3):
        assert one.sample() == (shown, BAD)
    one.comes_back()
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert said == [(level, f"sampler scripted: {text}"), (logging.INFO, "sampler scripted: works again")]


@pytest.mark.parametrize("hanging", [(), (VALUE.family(-1),)])
def test_a_sampler_that_is_late_holds_nobody_up_and_one_that_hangs_is_given_up(caplog, monkeypatch, hanging):
    one = Guarded()
    one.sampler.hanging = hanging
    one.sampler.act = one.hang
    for _ in range(2):
        assert one.sample(0.01) == (None, None), "the sampler is late, and no value is known yet"
    assert one.entered.wait(30)
    monkeypatch.setattr(sampling, "_DEADLINE_SECONDS", 0.01)
    for _ in range(2):
        assert one.sample(0.01) == (-1 if hanging else None, BAD)
    assert one.sampler.asked == 1, "a hanging sampler is not called again"
    assert [record.getMessage() for record in caplog.records] == [
        "sampler scripted: hangs: no answer within 0.01 s"
    ]
    one.comes_back()


def test_a_late_sample_is_collected_the_next_time():
    one = Guarded()
    one.sampler.act = one.hang
    one.sample(0.01)
    one.go_on.set()
    one.guard._worker._answer.put(one.guard._worker._answer.get(timeout=30))
    assert one.sample() == (2.0, GOOD)
    assert one.sampler.asked == 2
    one.comes_back()


def test_built_in_samplers_work_or_say_why_not(caplog):
    caplog.set_level(logging.INFO)
    names = []
    for sampler in make_samplers():
        guard = Guard(sampler, Tally())
        guard.sample(30)
        names.append(sampler.name)
        assert bool(guard.families) or any(sampler.name in r.getMessage() for r in caplog.records)
        guard.close(30)
    assert {"cgroup", "garbage", "stalls", "threads"} < set(names)
    assert names[-1] == "nvml", "the slow sampler does not wait for others"


def names(switches):
    return [sampler.name for sampler in make_samplers(switches)]


def test_each_can_be_switched_off_and_an_unknown_one_is_a_line_with_those_that_exist():
    every = names({})
    for name in every:
        assert names({name: False}) == [other for other in every if other != name]
        assert names({name: True}) == every
    assert names(dict.fromkeys(every, False)) == []
    assert {*every} <= registered().keys()
    with refused(["samplers: no sampler `nvmll`; there are ", ", ".join(sorted(registered()))]):
        make_samplers({"nvmll": False})


def test_threads_know_the_gpus_cpus_by_nvml_as_long_as_that_is_on():
    both = {sampler.name: sampler for sampler in make_samplers()}
    nvml, threads = both["nvml"], both["threads"]
    assert isinstance(nvml, NvmlSampler)
    assert isinstance(threads, ThreadSampler)
    nvml.local_cpus = {"0": frozenset({1})}
    assert threads._local_cpus() == {"0": frozenset({1})}
    alone = make_samplers({"nvml": False})[-1]
    assert isinstance(alone, ThreadSampler)
    assert alone._local_cpus() == {}


GOOD, BAD = {("scripted",): 1.0}, {("scripted",): 0.0}
