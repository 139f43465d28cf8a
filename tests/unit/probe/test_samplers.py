"""The guard about a sampler."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from infercanary.command.settings import UsageError
from infercanary.contract.report import Family, Metric
from infercanary.probe import Probe, TorchTarget, samplers, sampling
from infercanary.probe.config import read
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import SampleFailed, Sampler, Unavailable, make_samplers, registered
from infercanary.probe.samplers.nvml import NvmlSampler
from infercanary.probe.samplers.threads import ThreadSampler
from infercanary.probe.sampling import Guard

SOME = {"some": TorchTarget("module:factory", [{"shape": [1]}])}

VALUE = Metric("infercanary_value", "gauge", "V.")


class Scripted(Sampler):
    name = "scripted"

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None
        self.asked = 0

    def sample(self) -> Iterable[Family]:
        self.asked += 1
        self.act()
        yield VALUE.family(self.asked)


def values(families: Iterable[Family]) -> dict[str, float | dict[tuple[str, ...], float]]:
    """Name → value, or label values → value."""
    found: dict[str, float | dict[tuple[str, ...], float]] = {}
    for family in families:
        points = {point.labels: point.value for point in family.points}
        assert all(isinstance(value, float) for value in points.values())
        found[family.name] = points if family.labels else points[()]  # type: ignore[assignment]
    return found


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def succeeded(tally: Tally) -> float:
    success = values(tally.families())["infercanary_sampler_success"]
    assert isinstance(success, dict)
    return success[("scripted",)]


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (ValueError("bad\nsecond line"), logging.WARNING, "sampler scripted: ValueError: bad"),
        (SystemExit(1), logging.WARNING, "sampler scripted: SystemExit: 1"),
        (KeyboardInterrupt(), logging.WARNING, "sampler scripted: KeyboardInterrupt"),
        (Unavailable("no such thing here"), logging.INFO, "sampler scripted: no such thing here"),
    ],
)
def test_a_sampler_that_raises_costs_only_its_own_families(
    caplog: pytest.LogCaptureFixture, error: BaseException, level: int, text: str
) -> None:
    caplog.set_level(logging.INFO)
    sampler, tally = Scripted(), Tally()
    guard = Guard(sampler, tally)
    guard.sample(30)
    assert values(guard.families) == {VALUE.name: 1.0}
    assert succeeded(tally) == 1
    sampler.act = raising(error)
    for _ in range(3):
        guard.sample(30)
    assert guard.families == (), "stale numbers beside green health are worse than none"
    assert succeeded(tally) == 0
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, text)], (
        "once, not at each sample"
    )
    sampler.act = lambda: None
    guard.sample(30)
    assert values(guard.families) == {VALUE.name: 5.0}
    assert succeeded(tally) == 1
    assert caplog.records[-1].getMessage() == "sampler scripted: works again"
    assert guard.close(30)


def test_a_sampler_that_hangs_is_given_up_and_comes_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_DEADLINE_SECONDS", 0.1)
    sampler, tally, go_on = Scripted(), Tally(), threading.Event()
    guard = Guard(sampler, tally)
    guard.sample()
    sampler.act = lambda: go_on.wait(60)
    guard.sample()
    assert guard.families == ()
    assert succeeded(tally) == 0
    guard.sample()
    assert sampler.asked == 2, "it is not asked again while it hangs"
    assert [r.getMessage() for r in caplog.records] == ["sampler scripted: hangs: no answer within 0.1 s"]
    sampler.act = lambda: None
    go_on.set()
    deadline = time.monotonic() + 30
    while not guard.families:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        guard.sample()
    assert succeeded(tally) == 1
    assert guard.close(30)


def test_a_sample_that_is_late_holds_nobody_up_and_is_collected_the_next_time() -> None:
    sampler, tally, go_on = Scripted(), Tally(), threading.Event()
    guard = Guard(sampler, tally)
    sampler.act = lambda: go_on.wait(60)
    begin = time.perf_counter()
    guard.sample()
    guard.sample()
    assert time.perf_counter() - begin < 5, "it waits once, with patience"
    assert (guard.families, list(tally.families()), sampler.asked) == ((), [], 1), "nothing is known yet"
    go_on.set()
    deadline = time.monotonic() + 30
    while not guard.families:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        guard.sample()
    assert succeeded(tally) == 1
    assert guard.close(30)


def test_a_sampler_can_say_in_metrics_why_it_fails_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Telling(Scripted):
        hanging = (VALUE.family(-1),)

    monkeypatch.setattr(sampling, "_DEADLINE_SECONDS", 0.5)
    sampler, tally, go_on = Telling(), Tally(), threading.Event()
    guard = Guard(sampler, tally)
    sampler.act = raising(SampleFailed("the cable is out", [VALUE.family(-2)]))
    guard.sample(0.5)
    assert (values(guard.families), succeeded(tally)) == ({VALUE.name: -2.0}, 0)
    sampler.act = lambda: go_on.wait(60)
    guard.sample(0.5)
    assert (values(guard.families), succeeded(tally)) == ({VALUE.name: -1.0}, 0)
    go_on.set()
    assert guard.close(30)


def test_a_sampler_is_closed_in_its_own_thread() -> None:
    threads = []

    class Closing(Scripted):
        def close(self) -> None:
            threads.append(threading.current_thread().name)

    guard = Guard(Closing(), Tally())
    guard.sample()
    assert guard.close(30)
    assert threads == ["infercanary-scripted"]


def test_built_in_samplers_work_or_say_why_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    names = []
    for sampler in make_samplers():
        tally = Tally()
        guard = Guard(sampler, tally)
        guard.sample(30)
        names.append(sampler.name)
        assert bool(guard.families) or any(sampler.name in r.getMessage() for r in caplog.records)
        guard.close(30)
    assert {"cgroup", "garbage", "stalls", "threads"} < set(names)
    assert names[-1] == "nvml", "the slow one waits for no other"


def names(switches: dict[str, bool]) -> list[str]:
    return [sampler.name for sampler in make_samplers(switches)]


def test_each_can_be_switched_off() -> None:
    every = names({})
    for name in every:
        assert names({name: False}) == [other for other in every if other != name]
        assert names({name: True}) == every
    assert names(dict.fromkeys(every, False)) == []


def test_an_unknown_one_is_a_line_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        make_samplers({"nvmll": False})
    there = ", ".join(sorted(registered()))
    assert "nvml, " in there
    assert str(caught.value) == (f"samplers: no sampler `nvmll`; there are {there}")


NEW = """
from infercanary.contract.report import Metric
from infercanary.probe.samplers import Sampler, register

