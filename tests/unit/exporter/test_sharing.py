"""CPUs and GPUs that containers share: from the probes' reports to the exposition."""

import asyncio
import re
from math import nan

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import Family, Metric, Point
from infercanary.contract.vocabulary import GPU_SHARED_WITH, NOBODY
from infercanary.exporter import collect, probe_state
from infercanary.exporter.discovery.base import Container
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
from infercanary.probe.rounds import GPU_CANARIES
from infercanary.probe.samplers.cgroup.metrics import CPUSET_INFO
from infercanary.probe.samplers.nvml.slow import INFO
from infercanary.probe.samplers.nvml.users import OWN, PROCESSES
from tests.scenarios import cases, scenarios
from tests.unit.exporter.factories import collecting, report


def bits(cpus):
    return sum(1 << cpu for cpu in cpus)


def cpuset(*lists):
    return CPUSET_INFO.family({(cpus,): 1.0 for cpus in lists})


@given(st.lists(st.sets(st.integers(0, 20)), max_size=6))
def test_shared_cpus_are_those_in_another_set(cpusets):
    shared = {cpu for cpu in range(21) if sum(cpu in cpus for cpus in cpusets) > 1}
    assert shared_cpus(map(bits, cpusets)) == bits(shared)


def test_the_family_is_the_probes_own():
    other = Metric("infercanary_other", "gauge", "O.").family(1.0)
    assert read_facts([other, cpuset("0-3")]).cpus == 0b1111
    unlabelled = Family(CPUSET_INFO.name, "gauge", "H.", (), (Point((), 1.0),))
    for odd in (other, cpuset("0", "1"), cpuset(), cpuset("0-4294967295"), unlabelled):
        assert read_facts([odd]).cpus == 0


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now

    time = monotonic


class Host:
    def __init__(self):
        self.collector = collecting()

    def follow(self, names, **others):
        """Follow containers, named by letters, as if Docker had found them; ``others`` changes ids or images."""
        found = Container(service="s", name="", id="0" * 64, url="http://127.0.0.1:9")
        self.collector.follow([msgspec.structs.replace(found, name=name, **others) for name in names])

    async def says(self, name, *families, cpus=""):
        await self.collector.absorb(
            self.probe(name), report(families=[*families, *([cpuset(cpus)] if cpus else [])])
        )
        self.collector.show(self.probe(name))

    def probe(self, name):
        return self.collector.probes["", "s", name]

    def lines(self, metric):
        text = b"".join(self.collector._exposition.families(in_openmetrics=False)).decode()
        samples = re.findall(rf'^{metric}{{.*container="(\w+)".*}} (\S+)$', text, re.MULTILINE)
        return {container: float(value) for container, value in samples}

    def shows(self, metric=SHARED):
        for probe in self.collector.probes.values():
            self.collector.show(probe)
        return self.lines(metric.name)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(collect, "time", clock)
    return clock


@pytest.fixture
async def host(monkeypatch):
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 0.0)
    monkeypatch.setattr(collect, "fetch", lambda *_: asyncio.sleep(3600))
    host = Host()
    yield host
    await host.collector.close()


async def test_containers_share_what_docker_found(host, monkeypatch):
    elsewhere = Container(service="s", name="listed", url="http://127.0.0.1:9")
    host.follow("abc")
    host.collector.follow([*(probe.container for probe in host.collector.probes.values()), elsewhere])

    async def shares(name, cpus):
        await host.says(name, cpus=cpus)
        return host.shows()

    both = {"a": 4, "b": 4}
    assert await shares("a", "0-7") == {"a": 0}
    for name, cpus in (("b", "4-11"), ("listed", "0-63"), ("c", "")):
        assert await shares(name, cpus) == both
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 3600.0)
    assert await shares("c", "0-11") == both  # the exporter compares containers only at intervals
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 0.0)
    assert host.shows() == {"a": 8, "b": 8, "c": 12}
    host.follow("ab")
    for cpus, count in (("8-15", 0), ("0", 1)):
        assert await shares("b", cpus) == {"a": count, "b": count}
    host.probe("b").up = False
    assert host.shows() == {"a": 1}  # a container that is down has no series, but still counts
    host.follow("ab", id="1" * 64)
    assert host.shows() == {}  # the new containers with these names have not reported yet
    await host.says("a", cpus="0-7")
    host.follow("a", id="1" * 64)
    assert host.shows() == {"a": 0}


