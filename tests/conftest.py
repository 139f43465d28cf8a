"""For all tests: which run side by side (pytest-xdist), and in which order."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# Never a timed test: machines are shared, and a slow moment is no mistake.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# What measures latency to judge it has the machine to itself.
QUIET = [
    "tests/integration/exporter/test_ab.py",
    *(f"tests/stack/test_{what}.py" for what in ("ab", "dashboards", "causes", "ghosts", "compose")),
]
# One after the other: there is one stack, and the demo likes its ports.
CHAIN = ["tests/integration/demo/test_demo.py", "tests/stack/test_ways.py", *QUIET]


def _path(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The chain first: it takes longest."""
    place = {path: number for number, path in enumerate(CHAIN)}
    items.sort(key=lambda item: place.get(_path(item.nodeid), len(CHAIN)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A quiet test waits until no other runs, in whichever process; the others share, and so come first."""
    with (item.config.cache.mkdir("quiet") / "lock").open("w") as lock:  # type: ignore[union-attr]
        fcntl.flock(lock, fcntl.LOCK_EX if _path(item.nodeid) in QUIET else fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files side by side, the tests of one after each other, for what they share is made once; and the chain.

    Not xdist's own groups: 3.8 writes them into a name that pytest 9.2 does not read.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = _path(nodeid)
            return "chain" if path in CHAIN else path

    config.option.loadscopereorder = False
    return Scheduling(config, log)
