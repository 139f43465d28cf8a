import re
import time
from types import SimpleNamespace

import pytest

from infercanary.contract.report import Metric
from infercanary.exporter import collect
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import ALLOWED, Account
from tests.programs import ROOT
from tests.unit.exporter.factories import collecting, probe, report, run


def test_a_burst_is_paid_later_and_nobody_waits_longer_than_a_minute():
    account = Account()
    minute, most = ALLOWED["starts"]
    assert account.spend("starts", most + 1, 0.0)  # without debt, the whole allowance is available
    assert account.wait(0.0) == pytest.approx(60.0 / minute)
    assert not account.spend("starts", 1, 1.0)
    assert account.spend("starts", 0, 1.0)  # 0 units are always permitted
    assert account.spend("bytes", 1, 1.0)  # a debt affects only its own budget
    assert account.wait(60.0 / minute) == 0.0
    assert account.spend("starts", 10_000, 60.0)
    assert account.wait(60.0) == 60.0
    assert account.exceeded == {"starts": 3}
    assert account.spend("series", ALLOWED["series"].most, 1e9)
    assert account.wait(1e9) == 0.0
    account.spend("series", 500, 1e9)
    assert account.wait(1e9) == pytest.approx(60.0)  # unspent budget accumulates up to a limit


def test_the_table_of_the_docs_has_these_numbers():
    text = (ROOT / "docs/exporter.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*\|[^|]*)\|", text, re.M))
    numbers = {
        budget: re.sub(r"([\d.]+) MiB", lambda n: f"{float(n[1]) * 2**20}", rows[budget].replace(",", ""))
        for budget in ALLOWED
    }
    assert {
        budget: (*map(float, re.findall(r"[\d.]+", text)),) for budget, text in numbers.items()
    } == ALLOWED


class Asked:
    """A probe that the exporter polls every five seconds, by a clock that only tests advance."""

    def __init__(self, monkeypatch):
        self.now = self.begin = 1000.0
        monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))
        self.judging = Judging(None)
        self.collector, self.probe = collecting(self.judging), probe()

    async def answers(self, boot="boot", several=(), **parts):
        await self.collector.absorb(self.probe, report(boot, several, **parts))
        self.now += max(5.0, self.probe.account.wait(self.now))

    def allowed(self, budget):
        allowance = ALLOWED[budget]
        return allowance.most + allowance.minute * (self.now - self.begin) / 60

    def queued(self):
        return [
            (each.generation.boot_id, r.canary) for each in self.judging._queue.waiting() for r in each.runs
        ]


@pytest.fixture
def asked(monkeypatch):
    return Asked(monkeypatch)


async def test_a_new_start_at_each_poll_is_polled_rarely_and_an_honest_one_is_taken_whole(asked):
    for number in range(200):
        await asked.answers(f"boot-{number}", [run(1)], environment={"invented": f"{number}" * 500})
    assert asked.allowed("starts") >= 199
    exceeded = asked.probe.account.exceeded["starts"]
    families = {family.name: family for family in asked.probe.families(asked.now)}
    [point] = families["infercanary_budget_exceeded_total"].points
    assert exceeded > 50
    assert (point.labels, point.value) == (("starts",), float(exceeded))
    assert len({*asked.queued()}) == 200  # a rarely polled probe loses no runs


async def test_canaries_that_are_always_new_are_left_out_and_known_ones_are_taken(asked):
    for number in range(100):
        names = ("steady", *(f"invented-{number}-{n}" for n in range(8)))
        await asked.answers("boot", [run(9 * number + n, name) for n, name in enumerate(names)])
    ran = [canary for _, canary in asked.queued()]
    assert ran.count("steady") == 100
    assert 64 <= len({*ran}) <= asked.allowed("canaries") + 9
    assert asked.probe.account.exceeded["canaries"] > 50


async def test_too_many_runs_are_not_lost_but_requested_again(asked):
    asked.probe.account.spend("runs", 0, asked.now)
    states = []
    for first, cursor, spent, seconds in (
        (0, "c1", 0, 0),
        (2, "c2", sum(ALLOWED["runs"]), 60.0),
        (2, "c2", 0, 0),
    ):
        asked.probe.account.spend("runs", spent, asked.now)
        await asked.answers("boot", [run(first), run(first + 1)], cursor=cursor, lost_runs=5)
        states.append((asked.probe.cursor, asked.probe.runs_collected, asked.probe.runs_lost))
        asked.now += seconds
    assert states == [("c1", 2, 0), ("c1", 2, 0), ("c2", 4, 5)]


async def test_series_that_are_always_new_are_not_shown_and_known_ones_are(asked):
    steady, invented = (
        Metric(f"infercanary_{name}", "gauge", "X.", ("name",)) for name in ("steady", "invented")
    )

    async def shows(number):
        new = invented.family({(f"{200 * number + n}",): 1.0 for n in range(200)})
        await asked.answers(families=(new, steady.family({("a",): 1.0})))
        names = {lines.layout.name for lines in asked.probe.lines}
        assert steady.name in names
        return invented.name in names

    asked.probe.account.spend("series", ALLOWED["series"].most - 1_000, asked.begin)
    shown = [number for number in range(50) if await shows(number)]
    allowed = asked.allowed("series") - ALLOWED["series"].most + 1_000
    assert 5 <= len(shown) <= allowed / 200 + 1
    assert asked.probe.account.exceeded["series"] > 10
    asked.now += 3_600.0
    before = asked.probe.account.exceeded.copy()
    assert all([await shows(number) for number in (0, 1, 0, 1, 0, 1)])  # returning series are not new
    assert asked.probe.account.exceeded == before


async def test_an_environment_that_changes_at_each_poll_is_polled_rarely(asked):
    size = 0
    for number in range(100):
        environment = {f"invented-{n}": f"{number:02}" * 50 for n in range(190)}
        await asked.answers(environment=environment)
        assert asked.probe.environment == environment
        size += sum(map(len, (*environment, *environment.values())))
    minute = ALLOWED["environment_bytes"].minute
    assert size <= asked.allowed("environment_bytes") + minute
    same = asked.probe.environment
    await asked.answers(environment=same)
    assert asked.probe.environment is same
    asked.probe.account.spend("environment_bytes", 10 * minute, asked.now)
    await asked.answers(environment={"invented": "in debt"})
    assert asked.probe.environment is same
