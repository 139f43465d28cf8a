"""What to install for a part that needs more than the bare package has."""

from __future__ import annotations


def advice(extra: str) -> str:
    """Say how to install an extra. There is no release on PyPI yet, so it names what works in a checkout.

    Args:
        extra: Its name in pyproject.toml.

    Returns:
        Such as ``in a checkout: pip install '.[exporter]'``.
    """
    return f"in a checkout: pip install '.[{extra}]'"
