"""Stores for the tests of the store: in memory, and in databases of one PostgreSQL for all of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stores
from postgres import Postgres, running
from stores import Opens

from infercanary.store.store import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def in_memory() -> Iterator[Opens]:
    yield from stores.in_memory()


@pytest.fixture(scope="session")
def in_postgres(postgres: Postgres) -> Iterator[Opens]:
    yield from stores.in_postgres(postgres)


@pytest.fixture(scope="session", params=["in_memory", "in_postgres"])
def opened(request: pytest.FixtureRequest) -> Opens:
    opens: Opens = request.getfixturevalue(request.param)
    return opens


@pytest.fixture
def store(opened: Opens) -> Store:
    return opened(None)


@pytest.fixture(params=["file", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store is that outlives its process."""
    if request.param == "file":
        return str(tmp_path / "store.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()
