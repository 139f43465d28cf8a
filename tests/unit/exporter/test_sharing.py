"""CPUs that containers share, from the lists that their probes claim to what the exposition shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from math import nan

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import SCHEMA_VERSION, Family, Metric, Point, Report, encode
from infercanary.contract.vocabulary import GPU_SHARED_WITH, NOBODY
from infercanary.exporter import collect, probe_state
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.probe_state import PolledProbe
from infercanary.exporter.report_facts import SeenGpu, read_facts
from infercanary.exporter.sharing import (
    SHARED,
    SHARED_GPU,
    UNKNOWN_PROCESSES,
    GpuShare,
    shared_cpus,
    shared_gpus,
)
from infercanary.judge.differences import changes
from infercanary.judge.result import Causes, Result
from infercanary.pages.sentence import sentence
from infercanary.probe.rounds import GPU_CANARIES
from infercanary.probe.samplers.cgroup.metrics import CPUSET_INFO
from infercanary.probe.samplers.nvml.slow import INFO
from infercanary.probe.samplers.nvml.users import OWN, PROCESSES


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("8190-8191", {8190, 8191}), ("1,1,0-1", {0, 1})],
)
def test_a_list_as_bits(text: str, cpus: set[int]) -> None:
    assert read_facts([CPUSET_INFO.family({(text,): 1.0})]).cpus == sum(1 << cpu for cpu in cpus)


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "3-1", "1-", ",", "0,", " 0", "²", "0-4294967295", "8192", "0-8192", "9" * 4096],
)
def test_what_is_no_list_or_claims_too_much_is_ignored(text: str) -> None:
    begin = time.perf_counter()
    assert read_facts([CPUSET_INFO.family({(text,): 1.0})]).cpus == 0
    assert time.perf_counter() - begin < 1


@given(st.lists(st.sets(st.integers(0, 20)), max_size=6))
def test_shared_cpus_are_those_in_another_set(cpusets: list[set[int]]) -> None:
    shared = {cpu for cpu in range(21) if sum(cpu in cpus for cpus in cpusets) > 1}
    assert shared_cpus(map(bits, cpusets)) == bits(shared)


def bits(cpus: set[int]) -> int:
    return sum(1 << cpu for cpu in cpus)


def test_the_family_is_the_probes_own() -> None:
    other = Metric("infercanary_other", "gauge", "O.").family(1.0)
    assert read_facts([other, CPUSET_INFO.family({("0-3",): 1.0})]).cpus == 0b1111
    assert read_facts([other]).cpus == 0
    assert read_facts([CPUSET_INFO.family({("0",): 1.0, ("1",): 1.0})]).cpus == 0, "which of them?"
    assert read_facts([CPUSET_INFO.family({})]).cpus == 0
    assert read_facts([Family(CPUSET_INFO.name, "gauge", "H.", (), (Point((), 1.0),))]).cpus == 0


# In the collector --------------------------------------------------------------------------------------------


def found(name: str, container_id: str = "0" * 64) -> Container:
    """A container that Docker found."""
    return Container(service="s", name=name, id=container_id, url="http://127.0.0.1:9")


def report(cpus: str) -> bytes:
    families = (CPUSET_INFO.family({(cpus,): 1.0}),) if cpus else ()
    return encode(Report(SCHEMA_VERSION, "boot", 0.0, "", 0, families, {}, ()))


class Host:
    """A collector, what it shows, and the reports that its containers give."""

    def __init__(self) -> None:
        self.exposition = Exposition()
        self.collector = Collector(ExporterConfig(), self.exposition, Judging(None), frozenset())

    async def says(self, name: str, cpus: str) -> None:
        probe = self.probe(name)
        await self.collector.absorb(probe, report(cpus))
        self.collector.show(probe)

    async def reports(self, name: str, families: tuple[Family, ...]) -> None:
        body = encode(Report(SCHEMA_VERSION, "boot", 0.0, "", 0, families, {}, ()))
        await self.collector.absorb(self.probe(name), body)
        self.collector.show(self.probe(name))

    def probe(self, name: str) -> PolledProbe:
        return self.collector.probes["", "s", name]

    def lines(self, metric: str) -> dict[str, float]:
        """Container → value, as a scrape would show it now."""
        lines = b"".join(self.exposition.families(in_openmetrics=False)).decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line.startswith(metric + "{"))
        return {
            labels.partition('container="')[2].partition('"')[0]: float(value) for labels, _, value in samples
        }

    def after_the_next_poll(self, metric: Metric) -> dict[str, float]:
        for probe in self.collector.probes.values():
            self.collector.show(probe)
        return self.lines(metric.name)

    def neighbours(self, name: str) -> str:
        """As its next report makes them a fact of its start."""
        return self.probe(name).neighbours

    @property
    def shared(self) -> dict[str, float]:
        """After the next poll of each."""
        return self.after_the_next_poll(SHARED)


class Clock:
    """Stands for the module ``time``."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(collect, "time", clock)
    return clock


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 0.0)
    monkeypatch.setattr(collect, "fetch", lambda *_: asyncio.sleep(3600))
    host = Host()
    yield host
    await host.collector.close()


