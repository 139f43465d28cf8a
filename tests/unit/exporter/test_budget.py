from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from infercanary.contract.report import Metric, Report, Run, encode
from infercanary.exporter import collect
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import ALLOWED, Account
from infercanary.exporter.probe_state import PolledProbe


def test_a_burst_is_paid_later_and_nobody_waits_longer_than_a_minute() -> None:
    account = Account()
    minute, most = ALLOWED["starts"]
    assert account.spend("starts", most + 1, 0.0), "who is not in debt has all of it"
    assert account.wait(0.0) == pytest.approx(60.0 / minute)
    assert not account.spend("starts", 1, 1.0)
    assert account.spend("starts", 0, 1.0), "nothing costs nothing"
    assert account.spend("bytes", 1, 1.0), "debts of one kind are no debts of another"
    assert account.wait(60.0 / minute) == 0.0
    assert account.spend("starts", 10_000, 60.0)
    assert account.wait(60.0) == 60.0
    assert account.exceeded == {"starts": 3}


def test_what_was_not_spent_is_kept_up_to_a_bound() -> None:
    account = Account()
    account.wait(0.0)
    assert account.spend("series", ALLOWED["series"].most, 1e9)
    assert account.wait(1e9) == 0.0
    account.spend("series", 500, 1e9)
    assert account.wait(1e9) == pytest.approx(60.0)


def test_the_table_of_the_docs_has_these_numbers() -> None:
    text = (Path(__file__).parents[3] / "docs/exporter.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*\|[^|]*)\|", text, re.M))

    def number(cell: str) -> float:
        value, unit = re.fullmatch(r" ([\d.,]+)(?: (MiB|s))? ", cell).groups()  # type: ignore[union-attr]
        return float(value.replace(",", "")) * {"MiB": 1 << 20}.get(unit or "", 1)

    assert {budget: tuple(map(number, rows[budget].split("|"))) for budget in ALLOWED} == ALLOWED


class Asked:
    """A probe that is polled each five seconds by a clock that only tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))
        self.judging = Judging(None)
        self.collector = Collector(ExporterConfig(), Exposition(), self.judging, ())
        self.probe = PolledProbe(Container(service="s", name="c", id="0" * 64))

    async def answers(self, report: Report) -> None:
        await self.collector.absorb(self.probe, encode(report))
        self.now += max(5.0, self.probe.account.wait(self.now))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


async def test_a_new_start_at_each_poll_is_polled_rarely_and_an_honest_one_is_taken_whole(
    asked: Asked,
) -> None:
    begin, starts = asked.now, 200
    for number in range(starts):
        run = Run(1, "a", 0.0, 0.0, "ok", (0.01,))
        environment = {"invented": f"{number}" * 500}
        await asked.answers(Report(1, f"boot-{number}", 0.0, "", 0, (), environment, (run,)))
    minutes = (asked.now - begin) / 60
    assert starts <= ALLOWED["starts"].most + ALLOWED["starts"].minute * minutes + 1
    assert asked.probe.account.exceeded["starts"] > 50
    [point] = [
        point
        for family in asked.probe.families(asked.now)
        if family.name == "infercanary_budget_exceeded_total"
        for point in family.points
    ]
    assert (point.labels, point.value) == (("starts",), float(asked.probe.account.exceeded["starts"]))
    queued = {report.generation.boot_id for report in asked.judging._queue.waiting()}
    assert len(queued) == starts, "what is polled rarely loses nothing"


async def test_canaries_that_are_always_new_are_left_out_and_known_ones_are_taken(asked: Asked) -> None:
    begin = asked.now
    for number in range(100):
        names = ("steady", *(f"invented-{number}-{n}" for n in range(8)))
        runs = tuple(Run(9 * number + n, name, 0.0, 0.0, "ok", (0.01,)) for n, name in enumerate(names))
        await asked.answers(Report(1, "boot", 0.0, "", 0, (), {}, runs))
    ran = [run.canary for report in asked.judging._queue.waiting() for run in report.runs]
    minutes = (asked.now - begin) / 60
    assert ran.count("steady") == 100
    assert 64 <= len({*ran}) <= ALLOWED["canaries"].most + ALLOWED["canaries"].minute * minutes + 9
    assert asked.probe.account.exceeded["canaries"] > 50


async def test_of_runs_that_are_too_many_none_is_lost_but_they_are_asked_for_again(asked: Asked) -> None:
    def report(first: int, cursor: str) -> Report:
        runs = tuple(Run(first + n, "a", 0.0, 0.0, "ok", (0.01,)) for n in range(2))
        return Report(1, "boot", 0.0, cursor, 5, (), {}, runs)

    await asked.answers(report(0, "c1"))
    asked.probe.account.spend("runs", ALLOWED["runs"].most + ALLOWED["runs"].minute, asked.now)
    await asked.answers(report(2, "c2"))
    assert (asked.probe.cursor, asked.probe.runs_collected, asked.probe.runs_lost) == ("c1", 2, 0)
    asked.now += 60.0
    await asked.answers(report(2, "c2"))
    assert (asked.probe.cursor, asked.probe.runs_collected, asked.probe.runs_lost) == ("c2", 4, 5)


async def test_series_that_are_always_new_are_not_shown_and_known_ones_are(asked: Asked) -> None:
    metric = Metric("infercanary_invented", "gauge", "Invented.", ("name",))
    steady = Metric("infercanary_steady", "gauge", "Steady.", ("name",))
    shown = set()

    async def answer(first: int) -> list[str]:
        families = (
            metric.family({(f"{first + n}",): 1.0 for n in range(200)}),
            steady.family({("a",): 1.0}),
        )
        await asked.answers(Report(1, "boot", 0.0, "", 0, families, {}, ()))
        return [lines.layout.name for lines in asked.probe.lines]

    begin = asked.now
    asked.probe.account.spend("series", ALLOWED["series"].most - 1_000, begin)
    for number in range(50):
        names = await answer(200 * number)
        assert steady.name in names
        if metric.name in names:
            shown.add(number)
    minutes = (asked.now - begin) / 60
    assert 5 <= len(shown) <= (1_000 + ALLOWED["series"].minute * minutes) / 200 + 1
    assert asked.probe.account.exceeded["series"] > 10
    asked.now += 3_600.0
    before = asked.probe.account.exceeded.copy()
    for number in (0, 1, 0, 1, 0, 1):  # what comes back is not new
        assert metric.name in await answer(200 * number)
    assert asked.probe.account.exceeded == before


async def test_an_environment_that_changes_at_each_poll_is_polled_rarely(asked: Asked) -> None:
    begin, size = asked.now, 0
    for number in range(100):
        environment = {f"invented-{n}": f"{number:02}" * 50 for n in range(190)}
        await asked.answers(Report(1, "boot", 0.0, "", 0, (), environment, ()))
        assert asked.probe.environment == environment
        size += sum(map(len, (*environment, *environment.values())))
    minutes = (asked.now - begin) / 60
    allowance = ALLOWED["environment_bytes"]
    assert size <= allowance.most + allowance.minute * (minutes + 1)
    same = asked.probe.environment
    await asked.answers(Report(1, "boot", 0.0, "", 0, (), dict(same), ()))
    assert asked.probe.environment is same
    asked.probe.account.spend("environment_bytes", 10 * allowance.minute, asked.now)
    await asked.answers(Report(1, "boot", 0.0, "", 0, (), {"invented": "in debt"}, ()))
    assert asked.probe.environment is same
