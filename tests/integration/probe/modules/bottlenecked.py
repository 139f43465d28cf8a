"""Canaries that each use one resource: memory bandwidth, a file, or a CPU."""

import os
from pathlib import Path

import numpy as np

from infercanary.probe import HostClock, Target


class Work(Target):
    def open(self): ...

    def run(self, phase):
        with phase("compute"):
            self.work()

    def work(self): ...

    def values(self, result):
        return [1.0]


class Copy(Work):
    """Copies 8 MB, which is more than the private caches of a core contain."""

    def open(self):
        self._source, self._copy = np.ones(1 << 20), np.ones(1 << 20)

    def work(self):
        np.copyto(self._copy, self._source)


class _Forgetful(HostClock):
    """Drops a file from the page cache before each repeat; this time is not measured."""

    def __init__(self, path):
        self._path = path

    def measure(self, run):
        with self._path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return super().measure(run)


class Read(Work):
    """Reads a file; if ``forgotten``, each time from the disk."""

    def __init__(self, path, forgotten=False):
        self._path = Path(path)
        if forgotten:
            self.clock = _Forgetful(self._path)

    def work(self):
        self._path.read_bytes()


class Spin(Work):
    """Computes for several time slices of the scheduler: shorter work often ends before it loses its CPU."""

    def work(self):
        sum(range(700_000))


def convolutions():
    import torch

    return torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(3)))
