"""Probes with the largest permitted reports: ``python worst.py HOST FIRST_PORT COUNT`` (each on its own port).

Texts differ between probes and between starts, so the exporter cannot store equal texts once.
"""

import sys

from serving import serve

from infercanary.contract.report import Metric, Report, Run, encode
from infercanary.contract.vocabulary import COLD_START, COLD_START_METRIC

WIDE = "\N{GRINNING FACE}"  # One such character makes Python store every character of the text in four bytes.
RUNS = 960
REPORTS_OF_START = 4

_NAME = f"{WIDE}{'n' * 200}"
_WIDE = Metric("infercanary_runs_total", "counter", "Runs.", tuple(f"label_{n}" for n in range(10)))
_STATE = Metric("infercanary_canary_state", "gauge", "State.", ("canary", "state"))
_FAILURE = Metric("infercanary_canary_failure_info", "gauge", "Failure.", ("canary", "reason", "detail"))
_INVENTED = Metric("infercanary_invented", "gauge", "Invented.", ("name",))
_COLD = Metric(COLD_START_METRIC, "gauge", "Cold.", ("canary", "step"))
_UNUSED = {f"unused{n}": "u" * 4_000 for n in range(350)}  # unused entries that make the report longer


def report(probe, start, first=0):
    """Return a report with the permitted number of series, canaries, variables, outputs and runs.

    Args:
        probe: Number of the probe.
        start: Number of the start.
        first: Number of the first run.
    """
    families = (
        _WIDE.family(
            {tuple(f"{_NAME}{probe}{start}{s}{label}" for label in range(10)): 1.0 * s for s in range(250)}
        ),
        _STATE.family({(f"{_NAME}{probe}{start}{s}", "failing"): 1.0 for s in range(250)}),
        _FAILURE.family({(f"{_NAME}{probe}{start}{s}", "raised", f"{_NAME}{s}"): 1.0 for s in range(250)}),
        _INVENTED.family({(f"{start}{n}",): 1.0 for n in range(1_000)}),
        _COLD.family({(f"{_NAME}{n}", step): 1.5 for n in range(32) for step in COLD_START}),
    )
    environment = {f"{WIDE}{probe}{start}{n}": f"{WIDE}{'v' * 300}{n}" for n in range(200)}
    outputs = {f"{_NAME}{n}": tuple(probe + n + k / 7 for k in range(64)) for n in range(32)}
    runs = tuple(
        Run(
            s, f"{_NAME}{probe}{s % 16}", 1.0 * s, s + 0.5, "raised", (s / 7, s / 6, s / 5),
            detail=f"{WIDE}{s}" * 100, waited=s / 3, boot_id=f"{start}-{probe}-{s}".zfill(64),
        )
        for s in range(first, first + RUNS)
    )  # fmt: skip
    return Report(1, f"{probe}-{start}", 0.0, "c" * 500, 0, families, environment, runs, outputs)


class Worst:
    """A probe that restarts after every few polls."""

    def __init__(self, number):
        self._number = number
        self._reports = 0

    def report(self, _since):
        """Return the next report, with 1.4 MB of unused data."""
        start, first = self._reports // REPORTS_OF_START, self._reports * RUNS
        self._reports += 1
        found = report(self._number, start, first)
        found.environment.update(_UNUSED)
        return encode(found)


if __name__ == "__main__":
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    serve(host, port, (Worst(n).report for n in range(count)))
