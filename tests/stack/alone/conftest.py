"""Shared parts of tests with single containers."""

import pytest
from canaries import begun_in
from harness import EXAMPLE, compose


@pytest.fixture(scope="session")
def image():
    """That of the stack's inference services."""
    compose("build", "--quiet", "classify", seconds=600)
    return EXAMPLE


@pytest.fixture
def start(image, tmp_path):
    """Starts a canary in a container of its own; it is gone afterwards, and what it logged is printed."""
    with begun_in(tmp_path, image) as begin:
        yield begin
