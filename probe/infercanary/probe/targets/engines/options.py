"""Types and checks of options that several targets share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from infercanary.command.paths import unreadable
from infercanary.command.settings import UsageError

Seed: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]


def check_file(key: str, path: str | Path) -> None:
    """Raise an error for a path that is not a readable file."""
    if why := unreadable(path):
        raise UsageError(f"{key}: {why}; check the path (relative to {Path.cwd()})")


def check_device(device: object, kinds: str = "cpu, cuda, cuda:N") -> int:
    """Return CUDA's number of the device, 0 if the text has no number. Raise an error for a text that names no
    device.
    """
    named = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", device, re.ASCII) if isinstance(device, str) else None
    if named is None or named[0][:4] not in kinds:
        raise UsageError(f"device: `{device}` is none of {kinds}")
    return int(named[1] or 0)
