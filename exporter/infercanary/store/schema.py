"""Tables of the store, the same for SQLite and PostgreSQL."""

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

SCHEMA = "0002"
"""Alembic revision of these tables: the newest in the folder ``migrations``."""


_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only with an INTEGER PRIMARY KEY

metadata = MetaData()


def _columns(kind: type[TypeEngine[Any]], *names: str, **more: Any) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False, **more) for name in names]


def _id_of(table: str, **more: Any) -> Column[int]:
    return Column(table, _ID, ForeignKey(f"{table}.id", ondelete="CASCADE"), nullable=False, **more)


# Revision of the tables. The column has the name that Alembic uses.
schema = Table("infercanary_schema", metadata, Column("version_num", Text, primary_key=True))

# One row, used only in SQLite. now: last Unix time given by an exporter. age: total seconds that exporters had run by
# then.
clock = Table("clock", metadata, Column("now", Double), Column("age", Double, nullable=False))

# began: Unix time of the start, but always later than the container's previous start and its runs. seen: age of the
# store in seconds, in PostgreSQL the Unix time of the server. revision: increases at each change.
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

# One row for each canary of a start. A column for each tier (:mod:`.retention`) has the number of rows in this tier.
# last: highest stored sequence number. through: highest sequence number that was merged or dropped. taken: number of
# successful runs ever stored. thinned: number of merges.
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

# Without a rowid, SQLite stores the rows of a series side by side, and reads them quickly.
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

# The next two tables are for exporters that share a database. taught: restart variance of the canary, from which the
# prior for all services is learned.
finding = Table(
    "finding",
    metadata,
    *_columns(Text, "namespace", "service", "canary", primary_key=True),
    *_columns(BigInteger, "number"),
    *_columns(Double, "at"),
    *_columns(LargeBinary, "body", "taught"),
)

# fence: fencing token; increases each time an expired lease is taken, even by the same holder. expires: end of the
# lease, in Unix seconds by the database's clock.
lease = Table(
    "lease",
    metadata,
    *_columns(Text, "namespace", "service", primary_key=True),
    *_columns(Text, "holder"),
    *_columns(BigInteger, "fence"),
    *_columns(Double, "expires"),
)

# One row for each side of a recorded comparison, and for each canary of a recorded journal (:mod:`.benchmarks`). No
# verdict, lease or limit depends on it. A digest is empty if it is unknown.
benchmark = Table(
    "benchmark",
    metadata,
    Column("id", Text, primary_key=True),
    *_columns(Text, "canary", "config_digest", "manifest_digest", "index_digest"),
    *_columns(Double, "at"),
    *_columns(LargeBinary, "body"),
    Index("benchmark_canary", "canary"),
)
