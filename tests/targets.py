"""Targets and canaries for tests of the probe."""

import threading
from collections.abc import Sequence
from typing import Any

from infercanary.probe import HostClock, Target
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.tags import values


class Scripted(Target):
    """Counts its calls, and behaves as a test says.

    Args:
        act: Computation of a repeat.
        needs: Memory that the target requests when it opens.
        attributes: Attributes that replace the defaults below.
    """

    phase = "compute"
    output: Sequence[float] = (1.0,)
    components: dict[str, str] = {}  # noqa: RUF012 - never changed
    blocks = ""
    """Name of the method that waits for :attr:`goes_on`."""

    def __init__(self, act=lambda: None, needs=(), **attributes):
        self.clock: Any = HostClock()
        self.act, self.needs = act, needs
        self.opened = self.closed = self.repeats = 0
        self.goes_on = threading.Event()
        vars(self).update(attributes)

    def _wait(self, method):
        assert self.blocks != method or self.goes_on.wait(30)

    def open(self):
        self._wait("open")
        self.ask_for_memory(self.needs)
        self.opened += 1

    def run(self, phase):
        self.repeats += 1
        with phase(self.phase):
            result = self.act()
        self._wait("run")
        return result

    def values(self, result):
        return self.output

    def environment(self):
        return self.components

    def close(self):
        self._wait("close")
        self.closed += 1


def opened(target, *more, tally=None, timeout=30.0, **options):
    """Return an open canary ``a``; ``more`` and ``options`` are arguments of :class:`Canary`."""
    canary = Canary("a", target, tally or Tally(), timeout, 300.0, *more, **options)
    canary.open(300.0)
    assert canary.is_open
    return canary


def points(tally, metric):
    return values(tally.families()).get(metric.name, {})
