"""Models that fail with larger batches, for sweeps of a real torch target."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def layers() -> torch.nn.Module:
    """Return layers that take some milliseconds for a batch of one, and less for each sample of larger batches."""
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))


class Fussy(torch.nn.Module):  # type: ignore[misc]
    """Calls ``act`` at each batch of 4."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 4:
            self.act()
        return self.linear(x)


def raises() -> torch.nn.Module:
    def act() -> None:
        raise ValueError("no such size")

    return Fussy(act)


def hangs() -> torch.nn.Module:
    return Fussy(lambda: time.sleep(120))
