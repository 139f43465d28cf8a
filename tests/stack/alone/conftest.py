"""Shared parts of tests with single containers."""

import pytest
from canaries import begun_in
from harness import EXAMPLE, compose


@pytest.fixture(scope="session")
def image():
    """Image of the stack's inference services."""
    compose("build", "--quiet", "classify", seconds=600)
    return EXAMPLE


@pytest.fixture
def start(image, tmp_path):
    """Start a canary in a separate container; remove it afterwards, and print its log."""
    with begun_in(tmp_path, image) as begin:
        yield begin
