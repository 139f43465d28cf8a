"""ResNet-18 in plain torch (He et al., "Deep Residual Learning for Image Recognition", 2015), with seeded weights."""

from __future__ import annotations

import os
from itertools import pairwise

import torch
from torch import Tensor, nn

_SIZE = int(os.environ.get("IMAGE_SIZE", "224"))
SHAPE = (1, 3, _SIZE, _SIZE)


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut; if the shape changes, the shortcut is a 1×1 convolution."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, channels, H/stride, W/stride)."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Maps images (N, 3, H, W) to logits (N, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(narrow, wide, 1 if i == 0 else 2), Block(wide, wide, 1))
                for i, (narrow, wide) in enumerate(pairwise(widths))
            )
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(x)).mean(dim=(2, 3))
        logits: Tensor = self.head(features)
        return logits


def build() -> nn.Module:
    """Return the model in eval mode, with the same weights in every process and on every machine."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(18)
        return ResNet18().eval()
