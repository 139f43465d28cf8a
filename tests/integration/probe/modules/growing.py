"""A target that allocates memory slowly while it opens, so that nobody knows its need in advance."""

import time
from typing import Any

from infercanary.probe import HostClock

MIB = 1 << 20


class Growing:
    def __init__(self, mib, rate=150.0):
        self._mib, self._rate = mib, rate
        self._held: list[bytearray] = []
        self.clock: Any = HostClock()

    def open(self):
        begin = time.perf_counter()
        for n in range(self._mib):
            self._held.append(bytearray(b"x" * MIB))
            time.sleep(max(0.0, begin + n / self._rate - time.perf_counter()))

    def run(self, phase):
        with phase("compute"):
            time.sleep(0.001)
        return 1.0

    def values(self, result):
        return [result]

    def environment(self):
        return {}

    def close(self):
        self._held.clear()


class Leaping(Growing):
    """Allocates all memory in one call of C code."""

    def open(self):
        self._held.append(bytearray(b"x" * (self._mib * MIB)))
