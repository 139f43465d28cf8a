"""A control: small work that is the same in every image."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

Seconds: TypeAlias = Callable[[], float]
"""Function that does the control's work and returns the seconds of one execution."""

Control: TypeAlias = Callable[[], AbstractContextManager[Seconds]]
"""Function that makes a context manager with the control's resources. One thread enters, uses and leaves it."""
