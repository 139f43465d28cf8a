"""A canary that takes a fixed time and hardly any CPU, so that many of them fit on a small machine."""

import os
import time

from infercanary.probe.timing import HostClock

SECONDS = float(os.environ["WAIT_SECONDS"])


class Wait:
    """Target that sleeps."""

    clock = HostClock()

    def open(self):
        """No resources to open."""

    def run(self, phase):
        with phase("compute"):
            time.sleep(SECONDS)

    def values(self, result):
        return [1.0]

    def environment(self):
        return {}

    def close(self):
        """No resources to close."""
