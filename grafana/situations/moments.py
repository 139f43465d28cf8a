"""State of a simulated server at a time: its image, its troubles, and its latency."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import NamedTuple

from grafana.situations.worlds import END, Image, Server

INTERVAL = 10.0
"""Seconds between two runs."""
REPEATS = 10
TROUBLE = 120.0
"""Seconds from the last start to the beginning of troubles."""
_ABILITIES = {"gpu", "streams", "sweeps"}
_CUDA = {
    "torch_cuda": "12.8",
    "torch_cudnn": "9.7.1",
    "torch_device": "cuda:0",
    "nvidia_driver": "580.159.04",
}
_PHASES = {
    "streams": {"connect": 0.002, "send": 0.003, "first_token": 0.2, "tokens": 0.795},
    "gpu": {"h2d": 0.1, "compute": 0.75, "d2h": 0.03, "launch": 0.1, "queue": 0.02},
    "": {"compute": 1.0},
}


class Moment(NamedTuple):
    server: Server
    started: float
    passed: float
    """Seconds since the start."""
    image: Image
    order: int
    """Number of earlier starts."""
    words: frozenset[str]
    """Current abilities and troubles."""

    @property
    def environment(self) -> Mapping[str, str]:
        own = {f"model:{self.server.canary}": "8c1f", "cpuset_cpus": "0-3", "cpu_model": self.server.cpu}
        return {**self.image.environment, **own, **(_CUDA if "gpu" in self.words else {})}

    @property
    def phases(self) -> Mapping[str, float]:
        """Share of the latency by phase."""
        return next(shares for word, shares in _PHASES.items() if word in {*self.words, ""})

    @property
    def level(self) -> float:
        return self.server.latency * (1 + self.image.slower) * (1.25 if "host" in self.words else 1.0)

    def latency(self, number: int) -> float:
        """Return the latency of a run of this start, in seconds."""
        start = f"{self.server.name} {self.order}"
        seeds = ((start, 0.004), (f"{start} {number}", 0.01))
        return self.level * math.exp(sum(random.Random(seed).gauss(0, sd) for seed, sd in seeds))  # noqa: S311


def moment(server: Server, at: float) -> Moment | None:
    """Return the state of a server at a time (Unix seconds), or None before its first start."""
    begun = [(END - before, image) for before, image in server.starts if END - before <= at]
    if not begun:
        return None
    started, image = begun[-1]
    words = {*server.words.split(",")}
    if len(begun) < len(server.starts) or at - started <= TROUBLE:
        words &= _ABILITIES
    return Moment(server, started, at - started, image, len(begun) - 1, frozenset(words))
