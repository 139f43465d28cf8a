"""Tests in several processes start containers at the same time: what one removes is its own."""

from __future__ import annotations

import pytest
from harness import LABEL, OWN_LABEL, remove, remove_containers, run


@pytest.fixture
def containers(image: str) -> dict[str, str]:
    """Label → the container that was created with it."""
    return {
        label: run("docker", "create", "--label", label, image).strip()
        for label in (OWN_LABEL, f"{LABEL}=another-process")
    }


def test_containers_of_another_process_stay(containers: dict[str, str]) -> None:
    own, other = containers.values()
    try:
        remove_containers()
        left = run("docker", "ps", "--all", "--quiet", "--no-trunc").split()
        assert other in left
        assert own not in left
    finally:
        remove(own, other)
