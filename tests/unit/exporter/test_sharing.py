"""CPUs that containers share, from the lists that their probes claim to what the exposition shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import SCHEMA_VERSION, Family, Metric, Point, Report, encode
from infercanary.exporter import collect
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging.thread import Judging
from infercanary.exporter.polled import PolledProbe
from infercanary.exporter.sharing import SHARED, cpu_bits, listed_cpus, shared_cpus
from infercanary.probe.samplers.cgroup.metrics import CPUSET_INFO


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("8190-8191", {8190, 8191}), ("1,1,0-1", {0, 1})],
)
def test_a_list_as_bits(text: str, cpus: set[int]) -> None:
    assert cpu_bits(text) == sum(1 << cpu for cpu in cpus)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "3-1",
        "1-",
        ",",
        "0,",
        " 0",
        "²",
        "0-4294967295",
        "8192",
        "0-8192",
        "9" * 4096,
        "1," * 9000 + "1",
    ],
)
def test_what_is_no_list_or_claims_too_much_is_ignored(text: str) -> None:
    begin = time.perf_counter()
    assert cpu_bits(text) == 0
    assert time.perf_counter() - begin < 1


def test_shared_cpus() -> None:
    lists = {"a": "0-3", "b": "2-5", "c": "8-9", "d": "3,9"}
    assert shared_cpus({key: cpu_bits(text) for key, text in lists.items()}) == {
        "a": 2,
        "b": 2,
        "c": 1,
        "d": 2,
    }
    assert shared_cpus({"alone": cpu_bits("0-63")}) == {"alone": 0}
    assert shared_cpus({"one": cpu_bits("0-63"), "other": cpu_bits("0-63")}) == {"one": 64, "other": 64}
    assert shared_cpus({}) == {}


@given(st.dictionaries(st.integers(), st.sets(st.integers(0, 20)), max_size=6))
def test_shared_cpus_are_those_in_another_set(cpusets: dict[int, set[int]]) -> None:
    def of_others(key: int) -> set[int]:
        return set[int]().union(*(cpus for other, cpus in cpusets.items() if other != key))

    bits = {key: sum(1 << cpu for cpu in cpus) for key, cpus in cpusets.items()}
    assert shared_cpus(bits) == {key: len(cpus & of_others(key)) for key, cpus in cpusets.items()}


def test_the_family_is_the_probes_own() -> None:
    other = Metric("infercanary_other", "gauge", "O.").family(1.0)
    assert listed_cpus([other, CPUSET_INFO.family({("0-3",): 1.0})]) == "0-3"
    assert listed_cpus([other]) == ""
    assert listed_cpus([CPUSET_INFO.family({("0",): 1.0, ("1",): 1.0})]) == "", "which of them?"
    assert listed_cpus([CPUSET_INFO.family({})]) == ""
    assert listed_cpus([Family(CPUSET_INFO.name, "gauge", "H.", (), (Point((), 1.0),))]) == ""


# In the collector --------------------------------------------------------------------------------------------


def found(name: str, container_id: str = "0" * 64) -> Container:
    """A container that Docker found, without an address, so that nothing polls it."""
    return Container(service="s", name=name, id=container_id, url_missing="none")


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

    def probe(self, name: str) -> PolledProbe:
        return self.collector.probes["s", name]

    def lines(self, metric: str) -> dict[str, float]:
        """Container → value, as a scrape would show it now."""
        texts = [text for texts, _ in self.exposition.families(in_openmetrics=False) for text in texts]
        lines = b"".join(texts).decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line.startswith(metric + "{"))
        return {
            labels.partition('container="')[2].partition('"')[0]: float(value) for labels, _, value in samples
        }

    @property
    def shared(self) -> dict[str, float]:
        """After the next poll of each."""
        for probe in self.collector.probes.values():
            self.collector.show(probe)
        return self.lines(SHARED.name)


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 0.0)
    host = Host()
    yield host
    await host.collector.close()


async def test_containers_share_what_docker_found(host: Host) -> None:
    elsewhere = Container(service="s", name="listed", url_missing="none")
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


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cpusets were compared, each time that they were."""
    sizes: list[int] = []

    def counted(cpusets: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        sizes.append(len(cpusets))
        return shared_cpus(cpusets)

    monkeypatch.setattr(collect, "shared_cpus", counted)
    return sizes


async def test_reports_of_the_same_cpus_cost_no_comparison(host: Host, compared: list[int]) -> None:
    host.collector.follow([found("a"), found("b")])
    for _ in range(5):
        await host.says("a", "0-7")
        await host.says("b", "0-7")
    assert host.shared == {"a": 8, "b": 8}
    assert compared == [1, 2], "when each reported something new"


async def test_probes_that_report_other_cpus_each_time_are_compared_once_a_second(
    host: Host, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 3600.0)
    host.collector.follow([found("a"), found("b")])
    for cpu in range(20):
        await host.says("a", str(cpu))
    assert compared == [1]
    monkeypatch.setattr(collect, "_COMPARE_SECONDS", 0.0)
    await host.says("b", "0-19")
    assert host.shared == {"a": 1, "b": 1}, "the last report is not forgotten"


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
    counted = {"a": 2, "b": 1}  # with the listing, which gave neither an address
    assert host.lines("infercanary_failed_polls_total") == counted
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
        "probe not shown by a fault of the exporter"
    ]
    await host.says("a", "0-7")
    assert host.lines("infercanary_up") == {"a": 1, "b": 1}
    assert host.lines("infercanary_failed_polls_total") == counted


async def test_a_fault_that_stays_leaves_the_others_shown_and_followed(host: Host) -> None:
    """The image's name is from Docker: half a surrogate pair cannot be written at all."""

    def broken(image: str) -> Container:
        return Container(service="s", name="broken", image=image, id="2" * 64, url_missing="none")

    with structlog.testing.capture_logs():
        host.collector.follow([broken("\ud800"), found("well")])
        assert host.probe("broken").failures["internal"] == 1
        for name in ("broken", "well"):
            await host.says(name, "0-7")
        assert host.lines("infercanary_up") == {"well": 1}
        host.collector.follow([broken("\ud801"), found("well"), found("new")])
        assert host.lines("infercanary_up") == {"well": 1, "new": 0}
        assert host.probe("broken").failures["internal"] == 3
        host.collector.follow([broken("fixed"), found("well")])
    assert host.probe("broken").failures == {"internal": 3, "no_address": 3}
    assert host.lines("infercanary_failed_polls_total") == {"broken": 6, "well": 1}


async def test_the_poll_itself_survives_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise ZeroDivisionError("ours")

    host.collector.follow([found("a")])
    monkeypatch.setattr(collect, "write", faulty)
    monkeypatch.setattr(collect, "fetch", lambda *_: asyncio.sleep(0, report("0-7")))
    probe = host.probe("a")
    with structlog.testing.capture_logs():
        await host.collector._poll(probe, None, "http://a")  # type: ignore[arg-type]
    assert (probe.polled, probe.up, probe.failures["internal"]) == (True, False, 1)
