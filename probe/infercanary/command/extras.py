"""Advice for parts that need more than the bare package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infercanary.command.settings import UsageError


@contextmanager
def needed_by(what: str, extra: str) -> Iterator[None]:
    """Turn a missing module during imports into one line.

    Args:
        what: Part that needs the modules, in the user's words.
        extra: Extra that has them (:func:`advice`).

    Raises:
        UsageError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"{what} needs the module `{error.name}`; {advice(extra)}") from None


def advice(extra: str) -> str:
    """Return how to install an extra, such as ``in a checkout: pip install '.[exporter]'``. There is no release on
    PyPI yet.
    """
    return f"in a checkout: pip install '.[{extra}]'"
