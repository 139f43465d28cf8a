"""The kinds of stores.

A kind is one file or folder beside this file: a class with the methods of :class:`~infercanary.store.base.Store`, and
one call of :func:`register`. ``sqlite`` is the default; ``postgresql`` is for exporters that share one.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from infercanary.store.base import Store, StoreError

DEFAULT_SCHEME = "sqlite"
_KEY_AND_VALUE = re.compile(
    r"\s*(dbname|host|hostaddr|passfile|password|port|service|user)\s*="
)  # libpq's other form
_WITHOUT_SLASHES = re.compile(r"(postgres|postgresql|sqlite|mysql|mariadb):(?!//)", re.IGNORECASE)

OpenStore: TypeAlias = Callable[["str | None"], Store]
"""From a location, or None for memory; it may raise :class:`StoreError`."""


class Kind(NamedTuple):
    """A kind of store."""

    open: OpenStore
    check: Callable[[str], object]
    """Raises :class:`StoreError` for a location that cannot be right; nothing is opened."""


_registered: dict[str, Kind] = {}


def register(scheme: str, opener: OpenStore, check: Callable[[str], object] = str) -> None:
    """Add a kind of store, for locations that begin with ``scheme://``.

    Args:
        scheme: Without ``://``.
        opener: Opens a location of this scheme, or a store in memory for None.
        check: Raises :class:`StoreError` for a location that cannot be right.

    Raises:
        ValueError: Another kind has the same scheme.
    """
    if scheme in _registered:
        raise ValueError(f"two stores have the scheme {scheme!r}")
    _registered[scheme] = Kind(opener, check)


def registered() -> dict[str, Kind]:
    """Scheme → the kind, of every one that a file or folder beside this one registers.

    Returns:
        Scheme → kind, in order of the schemes.
    """
    package = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_registered.items()))


def scheme_of(location: str | os.PathLike[str] | None) -> str:
    """Which kind of store ``location`` names: without ``scheme://`` it is a file's path, of the default kind.

    Args:
        location: A URL or a path; None or empty for memory.
    """
    scheme, separator, _ = str(location or "").partition("://")
    return scheme if separator else DEFAULT_SCHEME


def check(location: str | os.PathLike[str] | None) -> Kind:
    """The kind of the store at ``location``, which is not opened.

    Args:
        location: A URL of a registered scheme or a file's path; None for memory.

    Returns:
        The kind, which can open it.

    Raises:
        StoreError: There is no such kind, or the location cannot be right.
    """
    scheme = scheme_of(location)
    kinds = registered()
    if scheme not in kinds:
        raise StoreError(f"{location}: no store for {scheme}://; those that there are: {', '.join(kinds)}")
    if scheme == DEFAULT_SCHEME and _KEY_AND_VALUE.match(str(location)):
        raise StoreError(f"{location}: not a file; name a database by postgresql://ROLE@HOST/DATABASE")
    if without_slashes := _WITHOUT_SLASHES.match(str(location or "")):
        raise StoreError(f"{without_slashes[1]}:…: not a file; a URL begins with postgresql:// or sqlite://")
    if location is not None:
        kinds[scheme].check(str(location))
    return kinds[scheme]


def open_store(location: str | os.PathLike[str] | None) -> Store:
    """The store at ``location``.

    Args:
        location: A URL of a registered scheme or a file's path; None keeps everything in memory.

    Returns:
        The store; the caller closes it.

    Raises:
        StoreError: There is no such kind, or it cannot be opened.
    """
    return check(location).open(None if location is None else str(location))
