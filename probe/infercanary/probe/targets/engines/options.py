"""Checks of options that several targets share."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from infercanary.command.paths import unreadable
from infercanary.command.settings import UsageError

LARGEST_SEED = 2**62 - 1


def check_whole(key: str, value: object, largest: int = LARGEST_SEED, least: int = 0) -> None:
    """Refuse a value that is not a whole number from ``least`` to ``largest``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        limit = "on" if largest == LARGEST_SEED else f"to {largest}"
        raise UsageError(f"{key}: `{value}` is not a whole number from {least} {limit}")


def check_choice(key: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in list(choices):
        raise UsageError(f"{key}: `{value}` is none of {', '.join(choices)}")


def check_file(key: str, path: str | Path) -> None:
    """Refuse a path that is not a readable file."""
    if why := unreadable(path):
        raise UsageError(f"{key}: {why}; check the path (relative to {Path.cwd()})")


def check_device(device: object, kinds: str = "cpu, cuda, cuda:N") -> int:
    """Refuse a text that names no device; return CUDA's number of the device, 0 if the text has no number."""
    pattern = r"(?:cuda(?::(\d{1,3}))?)" + ("|cpu" if "cpu" in kinds else "")
    named = re.fullmatch(pattern, device, re.ASCII) if isinstance(device, str) else None
    if named is None:
        raise UsageError(f"device: `{device}` is none of {kinds}")
    return int(named[1] or 0)
