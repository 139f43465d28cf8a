"""The identifiers in PostgreSQL: digests of names, which every exporter computes alike."""

from __future__ import annotations

import hashlib
from uuid import UUID

from infercanary.judge.model import ServiceKey
from infercanary.store.base import StoreError


def service_id(service: ServiceKey) -> UUID:
    """The identifier of a service.

    Args:
        service: Its key.

    Returns:
        A digest of both names.

    Raises:
        StoreError: A name has a character that PostgreSQL cannot keep.
    """
    return _digest(*service)


def start_id(container: str, boot_id: str) -> UUID:
    """The identifier of a start, within its service.

    Args:
        container: The stable name.
        boot_id: Of the probe.

    Returns:
        A digest of both.

    Raises:
        StoreError: As :func:`service_id`.
    """
    return _digest(container, boot_id)


def series_id(start: UUID, canary: str) -> UUID:
    """The identifier of the runs of a canary in a start, within its service.

    Args:
        start: As :func:`start_id` gives it.
        canary: Its name.

    Returns:
        A digest of both.

    Raises:
        StoreError: As :func:`service_id`.
    """
    return _digest(start.hex, canary)


def storable(*texts: str) -> None:
    """Check that PostgreSQL can keep these texts.

    Args:
        texts: Any.

    Raises:
        StoreError: One of them has a zero character, or half of a surrogate pair.
    """
    _digest(*texts)


def _digest(*names: str) -> UUID:
    text = "\n".join(f"{len(name)}:{name}" for name in names)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise StoreError(f"the name {text!r} has a character that PostgreSQL cannot keep")
    return UUID(bytes=hashlib.sha256(data).digest()[:16])
