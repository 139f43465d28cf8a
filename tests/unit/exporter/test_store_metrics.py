"""What a scrape says of a store that was lost."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection

from infercanary.exporter.judging.worker import Judging
from infercanary.store.sqlite import SqliteDatabase

SET_ASIDE = "infercanary_store_set_aside_timestamp_seconds"


def value(judging: Judging, name: str) -> float | None:
    [family] = [family for family in judging.families() if family.name == name]
    if not family.points:
        return None
    [point] = family.points
    assert isinstance(point.value, float)
    return point.value


def end(judging: Judging) -> None:
    judging.start()
    judging.stop()


@pytest.fixture
def corrupt(tmp_path: Path) -> Path:
    path = tmp_path / "judge.sqlite"
    path.write_text("not a database, but long enough to be looked at as one\n" * 100)
    return path


def test_a_corrupt_file_is_shown_until_it_is_removed(corrupt: Path) -> None:
    corrupt.with_name("judge.sqlite.corrupt-kept-by-somebody").touch()
    corrupt.with_name("judge.sqlite.corrupt-20200101T000000Z").touch()
    judging = Judging(corrupt)
    assert value(judging, SET_ASIDE) is None, "not opened yet"
    before = int(time.time())
    judging.turn()
    shown = value(judging, SET_ASIDE)
    assert shown is not None and before <= shown <= time.time()
    assert value(judging, "infercanary_store_up") == 1, "begun anew"
    end(judging)

    later = Judging(corrupt)
    later.turn()
    assert value(later, SET_ASIDE) == shown
    end(later)

    for file in corrupt.parent.glob("*.corrupt-*"):
        file.unlink()
    last = Judging(corrupt)
    last.turn()
    assert value(last, SET_ASIDE) is None
    end(last)


def test_it_is_shown_also_where_no_new_file_could_be_begun_at_first(
    corrupt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteDatabase.prepare

    def prepare(database: SqliteDatabase, connection: Connection) -> None:
        if [*corrupt.parent.glob("*.corrupt-*")]:
            raise sqlite3.OperationalError("database or disk is full")
        real(database, connection)

    judging = Judging(corrupt)
    with monkeypatch.context() as full:
        full.setattr(SqliteDatabase, "prepare", prepare)
        judging.turn()
        assert value(judging, "infercanary_store_up") == 0
    judging.turn()
    assert value(judging, "infercanary_store_up") == 1
    assert value(judging, SET_ASIDE) is not None
    end(judging)
