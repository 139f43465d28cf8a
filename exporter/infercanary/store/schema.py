"""The tables of the store, once for SQLite and PostgreSQL."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA = "0001"
"""The newest of the Alembic revisions beside this file: what the tables below are."""


class Bytes(LargeBinary):
    """Bytes as the driver gives them: a failing disk may have made them anything, which SQLAlchemy would convert."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> None:  # noqa: ARG002 - both drivers take bytes
        """Nothing to convert."""

    def result_processor(self, dialect: Dialect, coltype: object) -> None:  # noqa: ARG002 - both drivers give bytes
        """Nothing to convert."""


_ID = BigInteger().with_variant(
    Integer, "sqlite"
)  # SQLite numbers rows by itself only in an INTEGER PRIMARY KEY

metadata = MetaData()

# Which revision the tables are in; by Alembic's name, for it reads and writes it.
schema = Table("infercanary_schema", metadata, Column("version_num", Text, primary_key=True))

# One row, in SQLite alone: the last time that was given, and how long exporters have watched, whatever the clock showed.
clock = Table("clock", metadata, Column("now", Double), Column("age", Double, nullable=False))

# began: started_at, or later than all that is known of the container's start before. seen: an age of the store, in
# seconds; in PostgreSQL a Unix time by its clock. revision is counted up at each change.
start = Table(
    "start",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("service", Text, nullable=False),
    Column("container", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("began", Double, nullable=False),
    Column("seen", Double, nullable=False),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("host", Text, nullable=False),
    Column("image", Text, nullable=False),
    Column("image_id", Text, nullable=False),
    Column("image_digest", Text, nullable=False),
    Column("image_key", Text, nullable=False),
    Column("environment", Bytes(), nullable=False),
    Column("details", Bytes(), nullable=False),
    UniqueConstraint("namespace", "service", "container", "boot_id"),
    Index("start_host", "host"),
)

# A canary of a start. Counts of rows by tier; up to which sequence runs were merged or, if failed, dropped; last: the
# highest sequence that was taken; taken: how many runs there ever were that had not failed; thinned: how often rows
# were replaced.
series = Table(
    "series",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("start", _ID, ForeignKey("start.id", ondelete="CASCADE"), nullable=False),
    Column("canary", Text, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False, server_default="0"),
    *(
        Column(name, BigInteger, nullable=False, server_default="-1")
        for name in ("last", "merged_through", "failed_through")
    ),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for name in ("opening", "raw", "failed", "first", "hours", "taken", "thinned")
    ),
    UniqueConstraint("start", "canary"),
)

# One tree in SQLite: the rows of a series lie side by side, and what is read together is stored together.
sample = Table(
    "sample",
    metadata,
    Column("series", _ID, ForeignKey("series.id", ondelete="CASCADE"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("tier", SmallInteger, nullable=False),
    Column("body", Bytes(), nullable=False),
    sqlite_with_rowid=False,
)

document = Table(
    "document",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    Column("canary", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("at", Double, nullable=False),
    Column("body", Bytes(), nullable=False),
    sqlite_with_rowid=False,
)

# The next two are for exporters that share a database. taught: what a canary's restarts teach about others.
finding = Table(
    "finding",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    Column("canary", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", Bytes(), nullable=False),
    Column("taught", Bytes(), nullable=False),
    sqlite_with_rowid=False,
)

# fence is counted up at each change of holder; expires is a Unix time by the database's clock.
lease = Table(
    "lease",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires", Double, nullable=False),
    sqlite_with_rowid=False,
)
