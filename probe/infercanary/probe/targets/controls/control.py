"""A control: tiny work that is the same in every image."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

Seconds: TypeAlias = Callable[[], float]
"""Does the work, and returns the seconds of one execution."""

Control: TypeAlias = Callable[[], AbstractContextManager[Seconds]]
"""Takes what the work needs for as long as a ``with`` lasts, all of it in one thread."""