# GPUs ------------------------------------------------------------------------------------------------------------


def seen(gpus, canaries=""):
    """Return a probe's families of GPUs (label=uuid) and of their canaries (label=count)."""
    labels = dict(pair.split("=") for pair in gpus.split())
    counts: dict[tuple[str, ...], float] = {(pair[0],): float(pair[2:]) for pair in canaries.split()}
    return [
        INFO.family(
            {(label, "L4", uuid, "41:00.0", "570", "12.8", ""): 1.0 for label, uuid in labels.items()}
        ),
        *([GPU_CANARIES.family(counts)] if counts else []),
        PROCESSES.family({(label,): 3.0 for label in labels}),
        OWN.family({(label,): 1.0 for label in labels}),
    ]


ON_A, ON_B = seen("0=GPU-a"), seen("0=GPU-b")


GPUS = """
# Without canaries it is unknown which GPU is used.
0=GPU-a 1=GPU-b               |         | GPU-a GPU-b
0=GPU-a 1=GPU-b               | 0=0 1=2 | GPU-b
0=GPU-a 1=GPU-b               | 0=0 1=0 |
# The parts of a GPU count, not the GPU.
0=GPU-a 0:0=MIG-x 0:2=MIG-y   | 0=1     | MIG-x MIG-y
0=a 1=XPU-a 2=                |         |
"""


@cases([row for row in scenarios(GPUS) if len(row) == 3])
def test_the_gpus_that_count(gpus, canaries, uuids):
    assert [gpu.uuid for gpu in read_facts(seen(gpus, canaries)).gpus or ()] == uuids.split()
    assert read_facts(()).gpus is None  # a driver that does not answer is no change of the GPU


def test_other_containers_on_a_gpu():
    a, b = SeenGpu("0", "GPU-a"), SeenGpu("1", "GPU-b")
    one, two, three = (("", service, name) for service, name in ("s1", "t2", "t3"))
    assert shared_gpus({one: (a, b), two: (SeenGpu("0", "GPU-b"),), three: ()}) == {
        one: {a[:2]: GpuShare(0, (), nan), b[:2]: GpuShare(1, ("2",), nan)},
        two: {("0", "GPU-b"): GpuShare(1, ("1",), nan)},
    }


COUNTS = """
5/1 5/2       | 2 2
# The first probe sees fewer processes, so the second one's number is only a claim.
3/1 5/2       | 0 2
1/1 999999/0  | 0 999998
# The driver shows each probe only its own processes, and hides all others.
1/1 1/1       | nan nan
5/1 5/nan     | nan nan
nan/1         | nan
"""
"""Processes that a probe sees on the GPU, and those of the probe itself; and the processes of nobody known."""


@cases([row for row in scenarios(COUNTS) if len(row) == 2])
def test_processes_of_nobody_known(counts, unknown):
    gpus = {
        ("", "s", str(i)): (SeenGpu("0", "GPU-a", *map(float, each.split("/"))),)
        for i, each in enumerate(counts.split())
    }
    found = [share.unknown for each in shared_gpus(gpus).values() for share in each.values()]
    assert found == pytest.approx([*map(float, unknown.split())], nan_ok=True)


