"""The store in PostgreSQL, which exporters of a fleet share; docs/adr/0022-a-fleets-store.md says how, and why so."""

from __future__ import annotations

from infercanary.store.base import StoreError
from infercanary.store.kinds import register
from infercanary.store.postgres.location import Location
from infercanary.store.postgres.store import PostgresStore

__all__ = ["Location", "PostgresStore"]


def _open(location: str | None) -> PostgresStore:
    if location is None:
        raise StoreError("postgresql:// needs a database: postgresql://ROLE@HOST/DATABASE")
    return PostgresStore(Location.of(location))


register("postgresql", _open, Location.of)
