"""A canary that takes a fixed time and hardly any CPU, so that many of them fit on a small machine."""

import os
import time

from infercanary.probe.timing import HostClock

SECONDS = float(os.environ["WAIT_SECONDS"])


class Wait:
    """Sleeps."""

    clock = HostClock()

    def open(self):
        """Nothing to open."""

    def run(self, phase):
        """Sleep."""
        with phase("compute"):
            time.sleep(SECONDS)

    def values(self, result):
        """Always the same."""
        return [1.0]

    def environment(self):
        """Nothing that an image may have changed."""
        return {}

    def close(self):
        """Nothing to close."""