async def test_a_neighbour_that_comes_onto_the_gpu_is_named(host, clock):
    async def neighbours(seconds):
        clock.now += seconds
        await host.says("a", *ON_A)
        return host.probe("a").neighbours

    settled = probe_state._SETTLED_SECONDS
    host.follow("ab")
    assert await neighbours(0) == ""
    assert host.shows(SHARED_GPU) == {"a": 0}
    assert await neighbours(settled) == NOBODY
    await host.says("b", *seen("3=GPU-a"))
    for metric in (SHARED_GPU, UNKNOWN_PROCESSES):
        assert host.shows(metric) == {"a": 1, "b": 1}
    assert await neighbours(settled - 1) == NOBODY  # the neighbour may leave soon
    assert await neighbours(1) == "b"
    await neighbours(0)
    assert host.probe("a").generations["boot"].environment == {GPU_SHARED_WITH: "b"}
    for families, count in (([], 1), (ON_B, 0)):
        await host.says("b", *families)
        assert host.shows(SHARED_GPU) == {"a": count, "b": count}
    host.follow("a")
    assert host.shows(SHARED_GPU) == {"a": 0}
    assert await neighbours(0) == "b"  # the neighbour may return soon
    assert await neighbours(settled) == NOBODY


@cases([0, 1])
async def test_a_neighbour_that_comes_and_goes_changes_no_start(first, host, clock):
    """A changed fact of a start makes the judge work, so claims of a GPU in every second report must have no effect."""
    host.follow("abc")
    named = []
    for c in (ON_B, ON_A, ON_B):
        for number in range(100):
            claims = number % 2 == first
            for name, families in (("b", ON_A if claims else ON_B), ("c", c), ("a", ON_A)):
                await host.says(name, *families)
            assert host.shows(SHARED_GPU)["a"] == claims + (c is ON_A)
            named.append(host.probe("a").neighbours)
            clock.now += 5
    assert {*named[:100]} == {""}  # no neighbour is named, even if the claims start at once
    # a neighbour that stays is named; later, its end is reported
    assert [*dict.fromkeys(named)] == ["", "c"] and named[-1] == ""
    assert named.count("c") == 100


async def test_a_few_neighbours_are_named_and_not_by_a_probe(host, clock):
    names = "zabcd"
    host.follow(names)
    for _ in range(2):
        for name in names:
            await host.says(name, *ON_A)
        clock.now += probe_state._SETTLED_SECONDS
    assert [host.probe(name).neighbours for name in "za"] == ["a, b, c, …", "b, c, d, …"]
    host.follow("e")
    await host.collector.absorb(host.probe("e"), report(environment={GPU_SHARED_WITH: "victim"}))
    assert host.probe("e").generations["boot"].environment == {}


@cases(
    [
        (NOBODY, "moderate-1", 1),
        ("moderate-1", "moderate-1", 0),
        (None, "moderate-1", 0),
    ],
)
def test_a_new_neighbour_on_the_gpu_is_a_change(before, after, count):
    was, now = ({GPU_SHARED_WITH: name} if name else {} for name in (before, after))
    assert len(changes(was, now, "canary")) == count


# Faults of the exporter ------------------------------------------------------------------------------------------


async def test_a_fault_that_stays_leaves_the_others_shown_and_followed(host):
    """The fault is an image name from Docker with half a surrogate pair, which cannot be encoded."""
    host.follow("a", image="\ud800")
    broken = host.probe("a").container
    host.follow("b")
    with structlog.testing.capture_logs() as logs:
        host.collector.follow([broken, host.probe("b").container])
        for name in "ab":
            await host.says(name, cpus="0-7")
        assert host.lines("infercanary_up") == {"a": 0, "b": 1}
        host.follow("ab", image="fixed")
        await host.says("a", cpus="0-7")
    assert host.lines("infercanary_up") == {"a": 1, "b": 1}
    assert host.probe("a").failures == {"internal": 1}
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
        "poll failed because of a bug in the exporter"
    ]


async def test_the_poll_itself_survives_it(host, monkeypatch):
    def faulty(*_):
        raise ZeroDivisionError("ours")

    host.follow("a")
    monkeypatch.setattr(collect, "write", faulty)
    monkeypatch.setattr(collect, "fetch", lambda *_: asyncio.sleep(0, report()))
    probe = host.probe("a")
    with structlog.testing.capture_logs():
        await host.collector._poll(probe)
    assert (probe.polled, probe.up, probe.failures["internal"]) == (True, False, 1)
