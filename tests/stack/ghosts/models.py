"""Models that work well at first, and then fail as their options say.

test_ghosts.py mounts this file into containers.
"""

import time

from infercanary.probe.timing import HostClock

WELL_SECONDS = 15


def _compute(seconds):
    """Use a CPU for about this many seconds, if it is otherwise idle."""
    for _ in range(round(seconds * 50)):
        sum(range(700_000))


def _hang():
    time.sleep(3600)


def _fail():
    raise RuntimeError("the weights are gone")


FAULTS = {"none": lambda: None, "raises": _fail, "hangs": _hang}


class Model:
    """Sleeps or computes for ``seconds`` in each run; the fault begins some time after :meth:`open`."""

    clock = HostClock()

    def __init__(self, seconds=0.01, computes=False, fault="none"):
        self._seconds = seconds
        self._work = _compute if computes else time.sleep
        self._fault = fault

    def open(self):
        self._well_until = time.monotonic() + WELL_SECONDS

    def run(self, phase):
        well = time.monotonic() < self._well_until
        with phase("compute"):
            self._work(self._seconds)
            if not well and self._fault in FAULTS:
                FAULTS[self._fault]()
        return 1.0 if well or self._fault != "answers_otherwise" else 2.0

    def values(self, result):
        return [result, 1.0]

    def environment(self):
        return {}

    def close(self):
        pass
