"""A model for sweeps of a real torch target."""

import torch


def layers():
    """Return layers that take some milliseconds for a batch of one, and less time per sample for larger batches."""
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