async def test_containers_share_what_docker_found(host: Host) -> None:
    elsewhere = Container(service="s", name="listed", url="http://127.0.0.1:9")
    host.collector.follow([found("a"), found("b"), found("c"), elsewhere])
    assert host.shared == {}
    await host.says("a", "0-7")
    assert host.shared == {"a": 0}
    await host.says("b", "4-11")
    await host.says("listed", "0-63")
    assert host.shared == {"a": 4, "b": 4}, "what is listed in the config may be on another host"
    await host.says("c", "")
    assert host.shared == {"a": 4, "b": 4}, "without a cpuset nothing is known of it"
    await host.says("c", "0-4294967295")
    assert host.shared == {"a": 4, "b": 4}
    await host.says("c", "0-11")
    assert host.shared == {"a": 8, "b": 8, "c": 12}


async def test_a_container_that_goes_or_changes_its_cpuset_shares_no_more(host: Host) -> None:
    host.collector.follow([found("a"), found("b")])
    await host.says("a", "0-7")
    await host.says("b", "0-7")
    assert host.shared == {"a": 8, "b": 8}
    await host.says("b", "8-15")
    assert host.shared == {"a": 0, "b": 0}
    await host.says("b", "0")
    assert host.shared == {"a": 1, "b": 1}
    host.collector.follow([found("a"), found("b", "1" * 64)])
    assert host.shared == {"a": 0}, "the new container of that name has not reported yet"
    host.collector.follow([])
    assert host.shared == {}


async def test_a_probe_that_is_down_shows_nothing_and_still_counts(host: Host) -> None:
    host.collector.follow([found("a"), found("b")])
    await host.says("a", "0-7")
    await host.says("b", "0-7")
    assert host.shared == {"a": 8, "b": 8}
    host.probe("b").up = False
    host.collector.show(host.probe("b"))
    assert host.shared == {"a": 8}
    await host.says("b", "0-7")
    assert host.shared == {"a": 8, "b": 8}


