"""A simulated server at a time: which image it runs, what is wrong with it, how long its inferences take."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from grafana.situations.worlds import END, Image, Server

INTERVAL = 10.0
"""Seconds between two runs."""
REPEATS = 10
_ON_GPU = {"h2d": 0.1, "compute": 0.75, "d2h": 0.03, "launch": 0.1, "queue": 0.02}
_STREAMED = {"connect": 0.002, "send": 0.003, "first_token": 0.2, "tokens": 0.795}


@dataclass(frozen=True)
class Moment:
    """A server at a time."""

    server: Server
    at: float
    started: float
    image: Image
    order: int
    """Which of its starts it is, from 0."""

    @property
    def passed(self) -> float:
        """Seconds since it was started."""
        return self.at - self.started

    @property
    def troubles(self) -> frozenset[str]:
        """Those that it has by now."""
        return (
            self.server.troubles
            if self.order == len(self.server.starts) - 1 and self.passed > 120
            else frozenset()
        )

    @property
    def phases(self) -> Mapping[str, float]:
        """Phase → share of the latency."""
        if self.server.streams:
            return _STREAMED
        return _ON_GPU if self.server.gpu else {"compute": 1.0}

    def latency(self, number: int) -> float:
        """How long a run takes.

        Args:
            number: Which run of this start, from 0.

        Returns:
            Seconds.
        """
        host = 1.25 if "host" in self.troubles else 1.0
        start = math.exp(random.Random(f"{self.server.name} {self.order}").gauss(0, 0.004))  # noqa: S311
        noise = math.exp(random.Random(f"{self.server.name} {self.order} {number}").gauss(0, 0.01))  # noqa: S311
        return self.server.latency * (1 + self.image.slower) * start * noise * host


def moment(server: Server, at: float) -> Moment | None:
    """How a server is at a time.

    Args:
        server: Which.
        at: Unix seconds.

    Returns:
        None before its first start.
    """
    begun = [(END - before, image) for before, image in server.starts if END - before <= at]
    return Moment(server, at, *begun[-1], order=len(begun) - 1) if begun else None
