"""The judge's store on real disks: processes that are killed, disks that are full, files that are damaged or held."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import structlog
from small_disk import fill, mounted
from stores import CANARY, SEARCH, generation, samples

from infercanary.store import sqlite
from infercanary.store.base import StoreError
from infercanary.store.store import Store, open_store

pytestmark = pytest.mark.takes(30)


def sequences(store: Store, container: str = "search-1") -> list[int]:
    found = store.generations(SEARCH, CANARY)
    return next(([s.sequence for s in several] for g, several in found if g.container == container), [])


WRITER = """
import sys
from stores import generation, samples
from infercanary.store.store import open_store

store = open_store(sys.argv[1])
begin = int(sys.argv[2])
while True:
    runs = samples(begin, begin + 50)
    with store.session.transaction():
        store.take(generation(), runs[:20])
        store.take(generation(), runs[20:])
    begin += 50
    print(begin - 1, flush=True)  # committed up to here
    if begin % 500 == 0:
        store.thin(10.0 * begin)
"""


def start(script: str, *arguments: object, stdout: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


# Killed ----------------------------------------------------------------------------------------------------------


def test_what_was_committed_survives_a_kill_at_any_moment_and_is_not_taken_twice(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    committed_file = tmp_path / "committed_file"
    rng = random.Random(7)
    total = 0
    for _ in range(12):
        begin = max(1, total - 200)  # as after a restart: what came before is offered again
        with committed_file.open("w") as file:
            writer = start(WRITER, path, begin, stdout=file)
        while not committed_file.stat().st_size:
            assert writer.poll() is None
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.25))
        writer.kill()
        writer.communicate(timeout=30)
        assert writer.returncode == -signal.SIGKILL
        committed = int(committed_file.read_text().splitlines()[-1])
        before = total
        store = open_store(path)
        ((_, several),) = store.generations(SEARCH, CANARY)
        assert [s.sequence for s in several] == sorted({s.sequence for s in several})
        total = sum(s.runs for s in several)
        assert several[-1].sequence == total, "none lost, none twice"
        assert total in (before, committed, committed + 50), "a transaction is there as a whole or not at all"
        assert total >= max(before, committed), "and is there once the writer knew that it was committed"
        assert store.taken(SEARCH, CANARY) == {("search-1", "boot"): total}
        assert store.database.set_aside_at is None
        store.close()
    assert total > 2_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["committed_file", "store.db"]


# Full ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    with mounted(tmp_path / "disk", 2) as disk:
        yield disk


@pytest.mark.root
def test_a_full_disk_costs_nothing_and_it_goes_on_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "store.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    store = open_store(path)
    taken = 1
    error = None
    while error is None:
        assert taken < 50_000
        try:
            with store.session.transaction():
                assert store.take(generation(container="other"), samples(taken, taken + 50)) == 50
                assert store.take(generation(), samples(taken, taken + 50)) == 50
            taken += 50
        except StoreError as full:
            error = full
    assert "the disk is full" in str(error)
    assert taken > 500
    for _ in range(3):
        assert sequences(store) == sequences(store, "other") == list(range(1, taken))
        with pytest.raises(StoreError, match="full"):
            store.take(generation(), samples(taken, taken + 5_000))

    ballast.unlink()
    assert store.take(generation(), samples(1, taken + 50)) == 50, "the cursor was kept"
    store.close()
    store = open_store(path)
    assert store.database.set_aside_at is None
    assert sequences(store) == list(range(1, taken + 50))
    store.close()


@pytest.mark.root
def test_a_full_disk_while_it_is_opened(small_disk: Path) -> None:
    ballast = fill(small_disk)
    path = small_disk / "store.db"
    with pytest.raises(StoreError, match=re.escape(f"{path}: the disk is full")):
        open_store(path)
    ballast.unlink()
    store = open_store(path)
    assert store.take(generation(), samples(1, 10)) == 9
    store.close()


def test_a_limit_on_the_size_of_files_is_like_a_full_disk(tmp_path: Path) -> None:
    script = """
    import resource, signal, sys
    from stores import CANARY, SEARCH, generation, samples
    from infercanary.store.base import StoreError
    from infercanary.store.store import open_store

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    store = open_store(sys.argv[1])
    taken = 1
    try:
        while taken < 50_000:
            store.take(generation(), samples(taken, taken + 50))
            taken += 50
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    new = store.take(generation(), samples(1, taken + 50))
    ((_, found),) = store.generations(SEARCH, CANARY)
    print(new, len(found) == taken + 49, store.database.set_aside_at)
    """
    writer = start(script, tmp_path / "store.db")
    output, errors = writer.communicate(timeout=60)
    assert not errors
    first, second = output.splitlines()
    assert first.startswith(f"{tmp_path}/store.db: ")
    assert second == "50 True None"


# Damaged ---------------------------------------------------------------------------------------------------------


def make(path: Path) -> int:
    """A store with some runs; how many bytes."""
    store = open_store(path)
    for number in range(20):
        store.take(generation(container=f"c-{number}"), samples(1, 300))
    store.close()
    return path.stat().st_size


def random_head(path: Path, _size: int) -> None:
    with path.open("r+b") as file:
        file.write(random.Random(1).randbytes(4096))


def random_head_after_the_header(path: Path, _size: int) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(random.Random(2).randbytes(4096))


def truncated(path: Path, size: int) -> None:
    os.truncate(path, size // 2)


def truncated_within_a_page(path: Path, size: int) -> None:
    os.truncate(path, size - 5000)


def zeroed_middle(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(bytes(65_536))


def text(path: Path, _size: int) -> None:
    path.write_text("not a database, but long enough to be looked at as one\n" * 100)


DAMAGES = [random_head, random_head_after_the_header, truncated, truncated_within_a_page, zeroed_middle, text]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupt_file_is_set_aside_and_a_new_one_begun(
    damage: Callable[[Path, int], None], tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    damage(path, make(path))
    damaged = path.read_bytes()
    with structlog.testing.capture_logs() as logs:
        store = open_store(path)
    assert store.database.set_aside_at is not None
    (aside,) = (file for file in tmp_path.iterdir() if ".corrupt-" in file.name)
    assert re.match(r"store\.db\.corrupt-\d{8}T\d{6}", aside.name)
    assert aside.read_bytes() == damaged
    assert [(log["log_level"], log["path"]) for log in logs] == [("warning", str(aside))]
    assert store.canaries() == []
    assert store.take(generation(), samples(1, 10)) == 9
    store.close()
    store = open_store(path)
    assert sequences(store) == list(range(1, 10))
    store.close()


def test_a_file_that_is_damaged_in_use_is_set_aside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_CACHE_KIB", 64)  # so that it is read from the disk
    path = tmp_path / "store.db"
    make(path)
    store = open_store(path)
    zeroed_middle(path, path.stat().st_size)

    def use() -> None:
        with store.session.transaction():
            store.take(generation(container="new"), samples(1, 50))
            for number in range(20):
                store.generations(SEARCH, CANARY)
                store.take(generation(container=f"c-{number}"), samples(1, 1_000))

    with structlog.testing.capture_logs() as logs, pytest.raises(StoreError, match=r"corrupt .* set aside"):
        use()
    assert [log["event"] for log in logs] == ["store set aside, and a new one begun"]
    assert store.canaries() == [] and store.database.set_aside_at is not None
    assert store.take(generation(), samples(1, 10)) == 9
    store.close()


def test_the_log_beside_a_corrupt_file_goes_with_it_and_only_the_last_three_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for _ in range(5):
        make(path)
        random_head(path, 0)
        Path(f"{path}-wal").write_bytes(b"log")
        store = open_store(path)
        assert store.database.set_aside_at is not None
        store.close()
    names = [file.name for file in tmp_path.iterdir()]
    asides = {name for name in names if ".corrupt-" in name and not name.endswith("-wal")}
    assert len(asides) == 3
    assert {*names} <= {"store.db", *asides, *(f"{name}-wal" for name in asides)}


def test_a_log_that_is_damaged_costs_what_was_in_it_only(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make(path)
    writer = start(WRITER, path, 1)
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.kill()
    writer.communicate(timeout=30)
    log = Path(f"{path}-wal")
    assert log.stat().st_size > 4096
    log.write_bytes(random.Random(3).randbytes(log.stat().st_size))
    store = open_store(path)
    assert store.database.set_aside_at is None
    assert sequences(store, "c-0") == list(range(1, 300))
    store.close()


# Not ours to write -----------------------------------------------------------------------------------------------


def test_a_file_that_another_exporter_holds_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_SECONDS", 0.1)
    path = tmp_path / "store.db"
    holder = start(WRITER, path, 1)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        with pytest.raises(StoreError, match=r"store\.db: in use by another process; give each exporter"):
            open_store(path)
        before = int(holder.stdout.readline())
        assert int(holder.stdout.readline()) > before, "the other one goes on"
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    store = open_store(path)
    assert store.database.set_aside_at is None and store.canaries()
    with pytest.raises(StoreError, match="in use"):
        open_store(path)
    store.close()


def test_a_file_is_held_from_the_first_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_SECONDS", 0.1)
    path = tmp_path / "store.db"
    for _ in range(2):
        store = open_store(path)
        with pytest.raises(StoreError, match="in use"):
            open_store(path)
        store.close()


def test_an_exporter_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    script = """
    import sys, time
    from infercanary.store.store import open_store

    store = open_store(sys.argv[1])
    print("open", flush=True)
    time.sleep(0.7)
    store.close()
    """
    ending = start(script, path)
    assert ending.stdout is not None
    ending.stdout.readline()
    open_store(path).close()
    ending.communicate(timeout=30)


@pytest.mark.root
def test_a_folder_that_cannot_be_written(small_disk: Path) -> None:
    path = small_disk / "store.db"
    make_small = open_store(path)
    make_small.take(generation(), samples(1, 10))
    make_small.close()
    before = path.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    fix = rf"cannot be written; .* writable for this user \(uid {os.getuid()}\)"
    for name in ("store.db", "new.db"):
        with pytest.raises(StoreError, match=rf"{name}: {fix}"):
            open_store(small_disk / name)
    assert path.read_bytes() == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    store = open_store(path)
    assert sequences(store) == list(range(1, 10))
    store.close()


def test_a_folder_that_is_missing_or_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/store\.db: cannot be written; make its folder"):
        open_store(tmp_path / "nowhere" / "store.db")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="make its folder"):
        open_store(tmp_path / "file" / "store.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="is a folder or a device; name a file"):
        open_store(tmp_path / "folder")
