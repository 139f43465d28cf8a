"""PostgreSQL for the tests of a fleet: one server for each test process."""

from contextlib import ExitStack

import pytest
from postgres import running

from infercanary.exporter.judging import ownership


@pytest.fixture(scope="session")
def postgres():
    with running() as server:
        yield server


@pytest.fixture
def judges(monkeypatch):
    """Close the judges that a test makes. The judges exchange data at each turn."""
    monkeypatch.setattr(ownership, "_SHARE_SECONDS", 0.0)
    with ExitStack() as stack:
        yield stack
