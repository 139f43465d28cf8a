"""Models that take memory in each way that a probe must survive. Mounted into containers by test_memory.py."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

MIB = 1 << 20
PIECE = 4


class Holding:
    """The relu, with so many MiB of weights, taken in pieces at ``rate`` MiB/s."""

    def __init__(self, mib=0, rate=float("inf")):
        self.weights: list[Tensor] = []
        begin = time.monotonic()
        for taken in range(PIECE, mib + 1, PIECE):
            self.weights.append(torch.ones(PIECE * MIB, dtype=torch.uint8))
            time.sleep(max(0.0, begin + taken / rate - time.monotonic()))

    def __call__(self, x):
        """The relu."""
        return torch.relu(x)


def relu():
    """No weights; where a server is in the container, once that serves: what it holds it has by then."""
    while "HOLDS" in os.environ:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", 8000)).close()
            break
        time.sleep(0.05)
    return Holding()


def holding():
    """As much as fits beside the server, as long as that takes no more."""
    return Holding(64)


def patient():
    """The same, in a factory that then waits: for a first run that comes later than the server's growth."""
    model = Holding(64)
    Path("/tmp/patient").touch()
    time.sleep(60)
    return model


def growing():
    """More than any container here has, in pieces, at half of the rate up to which nothing may be killed."""
    return Holding(2048, 100)


def leaping():
    """The same within an instant, in C code that keeps the interpreter's lock: no thread can look meanwhile."""
    bytes(b"\1" * (2048 * MIB))
    return Holding()
