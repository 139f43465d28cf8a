"""Models that fail with larger batches, for sweeps of a real torch target."""

import time

import torch


def layers():
    """Return layers that take some milliseconds for a batch of one, and less for each sample of larger batches."""
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))


class Fussy(torch.nn.Module):  # type: ignore[misc]
    """Calls ``act`` at each batch of 4."""

    def __init__(self, act):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.act = act

    def forward(self, x):
        if x.shape[0] == 4:
            self.act()
        return self.linear(x)


def raises():
    def act():
        raise ValueError("no such size")

    return Fussy(act)


def hangs():
    return Fussy(lambda: time.sleep(120))
