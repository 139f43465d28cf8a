"""PostgreSQL for the tests of a fleet: one server for all of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres import Postgres, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server
