"""Observes an attacked exporter from the side of an honest user: durations of scrapes, and failed polls."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.request


class Watch:
    """Scrapes repeatedly in a thread, until :meth:`end`.

    Args:
        url: Address of the exporter.
        probes: Number of honest probes.
        context: TLS context.
        every: Seconds between scrapes. Scrapes of many probes need much CPU time of the reader.
    """

    def __init__(self, url, probes, context=None, every=0.1):
        self.seconds = []
        self.faults = []
        self.text = ""
        self._url, self._probes, self._context, self._every = url, probes, context, every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape)
        self._thread.start()

    def end(self):
        self._ended.set()
        self._thread.join()

    def clear(self):
        self.seconds.clear()
        self.faults.clear()

    @property
    def p99(self):
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def value(self, name):
        return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.text, re.M))

    def _scrape(self):
        while not self._ended.is_set():
            begin = time.monotonic()
            try:
                with urllib.request.urlopen(f"{self._url}/metrics", timeout=10, context=self._context) as got:
                    self.text = got.read().decode()
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.faults.append(f"a scrape failed: {error!r}")
            self.seconds.append(time.monotonic() - begin)
            if (up := self.value("infercanary_up")) != self._probes:
                self.faults.append(f"{up:g} probes are up")
            if failed := self.value("infercanary_poll_failures_total"):
                self.faults.append(f"{failed:g} polls failed")
            self._ended.wait(self._every)
