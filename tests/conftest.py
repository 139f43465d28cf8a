"""For all tests."""

import pytest
from hypothesis import settings

# Never a timed test: machines are shared, and a slow moment is no mistake.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files run side by side (pytest-xdist), the tests of one after each other: what they share is made once."""
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
