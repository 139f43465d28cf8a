"""The burst of runs after a start, in a real probe whose hour lasts only ten seconds."""

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from scripted import OnDevice, Scripted
from watching import fetch, until

from infercanary.contract.report import Run
from infercanary.probe import Probe
from infercanary.probe.journal import Journal


@pytest.fixture(autouse=True)
def a_new_container(monkeypatch):
    monkeypatch.setattr("infercanary.probe.loop.since_start", lambda: 1.0)


def test_runs_are_frequent_at_first_then_rare_until_that_is_paid_back_then_as_configured(
    started, monkeypatch
):
    for name, seconds in (("SECONDS", 3.0), ("LEAST_INTERVAL", 0.05), ("PAID_WITHIN", 6.0)):
        monkeypatch.setattr(f"infercanary.probe.duty.{name}", seconds)
    probe = started({"a": OnDevice("cpu", seconds=0.002)}, interval_seconds=0.5, duty_cap=0.2)

    def pace():
        return fetch(probe.address).value("infercanary_interval_seconds") or 0.0

    fast = until(lambda: 0 < pace() < 0.3 and pace())
    rare = until(lambda: pace() > 0.6 and pace())
    until(lambda: fast < pace() < rare)


def bursts(*targets, **settings):
    canaries = {str(number): target for number, target in enumerate(targets)}
    probe = Probe(canaries, listen="127.0.0.1:0", controls=False, **settings)
    try:
        return probe._may_burst()
    finally:
        probe.close()


def test_canaries_of_its_own_on_the_cpu_have_one_and_the_environment_has_the_last_word(monkeypatch):
    with ThreadPoolExecutor(1) as pool:
        assert bursts(OnDevice("cpu"))
        assert not bursts(OnDevice("cpu"), Scripted())
        assert not bursts(OnDevice("cpu"), executor=pool)
        monkeypatch.setenv("INFERCANARY_BURST", "false")
        assert not bursts(OnDevice("cpu"))
        monkeypatch.setenv("INFERCANARY_BURST", "True")
        assert bursts(Scripted(), executor=pool)
    # The process restarted in an old container.
    monkeypatch.setattr("infercanary.probe.loop.since_start", lambda: None)
    assert not bursts(OnDevice("cpu"))


@pytest.mark.parametrize(
    ("earlier", "ago", "expected"), [(1, 60.0, True), (2, 60.0, False), (9, 7200.0, True)]
)
def test_a_container_that_restarts_again_and_again_has_none_as_far_as_its_journal_shows(
    tmp_path, earlier, ago, expected
):
    path = tmp_path / "journal.jsonl"
    run = Run(
        sequence=1, canary="a", scheduled_at=0.0, started_at=time.time() - ago, outcome="ok", latencies=(0.1,)
    )
    for boot in range(earlier):
        journal = Journal(path, f"{boot:032x}", 1 << 20)
        journal.append([run, msgspec.structs.replace(run, sequence=2)], {}, {})
        assert journal.close(5.0)
    assert bursts(OnDevice("cpu"), journal=str(path)) is expected
