"""The judge's store on real disks: full, corrupt, in use by another process, or read-only.

test_killed.py and test_disk.py test kills, power failures, and a disk that becomes full at any write.
"""

import os
import random
import re
import shutil
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from small_disk import fill, mounted
from stores import CANARY, SEARCH, generation, samples
from structlog.testing import capture_logs

from infercanary.store import sqlite
from infercanary.store.base import StoreError
from infercanary.store.store import open_store
from tests.scenarios import cases


def sequences(store, container="search-1"):
    found = {start.container: runs for start, runs in store.generations(SEARCH, CANARY)}
    return [run.sequence for run in found[container]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk", 2) as disk:
        yield disk


def make(path):
    """Make a store with some runs, and return the size of its file in bytes."""
    with closing(open_store(path)) as store:
        for number in range(20):
            store.take(generation(container=f"c-{number}"), samples(1, 300))
    return path.stat().st_size


def damage(path, offset, body):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(body)


@pytest.mark.root
def test_a_full_disk_while_it_is_opened_and_later(small_disk):
    ballast = fill(small_disk)
    path = small_disk / "store.db"
    full = re.escape(f"{path}: the disk is full")
    with pytest.raises(StoreError, match=full):
        open_store(path)
    ballast.unlink()
    with closing(open_store(path)) as store:
        assert store.take(generation(), samples(1, 10)) == 9
        ballast = fill(small_disk)
        with pytest.raises(StoreError, match=full):
            store.take(generation(), samples(1, 20_000))
        assert sequences(store) == [*range(1, 10)]
        ballast.unlink()
        assert store.take(generation(), samples(1, 20)) == 10


RANDOM = random.Random(1).randbytes(4096)


TEXT = b"not a database, but long enough to be looked at as one\n" * 100
DAMAGE = {
    "the first page": (0, RANDOM),
    "after the header": (100, RANDOM),
    "pages in the middle": (-100_000, bytes(65_536)),
    "truncated": (-100_000, b""),
    "truncated within a page": (-5_000, b""),
    "no database": (0, TEXT),
}


@cases(DAMAGE.values(), ids=[*DAMAGE])
def test_a_corrupt_file_is_set_aside_and_a_new_one_begun(offset, body, path):
    size = make(path)
    damage(path, offset % size, body)
    if not body:
        os.truncate(path, offset % size)
    damaged = path.read_bytes()
    with capture_logs() as logs, closing(open_store(path)) as store:
        assert store.database.set_aside_at is not None
        [aside] = (file for file in path.parent.iterdir() if ".corrupt-" in file.name)
        assert re.match(r"store\.db\.corrupt-\d{8}T\d{6}", aside.name)
        assert aside.read_bytes() == damaged
        assert store.canaries() == []
        assert store.take(generation(), samples(1, 10)) == 9
    assert [(log["log_level"], log["path"]) for log in logs] == [("warning", str(aside))]
    with closing(open_store(path)) as store:
        assert sequences(store) == [*range(1, 10)]


def test_a_file_that_is_damaged_in_use_is_set_aside_too(path, monkeypatch):
    monkeypatch.setattr(sqlite, "_CACHE_KIB", 64)  # so that SQLite reads pages from the disk
    size = make(path)

    def use(store):
        with store.session.transaction():
            store.take(generation(container="new"), samples(1, 50))
            for number in range(20):
                store.generations(SEARCH, CANARY)
                store.take(generation(container=f"c-{number}"), samples(1, 1_000))

    with closing(open_store(path)) as store:
        damage(path, size // 2 // 4096 * 4096, bytes(65_536))
        with capture_logs() as logs, pytest.raises(StoreError, match=r"corrupt .* set aside"):
            use(store)
        assert [log["event"] for log in logs] == ["corrupt store set aside, new file created"]
        assert store.canaries() == []
        assert store.database.set_aside_at is not None
        assert store.take(generation(), samples(1, 10)) == 9


def test_the_log_beside_a_corrupt_file_goes_with_it_and_only_the_last_three_are_kept(path):
    for _ in range(5):
        make(path)
        damage(path, 0, RANDOM)
        Path(f"{path}-wal").write_bytes(b"log")
        open_store(path).close()
    names = {file.name for file in path.parent.iterdir()}
    asides = {name for name in names if ".corrupt-" in name and not name.endswith("-wal")}
    assert len(asides) == 3
    assert names <= {"store.db", "store.db-lock", *asides, *(f"{name}-wal" for name in asides)}


def test_a_log_that_is_damaged_costs_what_was_in_it_only(path):
    make(path)
    left = path.with_name("left.db")  # a copy of the store's file, as a crash leaves it
    with closing(open_store(path)) as store:
        store.take(generation(), samples(1, 300))
        shutil.copy(path, left)
        Path(f"{left}-wal").write_bytes(RANDOM * (Path(f"{path}-wal").stat().st_size // 4096))
    with closing(open_store(left)) as store:
        assert store.database.set_aside_at is None
        assert sequences(store, "c-0") == [*range(1, 300)]


def test_a_file_is_held_from_the_first_moment_on_and_left_alone_by_others(path, monkeypatch):
    for _ in range(2):
        with monkeypatch.context() as patched, closing(open_store(path)) as store:
            patched.setattr(sqlite, "_LOCK_SECONDS", 0.1)
            with pytest.raises(
                StoreError, match=r"store\.db: in use by another process; use a separate file"
            ):
                open_store(path)
            store.take(generation(), samples(1, 10))
            assert sequences(store) == [*range(1, 10)]  # the process that has the lock continues
    timer = threading.Timer(0.7, open_store(path).close)
    timer.start()
    with closing(open_store(path)) as store:  # wait for a store that another thread is closing
        assert sequences(store) == [*range(1, 10)]
    timer.join()


@pytest.mark.root
def test_a_folder_that_cannot_be_written_or_is_missing(small_disk):
    path = small_disk / "store.db"
    with closing(open_store(path)) as store:
        store.take(generation(), samples(1, 10))
    before = path.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    fix = rf"cannot be written; .* writable for this user \(uid {os.getuid()}\)"
    for name in ("store.db", "new.db", "nowhere/store.db"):
        with pytest.raises(StoreError, match=rf"{name}: {fix}"):
            open_store(small_disk / name)
    assert path.read_bytes() == before
