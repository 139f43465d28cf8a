"""Stores for the tests of the store: in memory, and in databases of one PostgreSQL server for each test process."""

import pytest
import stores
from postgres import running


@pytest.fixture(scope="session")
def postgres():
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def in_memory():
    yield from stores.in_memory()


@pytest.fixture(scope="session")
def in_postgres(postgres):
    yield from stores.in_postgres(postgres)


@pytest.fixture(scope="session", params=["in_memory", "in_postgres"])
def opened(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def store(opened):
    return opened(None)


@pytest.fixture(params=["file", "postgres"])
def location(request, tmp_path):
    if request.param == "file":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("postgres").database()
