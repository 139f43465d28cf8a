"""For all tests: which run side by side (pytest-xdist), and in which order."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import settings

# Never a timed test: machines are shared, and a slow moment is no mistake.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# There is one stack, and the demo likes its ports. What other tests disturb most comes last, when those are over.
STACK = [
    "tests/integration/demo/test_demo.py",
    *(f"tests/stack/test_{what}.py" for what in ("ways", "dashboards", "causes", "ghosts", "compose")),
]


def _group(nodeid: str) -> str:
    """Tests that run one after the other: those of a file, what they share is made once; and those that would meet."""
    path = nodeid.partition("::")[0]
    if path in STACK:
        return "stack"
    # Each looks for what experiments have left, on the whole machine.
    return "ab" if PurePath(path).name == "test_ab.py" else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, or it would end long after the others."""

    def place(item: pytest.Item) -> tuple[int, int]:
        path = item.nodeid.partition("::")[0]
        group = _group(item.nodeid)
        return (group != "stack") + (group not in ("stack", "ab")), STACK.index(path) if path in STACK else 0

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Its own `loadgroup` does not see groups with every pytest: 3.8 writes a name that pytest 9.2 does not read."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
