"""A target with scripted behaviour: a class for tests, and a name in the settings files of subprocesses."""

import threading
import time
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.probe import HostClock, Target

LONG = 120.0


class Scripted(Target):
    """``script`` maps a method to its behaviour: ok, raise, exit, interrupt, hang, nan, nothing, junk, mistake,
    usage.

    Each call reads ``script``, so a test can break and repair a target while it runs.
    """

    def __init__(self, seconds=0.001, **script):
        self.seconds = seconds
        self.script = script
        self.calls: list[tuple[str, int]] = []
        self.clock: Any = HostClock()
        self.go_on = threading.Event()
        """Ends every hang when set."""
        self._act("init")

    def open(self):
        self._act("open")

    def run(self, phase):
        with phase("compute"):
            time.sleep(self.seconds)
        return self._act("run")

    def values(self, result):
        odd: dict[str, Any] = {"nan": [1.0, float("nan")], "nothing": [], "junk": ["a", None]}
        return odd.get(self._act("values"), [1.0])

    def environment(self):
        if self._act("environment") == "junk":
            return {"number": 3, "text": "a\udcff\nb", 5: None}
        return {"engine": "scripted"}

    def close(self):
        self._act("close")

    def count(self, method):
        return sum(name == method for name, _ in self.calls)

    def _act(self, method):
        self.calls.append((method, threading.get_ident()))
        what = self.script.get(method, "ok")
        errors = {
            "raise": ValueError(f"{method} broken on purpose\nwith a second line"),
            "exit": SystemExit(7),
            "interrupt": KeyboardInterrupt(),
            "usage": UsageError(f"{method}: fix this"),
        }
        if what in errors:
            raise errors[what]
        if what == "hang":
            self.go_on.wait(LONG)
        return what


class OnDevice(Scripted):
    def __init__(self, device="cuda:0", seconds=0.001, **script):
        super().__init__(seconds, **script)
        self.device = device
