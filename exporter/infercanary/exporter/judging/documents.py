"""Documents of the judge in the store."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import structlog

from infercanary.judge.model import ServiceKey
from infercanary.store.store import Store

log = structlog.get_logger(__name__)

T = TypeVar("T")


def read(store: Store, service: ServiceKey, canary: str, kind: str, of: type[T]) -> list[tuple[float, T]]:
    """Return the readable documents of a kind with their Unix times, the oldest first."""
    documents = []
    for document in store.history(service, canary, kind):
        try:
            documents.append((document.at, msgspec.json.decode(document.body, type=of)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("a stored document is unreadable", kind=kind, service=str(service), canary=canary,
                        error=str(error))  # fmt: skip
    return documents
