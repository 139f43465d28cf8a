"""Fixtures of tests with single containers."""

import pytest
from canaries import begun_in
from harness import EXAMPLE, compose


@pytest.fixture(scope="session")
def image():
    compose("build", "--quiet", "classify", seconds=600)
    return EXAMPLE


@pytest.fixture
def start(image, tmp_path):
    """Return a function that starts a canary in a container; afterwards, print its log and remove the container."""
    with begun_in(tmp_path, image) as begin:
        yield begin
