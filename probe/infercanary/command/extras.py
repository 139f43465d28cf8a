"""Installation advice for parts of the package that need additional modules (extras)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infercanary.command.settings import UsageError


@contextmanager
def needed_by(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import in the block into one line for the user.

    Args:
        what: Part that needs the modules, in the user's words.
        extra: Extra that installs the modules (:func:`advice`).

    Raises:
        UsageError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"{what} needs the module `{error.name}`; {advice(extra)}") from None


def advice(extra: str) -> str:
    """Return advice on the installation of an extra, such as ``in a checkout: pip install '.[exporter]'``.

    A checkout is needed, because there is no release on PyPI yet.
    """
    return f"in a checkout: pip install '.[{extra}]'"
