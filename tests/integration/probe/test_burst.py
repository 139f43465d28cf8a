"""The burst of runs after a start, in a real probe whose hour lasts ten seconds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted import Scripted
from watching import Seen, fetch, until

from infercanary.contract.report import Run
from infercanary.probe import Probe
from infercanary.probe.journal import Journal


class OnCpu(Scripted):
    """One that says where it runs."""

    device = "cpu"


@pytest.fixture(autouse=True)
def a_new_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infercanary.probe.loop.since_start", lambda: 1.0)


def test_runs_are_frequent_at_first_then_rare_until_that_is_paid_back_then_as_configured(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("SECONDS", 5.0), ("LEAST_INTERVAL", 0.05), ("PAID_WITHIN", 10.0)):
        monkeypatch.setattr(f"infercanary.probe.duty.{name}", seconds)
    probe = started({"a": OnCpu(seconds=0.002)}, interval_seconds=0.5, duty_cap=0.2)

    def pace(seen: Seen) -> float:
        return seen.value("infercanary_interval_seconds") or 0.0

    fast: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 3 and pace(s) < 0.3 and s)
    rare: Seen = until(lambda: pace(s := fetch(probe.address)) > 0.6 and s)
    until(lambda: pace(fast) < pace(fetch(probe.address)) < pace(rare))


def bursts(targets: dict[str, Any], **settings: Any) -> bool:
    probe = Probe(targets, listen="127.0.0.1:0", samplers=(), controls=False, **settings)
    try:
        return probe._may_burst()
    finally:
        probe.close()


@pytest.mark.parametrize(
    ("word", "canaries", "has_pool", "since", "expected"),
    [
        ("", (OnCpu,), False, 1.0, True),
        ("", (OnCpu, Scripted), False, 1.0, False),  # where that one runs is not known
        ("", (OnCpu,), True, 1.0, False),
        ("false", (OnCpu,), False, 1.0, False),
        ("True", (Scripted,), False, 1.0, True),
        ("true", (OnCpu,), True, 1.0, True),
        ("true", (OnCpu,), False, None, False),  # the process was started again in an old container
    ],
)
def test_canaries_of_its_own_on_the_cpu_have_one_where_the_environment_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    canaries: tuple[type[Scripted], ...],
    has_pool: bool,
    since: float | None,
    expected: bool,
) -> None:
    monkeypatch.setattr("infercanary.probe.loop.since_start", lambda: since)
    if word:
        monkeypatch.setenv("INFERCANARY_BURST", word)
    with ThreadPoolExecutor(1) as pool:
        targets = {kind.__name__: kind() for kind in canaries}
        assert bursts(targets, executor=pool if has_pool else None) is expected


@pytest.mark.parametrize(
    ("earlier", "ago", "expected"), [(1, 60.0, True), (2, 60.0, False), (9, 7200.0, True)]
)
def test_a_container_that_restarts_again_and_again_has_none_as_far_as_its_journal_shows(
    tmp_path: Path, earlier: int, ago: float, expected: bool
) -> None:
    path = tmp_path / "journal.jsonl"
    run = Run(
        sequence=1, canary="a", scheduled_at=0.0, started_at=time.time() - ago, outcome="ok", latencies=(0.1,)
    )
    for boot in range(earlier):
        journal = Journal(path, f"{boot:032x}", 1 << 20)
        journal.append([run, msgspec.structs.replace(run, sequence=2)], {}, {})
        assert journal.close(5.0)
    assert bursts({"a": OnCpu()}, journal=path) is expected
