"""Reads a probe's report over HTTP, and waits for expected values."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from infercanary.contract.report import Family, HistogramValue, decode

MODULES = Path(__file__).parent


class Seen:
    def __init__(self, report):
        self.report = report
        self.families: dict[str, Family] = {family.name: family for family in report.families}

    def value(self, name, *labels):
        """Return the value with these labels, or None; return the count of a histogram."""
        family = self.families.get(name)
        for point in family.points if family else ():
            if point.labels == labels:
                return sum(point.value.counts) if isinstance(point.value, HistogramValue) else point.value
        return None

    def state(self, canary):
        family = self.families["infercanary_canary_state"]
        (now,) = (p.labels[1] for p in family.points if p.labels[0] == canary and p.value == 1)
        return now

    def runs(self, canary, outcome):
        return self.value("infercanary_runs_total", canary, outcome) or 0.0


def fetch(address, since=""):
    """Fetch the report. Repeat refused requests, because the port limits the CPU time for each caller."""

    def ask():
        try:
            with urllib.request.urlopen(f"{address}/report?since={since}", timeout=10) as response:
                assert response.headers["Content-Type"] == "application/json"
                return response.read()
        except (ConnectionResetError, http.client.RemoteDisconnected):
            return None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionResetError):
                return None
            raise

    body = until(ask, "the port refuses every request")
    json.loads(body)
    return Seen(decode(body))


def ran(address, runs=1, canary="a", outcome="ok", seconds=60):
    return until(
        lambda: (seen := fetch(address)).runs(canary, outcome) >= runs and seen,
        f"no {runs} runs of {canary} with the outcome {outcome}",
        seconds,
    )


def until(condition, what="it did not happen", seconds=60.0):
    """Wait for ``condition``. The limit is long, because a busy machine must not fail a test."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def in_state(address, canary, *states):
    return until(lambda: (s := fetch(address)).state(canary) in states and s, f"{canary} is not {states}")


def shown(address, metric, *labels):
    return until(lambda: fetch(address).value(metric, *labels), f"no {metric} of {labels}")
