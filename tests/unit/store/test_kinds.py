"""The kinds of stores that there are, and how a new one is added: by one file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infercanary import store as package
from infercanary.judge.policy import LIVE
from infercanary.store import kinds
from infercanary.store.base import StoreError
from infercanary.store.kinds import open_store, register, registered, scheme_of
from infercanary.store.retention import Retention, opening_for
from infercanary.store.sqlite import SqliteStore

NEW_STORE = """
from infercanary.store.kinds import register
from infercanary.store.sqlite import SqliteStore


class FleetStore(SqliteStore):
    pass


register("fleet", lambda location: FleetStore.open(None))
"""


@pytest.mark.parametrize("prefix", ["", "sqlite://"])
def test_a_path_is_a_file_of_sqlite(prefix: str, tmp_path: Path) -> None:
    store = open_store(f"{prefix}{tmp_path / 'judge.sqlite'}")
    assert isinstance(store, SqliteStore) and (tmp_path / "judge.sqlite").is_file()
    store.close()


def test_without_a_location_it_is_in_memory() -> None:
    store = open_store(None)
    assert store.size_bytes
    store.close()


def test_a_kind_that_there_is_not_is_named_with_those_that_there_are() -> None:
    assert scheme_of("postgresql://host/db") == "postgresql"
    with pytest.raises(StoreError, match="no store for nosuch://; those that there are: postgresql, sqlite"):
        open_store("nosuch://host/db")


def test_a_new_store_takes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.py").write_text(NEW_STORE)
    monkeypatch.setattr(kinds, "_registered", registered())
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    store = open_store("fleet://host")
    assert type(store).__name__ == "FleetStore"
    store.close()
    sys.modules.pop("infercanary.store.fleet")


def test_a_scheme_belongs_to_one_kind() -> None:
    with pytest.raises(ValueError, match="sqlite"):
        register("sqlite", lambda _location: open_store(None))


def test_what_the_judge_looks_at_is_kept_as_it_was() -> None:
    assert Retention().opening == opening_for(LIVE) > LIVE.decide.looks[-1]
    assert Retention().reaching(LIVE.but(looks=(100, 1000))).opening > 1000
