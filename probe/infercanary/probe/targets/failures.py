"""Why a run fails, or a target cannot be opened: what a target raises so that the probe can count and report it."""

from __future__ import annotations

from typing import Literal, TypeGuard, get_args

from infercanary.command.settings import UsageError
from infercanary.contract.text import printable

Reason = Literal[
    "raised",
    "timed_out",
    "not_finite",
    "wrong_answer",
    "out_of_memory",
    "no_libraries",
    "version_mismatch",
    "wrong_shape",
    "unreachable",
    "not_ready",
    "error_answer",
    "incomplete",
    "malformed",
    "too_large",
    "rate_limited",
]
"""Why a run failed. The first seven can happen with any target; the others are raised by the target itself."""

REASONS: tuple[Reason, ...] = get_args(Reason)


def is_reason(text: str) -> TypeGuard[Reason]:
    """Whether it is one of :data:`REASONS`.

    Args:
        text: Any.
    """
    return text in REASONS


class Failure(Exception):
    """A run that failed for a known reason: ``raise Failure("not_ready", "…")`` from any method of a target."""

    def __init__(self, reason: Reason, text: str, retry_after: float | None = None) -> None:
        """Keep the reason, and the text as one printable line.

        Args:
            reason: One of :data:`REASONS`; runs that failed are counted by it.
            text: What went wrong, for the log; cut at 400 characters.
            retry_after: Seconds for which a server asks to be left alone; None if it does not.

        Raises:
            ValueError: There is no such reason.
        """
        if reason not in REASONS:
            raise ValueError(f"`{reason}` is no reason of a failure; there are {', '.join(REASONS)}")
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(printable(text, 400, " "))


class NoCuda(UsageError):
    """The image, or the container, lacks the CUDA that the target was asked to run on; raised by ``open()``.

    The settings are right, so the probe does not end: it goes on, sets a metric, and tries again.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        """Keep the reason, one of ``failing.CUDA_MISSING_REASONS``, for :attr:`Target.cuda_missing`."""
        super().__init__(text)
        self.reason = reason


class Unsized(Exception):
    """A target cannot be run with this number of samples; the text says why. Raised by ``sized()``."""


class Unprofiled(Exception):
    """A target cannot be profiled now; the text says why. Raised by ``profiled()``."""
