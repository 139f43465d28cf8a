"""The judge's thread on a disk that becomes full at a given call, and has space again later.

This is a separate process on ``tests/fake_disk``; it prints a line of JSON for each call.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import structlog
from disk import Room

from infercanary.contract.report import Run
from infercanary.exporter.judging.store_metrics import STORE_UP, STORED
from infercanary.exporter.judging.worker import Judging
from infercanary.judge.model import Generation, ServiceKey
from infercanary.store.store import open_store

REPORTS = 4
RUNS = 8  # number of runs in each report
S = ServiceKey("", "s")


class Trial(msgspec.Struct):
    calls: int
    """Number of calls that needed space, until the disk had space again."""
    ups: list[float]
    """``infercanary_store_up`` after each report, and once more when there was space again."""
    counted: float
    """``infercanary_stored_runs_total`` at the end."""
    verdict: str
    """Sentence of the verdict at the end."""
    kept: list[int]
    """Stored runs at the end."""
    left: list[int]
    """Stored runs after a kill at the moment when the disk had space again."""
    found_again: list[int]
    """Stored runs in that file after the next exporter read the probes' buffers."""


def _reports():
    for number in range(REPORTS):
        boot = str(number * 2 // REPORTS)  # upgrade halfway
        start = Generation(
            service="s", container="a", boot_id=boot, started_at=0.0, environment={"torch": boot}
        )
        yield start, [
            Run(sequence=n, canary="c", scheduled_at=10.0 * n, started_at=10.0 * n, outcome="ok", latencies=(0.01,) * 5)
            for n in range(RUNS * number, RUNS * (number + 1))
        ]  # fmt: skip


def _values(judging):
    return {
        f.name: f.points[0].value
        for f in judging.families()
        if f.points and isinstance(f.points[0].value, float)
    }


def _stored(path):
    with closing(open_store(path)) as store:
        assert store.database.set_aside_at is None
        return [s.sequence for _, samples in store.generations(S, "c") for s in samples]


def _ended(judging):
    judging.start()
    judging.stop(60)


def trial(folder, room, call):
    """Run one trial in which the disk becomes full at this call; 0 means that the disk is never full."""
    path, left = folder / "store.db", folder / "left.db"
    first = room.calls
    room.ends_at(first + call if call else 0)
    judging = Judging(path)
    ups = []
    for start, runs in _reports():
        judging.submit(start, runs)
        judging.turn()
        ups.append(_values(judging)[STORE_UP.name])
    calls = room.calls - first
    room.ends_at(0)
    for suffix in ("", "-wal", "-journal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copyfile(f"{path}{suffix}", f"{left}{suffix}")
    judging.turn()
    values = _values(judging)
    ups.append(values[STORE_UP.name])
    verdict = judging.findings[S]["c"].sentence
    _ended(judging)
    was_left = _stored(left)
    judging = Judging(left)
    for start, runs in _reports():
        judging.submit(start, runs)
    _ended(judging)
    done = Trial(calls, ups, values[STORED.name], verdict, _stored(path), was_left, _stored(left))
    for file in folder.iterdir():
        file.unlink()
    return done


def main(folder, step):
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    room = Room(Path(os.environ["FAKE_DISK_CONTROL"]))
    calls = 1
    call = 0
    while call <= calls:
        found = trial(folder, room, call)
        calls = max(calls, found.calls) if call == 0 else calls
        print(json.dumps([call, msgspec.to_builtins(found)]), flush=True)
        call = call + step if call else 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
