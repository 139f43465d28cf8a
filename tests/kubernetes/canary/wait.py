"""A canary that takes a set time, and next to no CPU: many of them fit on a small machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from infercanary.probe.timing import HostClock, Phase

SECONDS = float(os.environ["WAIT_SECONDS"])


class Wait:
    """Sleeps."""

    clock = HostClock()

    def open(self) -> None:
        """Nothing to open."""

    def run(self, phase: Phase) -> None:
        """Sleep."""
        with phase("compute"):
            time.sleep(SECONDS)

    def values(self, result: object) -> Sequence[float]:
        """Always the same."""
        return [1.0]

    def environment(self) -> Mapping[str, str]:
        """Nothing that an image may have changed."""
        return {}

    def close(self) -> None:
        """Nothing to close."""
