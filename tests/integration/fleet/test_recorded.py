"""A benchmark that another process records in a store that exporters have open: verdict, page and metric show it."""

import json
import subprocess
import sys
import time
from contextlib import closing

import pytest

from infercanary.contract.journal import JournalEntry, encode, environment_id
from infercanary.contract.report import Run
from infercanary.judge.model import Generation
from infercanary.store import sqlite
from infercanary.store.base import StoreError
from infercanary.store.queries import AGE
from infercanary.store.store import open_store

from .parts import T, judge

NEW = "sha256:" + "2" * 64
HARDWARE = {"cpu_model": "X", "cpu_quota": "8", "settings:c": "s"}


def runs(count, seconds, at):
    levels = [seconds * (1 + 0.001 * (n % 3)) for n in range(count)]
    return [
        Run(
            sequence=n,
            canary="c",
            scheduled_at=at,
            started_at=at + 10 * n,
            outcome="ok",
            latencies=(level,) * 5,
        )
        for n, level in enumerate(levels)
    ]


def journal(path, seconds):
    known = environment_id(HARDWARE)
    with path.open("wb") as file:
        for number in range(4):
            boot, at = f"{path.name}-{number}", T - 1e5 + 1e4 * number
            file.write(encode(JournalEntry(boot, known, components=HARDWARE)))
            file.writelines(encode(JournalEntry(boot, known, run=run)) for run in runs(40, seconds, at))
    return str(path)


@pytest.fixture(params=["file", "postgres"])
def location(request, tmp_path):
    if request.param == "file":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres").database()


def infercanary(*arguments):
    command = [sys.executable, "-m", "infercanary", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_what_was_benchmarked_is_what_runs(location, judges, tmp_path, monkeypatch):
    judging = judge(judges, location, "gpu-1")
    quota = {**HARDWARE, "cpu_quota": "4"}

    def take(boot, image, several, environment=quota):
        start = Generation(
            service="slower", container="a", boot_id=boot, started_at=several[0].started_at, image_id=image,
            environment=environment,
        )  # fmt: skip
        judging.submit(start, several)
        judging.turn()
        return judging.findings[start.key]["c"].result

    for number in range(4):
        take(f"old-{number}", "sha256:1", runs(60, 0.02, T + 1e3 * number))
    upgraded = runs(192, 0.0224, T + 5e3)
    before = take("new", NEW, upgraded[:48])
    assert before.state == "regressed"
    assert before.benchmark.command == "", "a fact, not an alert"

    old, new = (
        journal(tmp_path / f"{name}.jsonl", seconds) for name, seconds in (("a", 0.02), ("b", 0.0201))
    )
    for _ in range(2):
        done = infercanary("compare", old, new, "--record", location, "--image", f"search@{NEW}")
        assert (done.returncode, done.stderr) == (0, f"infercanary: benchmarks recorded in {location}: 2\n")
    if "postgresql" not in location:
        monkeypatch.setattr(sqlite, "_LOCK_SECONDS", 0.1)
        with pytest.raises(StoreError, match="in use by another process"):
            open_store(location)
    # Another digest of the image, which only a registry knows, would do as well.
    judging.submit(
        Generation(
            service="slower", container="a", boot_id="new", started_at=T + 5e3, image_id="sha256:local",
            image_digest=NEW, environment=quota,
        ),
        upgraded[48:],
    )  # fmt: skip
    judging.turn()
    [result] = [finding.result for found in judging.findings.values() for finding in found.values()]
    benchmark = result.benchmark
    assert (benchmark.command, benchmark.verdict) == ("compare", "equivalent")
    assert [(change.component, change.before, change.after) for change in benchmark.changes] == [
        ("cpu_quota", "8", "4")
    ]
    assert result.state == before.state
    judging.turn()
    done = infercanary("report", f"prod={location}", "--json")
    assert done.returncode == 0, done.stderr
    assert {row["service"] for row in json.loads(done.stdout)} == {"slower", "compare"}


def test_recording_waits_for_no_exporter(tmp_path):
    """An exporter writes into the store all the time, and neither side fails."""
    path = tmp_path / "store.sqlite"
    new = journal(tmp_path / "b.jsonl", 0.02)
    with closing(open_store(path)) as store:
        child = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "report", new, "--record", str(path)],
            stderr=subprocess.PIPE,
        )
        written = 0
        until = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < until:
            with store.session.transaction() as connection:
                connection.exec_driver_sql("UPDATE clock SET age = age + 1")
            written += 1
        assert (child.wait(5), written > 10) == (0, True)
        assert child.stderr is not None
        child.stderr.close()
        [(age,)] = store.session.rows(AGE)
        assert age == written
