"""What to install for a part that needs more than the bare package has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infercanary.command.settings import UsageError


@contextmanager
def needed_by(what: str, extra: str) -> Iterator[None]:
    """Around imports: what is not installed is one line.

    Args:
        what: Needs them, as the user calls it.
        extra: What brings them, as of :func:`advice`.

    Yields:
        Nothing.

    Raises:
        UsageError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"{what} needs the module `{error.name}`; {advice(extra)}") from None


def advice(extra: str) -> str:
    """Say how to install an extra. There is no release on PyPI yet, so it names what works in a checkout.

    Args:
        extra: Its name in pyproject.toml.

    Returns:
        Such as ``in a checkout: pip install '.[exporter]'``.
    """
    return f"in a checkout: pip install '.[{extra}]'"
