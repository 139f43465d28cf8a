"""A folder of tests that need something of the machine: marked, skipped without it, and never skipped in CI."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest


class NeedyFolder:
    """A plugin for the tests below a folder; its ``conftest.py`` registers it.

    Args:
        folder: Where they are.
        mark: What they are marked with.
        needs: What they need, for a sentence: ``the stack tests need Docker``.
        missing: Says why it is not there; None where it is. Called once at most, where one of them is selected.
    """

    def __init__(self, folder: Path, mark: str, needs: str, missing: Callable[[], str | None]) -> None:
        self._folder = folder
        self._mark = mark
        self._needs = needs
        self.missing = functools.cache(missing)

    @pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")  # before -m, which reads it
    def pytest_mark_all(self, items: list[pytest.Item]) -> None:
        """Mark all that is below the folder."""
        for item in items:
            if self._has(item):
                item.add_marker(self._mark)

    @pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")  # after -m, which deselects
    def pytest_skip_all(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Skip what is selected; in CI end the session instead."""
        mine = [item for item in items if self._has(item)]
        if not mine or config.option.collectonly or not (why := self.missing()):
            return
        reason = f"{self._needs}: {why}"
        if os.environ.get("CI"):
            pytest.exit(f"{reason}; CI may not skip them", returncode=1)
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(wrapper=True, specname="pytest_runtest_makereport")
    def pytest_fail_in_ci(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """In CI a test that was skipped, for whatever reason, has failed."""
        report = yield
        if not self._has(item) or not report.skipped:
            return report
        if isinstance(report.longrepr, tuple) and self.missing():
            # pytest's summary has a line for each place that skips: let this folder be one.
            report.longrepr = (str(self._folder), None, report.longrepr[2])  # type: ignore[assignment]
        if os.environ.get("CI"):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {report.longrepr}"
        return report

    def _has(self, item: pytest.Item) -> bool:
        return self._folder in item.path.parents