LOAD = Metric("infercanary_load_average", "gauge", "L.")


@register
class LoadSampler(Sampler):
    name = "load"

    def sample(self):
        yield LOAD.family(1.0)
"""


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts a file beside the samplers."""
    monkeypatch.setattr(samplers, "_registered", dict(samplers._registered))
    monkeypatch.setattr(samplers, "__path__", [*samplers.__path__, str(tmp_path)])

    def add_(text: str) -> None:
        (tmp_path / "load.py").write_text(text)

    yield add_
    sys.modules.pop("infercanary.probe.samplers.load", None)
    vars(samplers).pop("load", None)


def test_a_new_file_is_a_new_sampler(add: Callable[[str], None]) -> None:
    add(NEW)
    assert "load" in names({})
    assert "load" not in names({"load": False})


def test_threads_know_the_gpus_cpus_by_nvml_as_long_as_that_is_on() -> None:
    both = {sampler.name: sampler for sampler in make_samplers()}
    nvml, threads = both["nvml"], both["threads"]
    assert isinstance(nvml, NvmlSampler) and isinstance(threads, ThreadSampler)
    nvml.local_cpus = {"0": frozenset({1})}
    assert threads._local_cpus() == {"0": frozenset({1})}
    alone = make_samplers({"nvml": False})[-1]
    assert isinstance(alone, ThreadSampler)
    assert alone._local_cpus() == {}


def test_a_probe_takes_switches_and_samplers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sampler `x`"):
        Probe(SOME, samplers={"x": True})
    path = tmp_path / "probe.yaml"
    canaries = "canaries: {c: {target: torch, options: {model: 'm:f', inputs: [{shape: [1]}]}}}"
    path.write_text(f"{canaries}\nsamplers: {{nvml: false, thread: true}}\n")
    with pytest.raises(UsageError, match="samplers: no sampler `thread`"):
        read(path)
