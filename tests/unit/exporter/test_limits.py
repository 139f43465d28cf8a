from __future__ import annotations

import asyncio
import gc
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from worst import report as worst_report

from infercanary.contract.report import Metric, Report, encode
from infercanary.exporter import limits
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition, Lines, write
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import (
    BASE_BYTES,
    PROBE_BYTES,
    UNLIMITED,
    Account,
    Share,
    Shares,
    Totals,
    memory_limit,
)
from infercanary.exporter.probe_state import PolledProbe
from infercanary.judge.verdict import Judge
from tests.results import findings_of

SERIES = Metric("infercanary_series", "gauge", "Series.", ("name",))


@given(st.lists(st.integers(0, 1_000), max_size=20), st.integers(1, 5_000))
def test_each_has_its_part_at_once_and_all_together_never_more_than_the_total(
    wanted: list[int], total: int
) -> None:
    share = Share(total)
    share.probes = max(1, len(wanted))
    granted = {("", "s", str(n)): 0 for n in range(len(wanted))}
    for key, size in [*zip(granted, wanted, strict=True)] * 2:
        granted[key] = share.grant(key, size)
        assert sum(granted.values()) <= total
        assert granted[key] >= min(size, total // 2 // share.probes)
    if sum(wanted) <= total // 2:
        assert [*granted.values()] == wanted
    for key in granted:
        share.grant(key, 0)
    assert share.grant(("", "s", "new"), total) >= total // 2


def test_beside_probes_that_show_too_much_an_honest_one_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHOWN_BYTES", 40_000)
    shares = Shares()
    found = [Container(service="s", name=str(number), id="0" * 64) for number in range(12)]
    shares.admitted({container.key: container for container in found}, ())
    many = [
        write(Metric(f"infercanary_many_{n}", "gauge", "Many.").family(1.0), {"service": "s"})
        for n in range(1_000)
    ]
    assert all(len(lines.text) < 200 for lines in many)
    shown: dict[int, list[Lines]] = {}
    accounts = {number: Account() for number in range(12)}
    for number in [*range(12)] * 2:
        key, lines = ("", "s", str(number)), many[:8] if number == 11 else many
        shown[number] = shares.fitting(key, lines, accounts[number])
    assert shown[11] == many[:8]
    assert not accounts[11].exceeded
    assert sum(len(lines) for lines in shown.values()) <= 40_000 / 200, (
        "a series counts as 200 bytes at least"
    )
    assert shown[0] == many[: len(shown[0])]
    assert accounts[0].exceeded["shown_bytes"] == 2
    for number in range(12):
        shares.forget(("", "s", str(number)))
    long = [
        write(Metric(f"infercanary_{'long' * 50}_{n}", "gauge", "x").family(1.0), {"service": "s"})
        for n in range(200)
    ]
    assert len(shares.fitting(("", "t", "0"), long, Account())) == (20_000 + 20_000 // 12) // len(
        long[0].text
    ), "a twelfth of one half, and the other"


def test_a_family_of_a_size_that_no_honest_container_has_is_not_shown() -> None:
    shares, account = Shares(), Account()
    huge = SERIES.family({("x" * 250 + str(n),): 1.0 for n in range(2_500)})
    usual = SERIES.family({("a",): 1.0})
    lines = [write(family, {"service": "s"}) for family in (huge, usual)]
    assert shares.fitting(("", "s", "c"), lines, account) == lines[1:]
    assert account.exceeded == {"shown_bytes": 1}


def test_what_comes_in_is_shared_and_given_back() -> None:
    shares = Shares(BASE_BYTES + 12 * PROBE_BYTES)
    total = Totals.within(BASE_BYTES + 12 * PROBE_BYTES).waiting_bytes
    assert total == PROBE_BYTES
    big, small = Account(), Account()
    assert shares.may_hold(("", "s", "big"), total, big)
    assert shares.may_hold(("", "s", "small"), total // 10, small)
    assert not shares.may_hold(("", "s", "big"), total + 1, big)
    assert (big.exceeded, small.exceeded) == ({"held_bytes": 1}, {})
    shares.may_hold(("", "s", "big"), 0, big)
    assert shares.may_hold(("", "s", "small"), total, small)


async def test_who_has_more_than_its_share_gives_it_back_when_another_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SHOWN_BYTES", 16_400)
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    big, small = (PolledProbe(Container(service="s", name=name, id=name * 64)) for name in "ab")
    collector.probes = {probe.key: probe for probe in (big, small)}
    collector.shares.admitted({probe.key: probe.container for probe in (big, small)}, ())
    many = [Metric(f"infercanary_many_{n}", "gauge", "Many.").family(1.0) for n in range(100)]
    for probe, families in ((big, many), (small, many[:20]), (big, many)):
        report = Report(1, probe.container.name, 0.0, "", 0, tuple(families), {}, ())
        await collector.absorb(probe, encode(report))
        collector.show(probe)
    await collector.close()
    text = b"".join(collector._exposition.families(in_openmetrics=False))
    shown = {c: len(re.findall(rb'infercanary_many_\d+\{container="%b"' % c, text)) for c in (b"a", b"b")}
    assert shown[b"b"] == 20
    assert 50 <= shown[b"a"] == len(big.lines) < 100
    assert sum(len(lines.text) for probe in (big, small) for lines in probe.lines) <= 16_400


def test_containers_that_do_not_fit_are_counted_and_named_and_those_polled_already_stay() -> None:
    shares = Shares(BASE_BYTES + 2 * PROBE_BYTES)
    found = {c.key: c for c in (Container(service="s", name=name, id=name * 64) for name in "abc")}
    a, b, c = found
    with capture_logs() as lines:
        assert [*shares.admitted(found, [c])] == [a, c]
        assert [*shares.admitted(found, [a, c])] == [a, c]
    [line] = lines
    assert (line["refused"], line["polled"], line["log_level"]) == (["s/b"], 2, "warning")
    [family] = shares.families()
    assert [point.value for point in family.points] == [1.0]
    del found[c]
    assert [*shares.admitted(found, [a])] == [a, b]
    assert not shares.refused


async def test_verdicts_count_in_what_a_probe_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHOWN_BYTES", 180_000)
    judging = Judging(None)
    collector = Collector(ExporterConfig(), Exposition(), judging, ())
    probe = PolledProbe(Container(service="s", name="c", id="0" * 64))
    reported = SERIES.family({(f"{n}",): 1.0 for n in range(100)})

    async def shown() -> int:
        await collector.absorb(probe, encode(Report(1, "boot", 0.0, "", 0, (reported,), {}, ())))
        collector.show(probe)
        return sum(each.text.count(b"\n") for each in (*probe.verdicts, *probe.lines))

    assert await shown() == 100
    judgement = Judge().verdict([], [], "model")
    judging.findings[probe.container.service_key] = findings_of(
        judgements={f"{n}": judgement for n in range(20)}
    )
    assert 200 < await shown() <= 600
    assert not probe.account.exceeded
    judging.findings[probe.container.service_key] = findings_of(
        judgements={f"{n}": judgement for n in range(200)}
    )
    assert await shown() <= 600
    assert probe.account.exceeded["shown_bytes"]
    assert probe.lines == []


def test_two_hundred_probes_fit_into_composes_limit_and_one_into_any() -> None:
    assert Totals.within(512 << 20).probes >= 200
    assert Totals.within(16 << 20).probes == 1
    assert Totals.within(UNLIMITED)[1:] == (80_000_000, 128 << 20, 32 << 20)


@pytest.mark.parametrize(
    ("of_process", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "536870912"}, 512 << 20),  # a container with cgroup v2
        ("0::/\n", {"memory.max": "max"}, UNLIMITED),
        ("0::/a/b\n", {"a/b/memory.max": "900"}, 900),  # a service of systemd
        ("4:memory:/docker/x\n1:name=systemd:/\n", {"memory/memory.limit_in_bytes": "4096"}, 4096),
        ("4:cpu,memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, UNLIMITED),
        ("0::/../../x\n", {"memory.max": "7"}, 7),  # of a control group above the namespace's own
        ("odd", {"memory.max": "7"}, 7),
        (None, {}, UNLIMITED),
    ],
)
def test_the_limit_of_its_own_control_group(
    tmp_path: Path, of_process: str | None, files: dict[str, str], expected: int
) -> None:
    root, process = tmp_path / "cgroup", tmp_path / "process"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    if of_process is not None:
        process.write_text(of_process)
    assert memory_limit(root, process) == expected


async def test_what_a_probe_holds_that_has_all_it_may_is_within_what_is_set_aside_for_it() -> None:
    """Two thirds of that are its own; the rest is its shares of ``/metrics``, of answers and of the queue."""
    collector = Collector(ExporterConfig(), Exposition(), Judging(None, queue_bytes=0), ())
    collector.shares.shown.total = 1

    async def full(number: int) -> PolledProbe:
        probe = PolledProbe(Container(service="s", name=f"{number}", id="0" * 64))
        for boot in (0, 1):
            probe.account = Account()
            await collector.absorb(probe, encode(worst_report(number, boot)))
            collector.show(probe)
        return probe

    tracemalloc.start()
    probe = await full(1)
    await asyncio.sleep(0)  # asyncio holds on to the last answer until then
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(probe.sequences) == 512 and len(probe.generations) == 2
    await collector.close()
    assert PROBE_BYTES / 4 < held < PROBE_BYTES * 2 / 3, f"{held / 1024:.0f} KiB"
