"""Exceptions of targets. They give the reason of a failed run, which the probe counts and reports."""

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
"""Reason of a failed run. The first seven reasons can occur with any target; targets raise the others."""

REASONS: tuple[Reason, ...] = get_args(Reason)


def is_reason(text: str) -> TypeGuard[Reason]:
    """True if the text is one of :data:`REASONS`."""
    return text in REASONS


class Failure(Exception):
    """A run failed for a known reason. Any method of a target may ``raise Failure("not_ready", "…")``."""

    def __init__(self, reason: Reason, text: str, retry_after: float | None = None) -> None:
        """Keep the reason, and the text as one printable line.

        Args:
            reason: One of :data:`REASONS`; failed runs are counted by reason.
            text: Description of the error for the log; cut at 400 characters.
            retry_after: Seconds until the next request, if a server asks for a pause; otherwise None.

        Raises:
            ValueError: The reason is unknown.
        """
        if reason not in REASONS:
            raise ValueError(f"`{reason}` is not a reason of a failure; choose one of {', '.join(REASONS)}")
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(printable(text, 400, " "))


class NoCuda(UsageError):
    """The image or the container lacks the CUDA that the target needs. Raised by ``open()``.

    The settings are right, so the probe continues: it sets a metric and retries later.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        """Keep the reason for :attr:`Target.cuda_missing`: one of ``canary_metrics.CUDA_MISSING_REASONS``."""
        super().__init__(text)
        self.reason = reason


class Unsized(Exception):
    """The target cannot run this number of samples, for the reason in the text. Raised by ``copy_with_batch()``."""


class Unprofiled(Exception):
    """The target cannot be profiled now, for the reason in the text. Raised by ``profile()``."""
