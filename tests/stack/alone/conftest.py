"""What tests of single containers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from canaries import Begin, begun_in
from harness import EXAMPLE, compose


@pytest.fixture(scope="session")
def image() -> str:
    """That of the stack's inference services."""
    compose("build", "--quiet", "classify", seconds=600)
    return EXAMPLE


@pytest.fixture
def start(image: str, tmp_path: Path) -> Iterator[Begin]:
    """Starts a canary in a container of its own; it is gone afterwards, and what it logged is printed."""
    with begun_in(tmp_path, image) as begin:
        yield begin
