"""A target without an engine: it starts quickly, and the image sets its fixed amount of work."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import Any

from infercanary.probe import HostClock
from infercanary.probe.targets import Target


class Work:
    """Hashes WORK_BYTES (default 8,000,000) in its compute phase, and holds WORK_HOLDS_BYTES of memory.

    WORK_FAILS is the kind of failure: exit or raise.
    """

    def __init__(self):
        self.clock: Any = HostClock()
        self._bytes = b"\0" * int(float(os.environ.get("WORK_BYTES", "8e6")))
        self._held = b"\1" * int(float(os.environ.get("WORK_HOLDS_BYTES", "0")))
        self._fails = os.environ.get("WORK_FAILS", "")

    def open(self):
        if self._fails == "exit":
            print("no licence for this host", file=sys.stderr, flush=True)
            os._exit(7)
        time.sleep(float(os.environ.get("WORK_LOADS_SECONDS", "0")))

    def run(self, phase):
        if self._fails == "raise":
            raise RuntimeError("no such kernel")
        with phase("compute"):
            return hashlib.sha256(self._bytes).digest()

    def values(self, result):
        return [float(x) for x in result]

    def environment(self):
        return {"work_bytes": str(len(self._bytes))}

    def close(self):
        pass


class Batched(Work, Target):
    is_sweepable = True

    def copy_with_batch(self, batch):
        other = Batched()
        other._bytes = self._bytes * batch
        return other
