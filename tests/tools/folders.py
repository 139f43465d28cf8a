"""Plugin for a folder of tests with a requirement. Without the requirement, it skips the tests, or in CI fails them."""

import functools
import os

import pytest


class NeedyFolder:
    """Plugin for the tests in a folder; its ``conftest.py`` registers the plugin.

    Args:
        folder: Folder of the tests.
        mark: Mark for these tests.
        needs: Requirement in words, such as ``the stack tests need Docker``.
        missing: Returns the reason why the requirement is not met, or None. Called at most once, if a test is
            selected.
    """

    def __init__(self, folder, mark, needs, missing):
        self._folder = folder
        self._mark = mark
        self._needs = needs
        self.missing = functools.cache(missing)

    # pytest evaluates the option -m after this hook
    @pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
    def pytest_mark_all(self, items):
        for item in items:
            if self._has(item):
                item.add_marker(self._mark)

    # pytest has applied the option -m before this hook
    @pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
    def pytest_skip_all(self, config, items):
        """Skip the selected tests of the folder; in CI, end the session instead."""
        mine = [item for item in items if self._has(item)]
        if not mine or config.option.collectonly or not (why := self.missing()):
            return
        reason = f"{self._needs}: {why}"
        if os.environ.get("CI"):
            pytest.exit(f"{reason}; CI may not skip them", returncode=1)
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(wrapper=True, specname="pytest_runtest_makereport")
    def pytest_fail_in_ci(self, item):
        """In CI, report a skipped test as failed."""
        report = yield
        if not self._has(item) or not report.skipped:
            return report
        if isinstance(report.longrepr, tuple) and self.missing():
            # pytest's summary has a line for each file with skipped tests: print one line for the folder.
            report.longrepr = (str(self._folder), None, report.longrepr[2])
        if os.environ.get("CI"):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {report.longrepr}"
        return report

    def _has(self, item):
        return self._folder in item.path.parents
