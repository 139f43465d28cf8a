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
    return digest(*service)


def digest(*names: str) -> UUID:
    """The identifier, within its service, of a start (container, boot id) or a series (start, canary).

    Args:
        names: Any.

    Raises:
        StoreError: One of them has a zero character, or half of a surrogate pair: PostgreSQL cannot keep it.
    """
    text = "\n".join(f"{len(name)}:{name}" for name in names)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise StoreError(f"the name {text!r} has a character that PostgreSQL cannot keep")
    return UUID(bytes=hashlib.sha256(data).digest()[:16])
