"""Advice on installing extras: the additional modules that some parts of the package need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infercanary.command.settings import UsageError


@contextmanager
def needed_by(what: str, extra: str) -> Iterator[None]:
    """Report a failed import in the block as one line for the user.

    Args:
        what: Part of the package that needs the modules, in the user's words.
        extra: Extra that installs the modules (:func:`advice`).

    Raises:
        UsageError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"{what} needs the module `{error.name}`; {advice(extra)}") from None


def advice(extra: str) -> str:
    """Return advice on installing an extra: ``in a checkout: pip install '.[exporter]'``.

    The advice needs a checkout, because PyPI has no release yet.
    """
    return f"in a checkout: pip install '.[{extra}]'"
