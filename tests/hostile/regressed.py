"""Probes whose canaries all change: ``python regressed.py HOST FIRST_PORT COUNT`` (each probe on its own port).

Each poll returns a new start. Its environment differs, which counts as another image, and the runs of its 32
canaries take twice or half as long as before, with many phases, controls and profiles.
"""

import sys
from functools import lru_cache

import msgspec
from serving import serve

from infercanary.contract.profile import OK, Profile, ProfileRow
from infercanary.contract.report import Report, Run, encode

CANARIES = 32
RUNS = 26  # runs of each start
PARTS = 20

_PHASES = [f"{'p' * 40}{n}" for n in range(PARTS)]
_CONTROLS = [f"{'c' * 40}{n}" for n in range(PARTS)]
_CANARY = "n" * 60


def report(probe, start):
    environment = {f"{probe}-{n}-{'e' * 100}": f"{start} {'v' * 150}" for n in range(180)}
    return Report(1, f"{probe}-{start}", _began(start), "", 0, (), environment, runs_of(start))


@lru_cache(maxsize=8)
def runs_of(start):
    level = 0.02 * (1 + start % 2)
    began = _began(start)
    runs = []
    for number in range(RUNS * CANARIES):
        seconds = level * (1 + (number * 37 % 11) / 2_000)
        at = began + number * 0.5
        runs.append(
            Run(
                number + 1, f"{_CANARY}{number % CANARIES}", at, at, "ok", (seconds,) * 5,
                phases=dict.fromkeys(_PHASES, seconds / PARTS),
                controls=dict.fromkeys(_CONTROLS, seconds),
                profile=_profile(at, seconds) if number >= (RUNS - 3) * CANARIES else None,
            )
        )  # fmt: skip
    return msgspec.Raw(msgspec.json.encode(runs))


def _began(start):
    return 1_790_000_000.0 + 600.0 * start


class Regressed:
    def __init__(self, number):
        self._number = number
        self._starts = 0

    def report(self, _since):
        self._starts += 1
        return encode(report(self._number, self._starts))


def _profile(at, seconds):
    """Return a profile with the maximum number of rows."""
    part = (seconds / 41,) * 3
    rows = tuple(
        ProfileRow(f"{'k' * 60}{n}", f"{'o' * 60}{n}", "cpu", "", 1.0, part, order=n) for n in range(40)
    )
    return Profile(at, "torch", OK, (seconds,) * 3, part, (0.0,) * 3, rows)


if __name__ == "__main__":
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    serve(host, port, (Regressed(n).report for n in range(count)))