async def test_containers_are_compared_once_in_a_while(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand probes that report other CPUs each time cost no more."""
    host.collector.follow([found("a"), found("b")])
    await host.says("a", "0-7")
    await host.says("b", "4-7")
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 3600.0)
    await host.says("b", "0-7")
    assert host.shared == {"a": 4, "b": 4}
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 0.0)
    assert host.shared == {"a": 8, "b": 8}


# GPUs ------------------------------------------------------------------------------------------------------------


def seen(
    *gpus: tuple[str, str], canaries: dict[str, int] | None = None, listed: int | None = None, own: int = 0
) -> tuple[Family, ...]:
    """What a probe reports of its GPUs, each (label, uuid)."""
    families = [INFO.family({(label, "L4", uuid, "41:00.0", "570", "12.8", ""): 1.0 for label, uuid in gpus})]
    if canaries is not None:
        families.append(GPU_CANARIES.family({(gpu,): float(n) for gpu, n in canaries.items()}))
    if listed is not None:
        families.append(PROCESSES.family({(label,): float(listed) for label, _ in gpus}))
        families.append(OWN.family({(label,): float(own) for label, _ in gpus}))
    return tuple(families)


def uuids(families: tuple[Family, ...]) -> list[str] | None:
    gpus = read_facts(families).gpus
    return None if gpus is None else [gpu.uuid for gpu in gpus]


def test_the_gpus_that_count() -> None:
    assert uuids(()) is None, "a driver that does not answer is no other GPU"
    both = ("0", "GPU-a"), ("1", "GPU-b")
    assert uuids(seen(*both)) == ["GPU-a", "GPU-b"], "where nobody knows which of them is used"
    assert uuids(seen(*both, canaries={"0": 0, "1": 2})) == ["GPU-b"]
    assert uuids(seen(*both, canaries={"0": 0, "1": 0})) == []
    split = ("0", "GPU-a"), ("0:0", "MIG-x"), ("0:2", "MIG-y")
    assert uuids(seen(*split)) == ["MIG-x", "MIG-y"], "not the GPU that they are parts of"
    assert uuids(seen(*split, canaries={"0": 1})) == ["MIG-x", "MIG-y"]


@pytest.mark.parametrize("uuid", ["", "a", "XPU-a"])
def test_what_is_no_uuid_is_ignored(uuid: str) -> None:
    assert uuids(seen(("0", uuid))) == []


def test_who_else_is_on_a_gpu() -> None:
    a, b = SeenGpu("0", "GPU-a"), SeenGpu("1", "GPU-b")
    shared = shared_gpus(
        {("", "s", "one"): (a, b), ("", "t", "two"): (SeenGpu("0", "GPU-b"),), ("", "t", "three"): ()}
    )
    assert shared == {
        ("", "s", "one"): {("0", "GPU-a"): GpuShare(0, (), nan), ("1", "GPU-b"): GpuShare(1, ("two",), nan)},
        ("", "t", "two"): {("0", "GPU-b"): GpuShare(1, ("one",), nan)},
    }


def test_a_thousand_on_one_gpu_take_no_time() -> None:
    begin = time.perf_counter()
    shared = shared_gpus({("", "s", f"c{i:04}"): (SeenGpu("0", "GPU-a"),) for i in range(1000)})
    assert time.perf_counter() - begin < 1
    names = ("c0000", "c0002", "c0003", "…")
    assert shared["", "s", "c0001"]["0", "GPU-a"] == GpuShare(999, names, nan)


@pytest.mark.parametrize(
    ("counts", "unknown"),
    [
        ([(5, 1), (5, 2)], [2, 2]),
        ([(3, 1), (5, 2)], [0, 2]),  # one of them is shown less, and what the other is shown is its claim
        ([(1, 1), (999_999, 0)], [0, 999_998]),
        ([(1, 1), (1, 1)], [nan, nan]),  # the driver shows each its own: it hides others' too
        ([(5, 1), (5, nan)], [nan, nan]),
        ([(nan, 1)], [nan]),
    ],
)
def test_processes_of_nobody_known(counts: list[tuple[float, float]], unknown: list[float]) -> None:
    gpus = {("", "s", str(i)): (SeenGpu("0", "GPU-a", *each),) for i, each in enumerate(counts)}
    found = [share.unknown for each in shared_gpus(gpus).values() for share in each.values()]
    assert found == pytest.approx(unknown, nan_ok=True)


ON_A, ON_B = seen(("0", "GPU-a"), listed=3, own=1), seen(("0", "GPU-b"), listed=3, own=1)


async def test_a_neighbour_that_comes_onto_the_gpu_is_named(host: Host, clock: Clock) -> None:
    host.collector.follow([found("a"), found("b")])
    await host.reports("a", ON_A)
    assert host.after_the_next_poll(SHARED_GPU) == {"a": 0}
    clock.now += probe_state._SETTLED_SECONDS
    await host.reports("a", ON_A)
    assert host.neighbours("a") == NOBODY
    await host.reports("b", seen(("3", "GPU-a"), listed=3, own=1))
    assert host.after_the_next_poll(SHARED_GPU) == {"a": 1, "b": 1}
    assert host.after_the_next_poll(UNKNOWN_PROCESSES) == {"a": 1, "b": 1}
    clock.now += probe_state._SETTLED_SECONDS - 1
    await host.reports("a", ON_A)
    assert host.neighbours("a") == NOBODY, "it may be gone soon"
    clock.now += 1
    await host.reports("a", ON_A)
    assert host.neighbours("a") == "b"
    await host.reports("a", ON_A)
    assert host.probe("a").generations["boot"].environment == {GPU_SHARED_WITH: "b"}
    await host.reports("b", ())
    assert host.after_the_next_poll(SHARED_GPU) == {"a": 1, "b": 1}, "its driver does not answer"
    await host.reports("b", seen(("3", "GPU-b")))
    assert host.after_the_next_poll(SHARED_GPU) == {"a": 0, "b": 0}
    host.collector.follow([found("a")])
    assert host.after_the_next_poll(SHARED_GPU) == {"a": 0}
    await host.reports("a", ON_A)
    assert host.neighbours("a") == "b", "it may be back soon"
    clock.now += probe_state._SETTLED_SECONDS
    await host.reports("a", ON_A)
    assert host.neighbours("a") == NOBODY


@pytest.mark.parametrize("first", [0, 1])
async def test_a_neighbour_that_comes_and_goes_changes_no_start(host: Host, clock: Clock, first: int) -> None:
    """Each change of a start's facts is judged: who claims another's GPU in each second report must cost nothing."""
    host.collector.follow([found("a"), found("b"), found("c")])
    named = []

    async def polls(count: int, c: tuple[Family, ...]) -> None:
        for number in range(count):
            claims = number % 2 == first
            await host.reports("b", ON_A if claims else ON_B)
            await host.reports("c", c)
            await host.reports("a", ON_A)
            assert host.after_the_next_poll(SHARED_GPU)["a"] == claims + (c is ON_A)
            named.append(host.neighbours("a"))
            clock.now += 5

    await polls(200, ON_B)
    assert set(named) == {""}, "also where it claims it from the beginning"
    await polls(200, ON_A)
    await polls(200, ON_B)
    assert list(dict.fromkeys(named)) == ["", "c"], "it hides nobody who stays"
    assert named[-1] == "", "nor that one left"
    assert named.count("c") == 200


async def test_a_few_neighbours_are_named(host: Host, clock: Clock) -> None:
    names = "zabcd"
    host.collector.follow([found(name) for name in names])
    for _ in range(2):
        for name in names:
            await host.reports(name, ON_A)
        clock.now += probe_state._SETTLED_SECONDS
    assert host.neighbours("z") == "a, b, c, …"
    assert host.neighbours("a") == "b, c, d, …"


async def test_a_probe_cannot_name_its_neighbours(host: Host) -> None:
    host.collector.follow([found("a")])
    body = encode(Report(SCHEMA_VERSION, "boot", 0.0, "", 0, (), {GPU_SHARED_WITH: "victim"}, ()))
    await host.collector.absorb(host.probe("a"), body)
    assert host.probe("a").generations["boot"].environment == {}


def test_the_verdict_names_who_came_onto_the_gpu() -> None:
    def sentence_of(*neighbours: str | None) -> str:
        before, after = ({GPU_SHARED_WITH: name} if name else {} for name in neighbours)
        causes = Causes(changes=changes(before, after, "canary"))
        return sentence(Result(state="regressed", shift=0.2, low=0.1, high=0.3, causes=causes))

    assert "GPU shared with nobody → moderate-1" in sentence_of(NOBODY, "moderate-1")
    assert "GPU shared" not in sentence_of("moderate-1", "moderate-1")
    assert "GPU shared" not in sentence_of(None, "moderate-1"), "an older exporter did not know"


# What a fault of the exporter costs ----------------------------------------------------------------------------


async def test_a_fault_in_showing_one_probe_costs_that_one_and_is_counted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.collector.follow([found("a"), found("b")])
    await host.says("b", "0-7")
    real = collect.write  # type: ignore[attr-defined]
    faults = iter([ZeroDivisionError("ours")])

    def faulty(*arguments: object) -> object:
        for fault in faults:
            raise fault
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(collect, "write", faulty)
    with structlog.testing.capture_logs() as logs:
        await host.says("a", "0-7")
    assert host.lines("infercanary_up") == {"a": 0, "b": 1}
    assert host.probe("a").failures["internal"] == 1
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
        "poll failed by a fault of the exporter"
    ]
    await host.says("a", "0-7")
    assert host.lines("infercanary_up") == {"a": 1, "b": 1}
    assert host.probe("a").failures["internal"] == 1


async def test_a_fault_that_stays_leaves_the_others_shown_and_followed(host: Host) -> None:
    """The image's name is from Docker: half a surrogate pair cannot be written at all."""

    def broken(image: str) -> Container:
        return msgspec.structs.replace(found("broken"), image=image)

    with structlog.testing.capture_logs():
        host.collector.follow([broken("\ud800"), found("well")])
        for name in ("broken", "well"):
            await host.says(name, "0-7")
        assert host.lines("infercanary_up") == {"broken": 0, "well": 1}
        host.collector.follow([broken("fixed"), found("well")])
        await host.says("broken", "0-7")
    assert host.lines("infercanary_up") == {"broken": 1, "well": 1}
    assert host.probe("broken").failures == {"internal": 1}


async def test_the_poll_itself_survives_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise ZeroDivisionError("ours")

    host.collector.follow([found("a")])
    monkeypatch.setattr(collect, "write", faulty)
    monkeypatch.setattr(collect, "fetch", lambda *_: asyncio.sleep(0, report("0-7")))
    probe = host.probe("a")
    with structlog.testing.capture_logs():
        await host.collector._poll(probe)
    assert (probe.polled, probe.up, probe.failures["internal"]) == (True, False, 1)
