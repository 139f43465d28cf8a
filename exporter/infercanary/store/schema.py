"""The tables of the store, once for SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

from infercanary.store.retention import TIERS

SCHEMA = "0001"
"""Newest Alembic revision beside this file: the tables below."""


_ID = BigInteger().with_variant(
    Integer, "sqlite"
)  # SQLite numbers rows by itself only in an INTEGER PRIMARY KEY

metadata = MetaData()


def _columns(kind: type[TypeEngine[Any]], *names: str, **more: Any) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False, **more) for name in names]


def _id_of(table: str, **more: Any) -> Column[int]:
    return Column(table, _ID, ForeignKey(f"{table}.id", ondelete="CASCADE"), nullable=False, **more)


# Revision of the tables, under the name that Alembic reads and writes.
schema = Table("infercanary_schema", metadata, Column("version_num", Text, primary_key=True))

# One row, for SQLite alone: the last given time, and how long exporters had watched by then.
clock = Table("clock", metadata, Column("now", Double), Column("age", Double, nullable=False))

# began: when it started, or later than all that is known of the container's start before. seen: an age of the store, in
# seconds; in PostgreSQL a Unix time by its clock. revision is counted up at each change.
start = Table(
    "start",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    *_columns(Text, "namespace", "service", "container", "boot_id"),
    *_columns(Double, "began", "seen"),
    *_columns(BigInteger, "revision", server_default="0"),
    *_columns(Text, "host", "image_id", "image_digest", "image_key"),
    *_columns(LargeBinary, "body"),
    UniqueConstraint("namespace", "service", "container", "boot_id"),
    Index("start_host", "host"),
)

# One row for each canary of a start. Number of rows in each tier (:mod:`.retention`). last: highest stored sequence.
# through: highest merged or dropped sequence. taken: number of runs ever stored, without failed ones. thinned: number
# of merges.
series = Table(
    "series",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    _id_of("start"),
    *_columns(Text, "canary"),
    *_columns(Double, "last_at", server_default="0"),
    *_columns(BigInteger, "last", "through", server_default="-1"),
    *_columns(BigInteger, *TIERS, "taken", "thinned", server_default="0"),
    UniqueConstraint("start", "canary"),
)

# One tree in SQLite: the rows of a series lie side by side, and what is read together is stored together.
sample = Table(
    "sample",
    metadata,
    _id_of("series", primary_key=True),
    *_columns(BigInteger, "sequence", primary_key=True, autoincrement=False),
    *_columns(SmallInteger, "tier"),
    *_columns(LargeBinary, "body"),
    sqlite_with_rowid=False,
)

document = Table(
    "document",
    metadata,
    *_columns(Text, "namespace", "service", "canary", "kind", primary_key=True),
    *_columns(BigInteger, "number", primary_key=True, autoincrement=False),
    *_columns(Double, "at"),
    *_columns(LargeBinary, "body"),
    sqlite_with_rowid=False,
)

# The next two tables are for exporters that share a database. taught: restart variance that a canary teaches others.
finding = Table(
    "finding",
    metadata,
    *_columns(Text, "namespace", "service", "canary", primary_key=True),
    *_columns(BigInteger, "number"),
    *_columns(Double, "at"),
    *_columns(LargeBinary, "body", "taught"),
)

# fence grows at each change of holder; expires is a Unix time by the database's clock.
lease = Table(
    "lease",
    metadata,
    *_columns(Text, "namespace", "service", primary_key=True),
    *_columns(Text, "holder"),
    *_columns(BigInteger, "fence"),
    *_columns(Double, "expires"),
)
