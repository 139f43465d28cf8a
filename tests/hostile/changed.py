"""Hostile probes, many in one process: ``python changed.py HOST COUNT SEED``: honest reports, changed at random places.

It prints their addresses, and then each second how many changed reports they gave so far.
"""

from __future__ import annotations

import random
import sys
import time

from honest import Honest

from infercanary.probe.serve import ReportServer

PIECES = (
    b"-1",
    b"1e308",
    b"1e309",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"\xff",
    b"\\u0000",
    b"9" * 400,
    b"[" * 2000,
    b"",
)


class Changed(Honest):
    """One of them. Half of its answers are whole, so that the exporter goes on asking it; a third has a new boot id."""

    given = 0
    phases = ("compute",)

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(number)
        self._random = random.Random(f"{seed} {number}")

    def report(self, since: str) -> bytes:
        """A report in which up to eight pieces may be others."""
        rng = self._random
        if rng.random() < 0.3:
            self.boot_id = f"boot-{rng.random()}"
        body = bytearray(super().report(since))
        if rng.random() < 0.5:
            return bytes(body)
        Changed.given += 1
        for _ in range(rng.randrange(1, 9)):
            at = rng.randrange(len(body))
            again = bytes(body[at : at + rng.randrange(200)]) * 3
            piece = rng.choice(PIECES) if rng.random() < 0.7 else again
            body[at : at + rng.randrange(12)] = piece
        return bytes(body)


if __name__ == "__main__":
    host, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    servers = [ReportServer(f"{host}:0", Changed(n, seed).report) for n in range(count)]
    print(" ".join(server.address for server in servers), flush=True)
    while True:
        time.sleep(0.2)
        print(Changed.given, flush=True)
