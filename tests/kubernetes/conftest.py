"""A real Kubernetes of three nodes, once for all tests of this folder. Skipped, in one line, where none can be had."""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from cluster import GIVEN, SCRIPT, Cluster, missing
from harness import run

HERE = Path(__file__).parent
_missing = functools.cache(missing)


class _Kubernetes:
    """Skips what is selected of this folder where there is no Kubernetes; in CI that is a failure."""

    @pytest.hookimpl(trylast=True)  # after -m, which deselects
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        mine = [item for item in items if HERE in item.path.parents]
        if not mine or config.option.collectonly or not (why := _missing()):
            return
        reason = f"the tests on a cluster need a Kubernetes: {why}"
        if os.environ.get("CI"):
            pytest.exit(f"{reason}; CI may not skip them", returncode=1)
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Kubernetes())


@pytest.hookimpl(tryfirst=True)  # before -m, which reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that was skipped, for whatever reason, has failed."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and _missing():
        # pytest's summary has a line for each place that skips: let this folder be one.
        report.longrepr = (str(HERE), None, report.longrepr[2])  # type: ignore[assignment]
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; gone afterwards, with all that they wrote."""
    folder = tmp_path_factory.mktemp("cluster")
    if GIVEN:
        yield Cluster(folder)
        return
    try:
        print(run(SCRIPT, "up", "3", seconds=300))
        yield Cluster(folder)
    finally:
        run(SCRIPT, "down", seconds=120)
