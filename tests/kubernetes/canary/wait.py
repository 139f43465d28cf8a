"""A canary that takes a fixed time and hardly any CPU, so that many canaries fit on a small machine."""

import os
import time

from infercanary.probe.timing import HostClock

SECONDS = float(os.environ["WAIT_SECONDS"])


class Wait:
    clock = HostClock()

    def open(self): ...

    def run(self, phase):
        with phase("compute"):
            time.sleep(SECONDS)

    def values(self, result):
        return [1.0]

    def environment(self):
        return {}

    def close(self): ...
