"""Many honest probes in one process: ``python honest.py HOST FIRST_PORT COUNT`` (each probe on its own port).

The server is the code of the real probe. The reports grow, like those of a probe with one canary.
"""

import sys
import time

from serving import serve

from infercanary.contract.report import (
    LADDER,
    LATENCY,
    PHASE,
    SCHEMA_VERSION,
    HistogramValue,
    Report,
    encode,
)

PHASES = ("h2d", "compute", "d2h", "launch", "queue")


class Honest:
    def __init__(self, number):
        self.boot_id = f"honest-{number}"
        self.reports = 0

    def report(self, since):
        self.reports += 1
        counts = (0,) * 20 + (self.reports,) + (0,) * (len(LADDER) - 20)
        histogram = HistogramValue(counts, 0.0016 * self.reports)
        families = (
            LATENCY.family({("model",): histogram}),
            PHASE.family({("model", phase): histogram for phase in PHASES}),
        )
        return encode(
            Report(
                SCHEMA_VERSION,
                self.boot_id,
                time.time(),
                f"{self.boot_id}:{self.reports}",
                0,
                families,
                {"torch": "2.7.1"},
                (),
            )
        )


if __name__ == "__main__":
    host, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    serve(host, first, (Honest(n).report for n in range(count)))
