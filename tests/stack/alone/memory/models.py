"""Models that allocate memory in each way that a probe must survive. test_memory.py mounts this file into
containers.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import torch

MIB = 1 << 20
PIECE = 4


class Holding:
    """A ReLU with weights of this many MiB, allocated in pieces at ``rate`` MiB/s."""

    def __init__(self, mib=0, rate=float("inf")):
        self.weights = []
        begin = time.monotonic()
        for taken in range(PIECE, mib + 1, PIECE):
            self.weights.append(torch.ones(PIECE * MIB, dtype=torch.uint8))
            time.sleep(max(0.0, begin + taken / rate - time.monotonic()))

    def __call__(self, x):
        return torch.relu(x)


def relu():
    """Return a model without weights; in a server's container, wait until the server has its memory and serves."""
    while "HOLDS" in os.environ:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", 8000)).close()
            break
        time.sleep(0.05)
    return Holding()


def holding():
    """Return a model that fits beside the server until the server takes more memory."""
    return Holding(64)


def patient():
    """Return the same model from a factory that waits until the server has taken more memory."""
    model = Holding(64)
    Path("/tmp/patient").touch()
    time.sleep(60)
    return model


def growing():
    """Allocate more memory than any container has, in pieces, at half of the rate below which nothing may be killed."""
    return Holding(2048, 100)


def leaping():
    """Allocate the same memory at once, in C code that holds the interpreter's lock, so that no thread can check it."""
    bytes(b"\1" * (2048 * MIB))
    return Holding()
