"""A model that holds a number of bytes, or allocates them during computing; the environment gives the number."""

import os

import torch


class Holding(torch.nn.Module):  # type: ignore[misc]
    """A few layers, and memory that was written to, like the memory of weights."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        self.held = torch.ones(int(os.environ.get("HELD", "0")), dtype=torch.uint8)
        self.takes = int(os.environ.get("TAKES", "0"))

    def forward(self, x):
        taken = torch.ones(self.takes, dtype=torch.uint8)
        return self.layers(x) + 0.0 * taken[:1].sum()


def model():
    return Holding()
