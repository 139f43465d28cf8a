"""SQLite: opens the file of one exporter, and handles files that cannot be used.

The file is in WAL mode with ``synchronous = NORMAL``, so committed data survives a crash of the process. A power
failure may lose the data that the kernel had not written yet (half a minute with Linux's defaults), but does not
corrupt the file. Probes that were still running report the lost runs again from their buffers.
"""

from __future__ import annotations

import glob
import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool

from infercanary.contract.text import printable
from infercanary.store import migrate, queries, schema
from infercanary.store.base import Database, StoreAway, StoreError
from infercanary.store.retention import DAY_SECONDS, IN_MEMORY, Retention

log = structlog.get_logger(__name__)

_LOCK_SECONDS = 2.0  # longest wait for the file while another exporter ends
_MAX_CHECKED_BYTES = 256 << 20  # the check takes about a second; a larger file is not checked
_MAX_SET_ASIDE = 3
_CACHE_KIB = 16 << 10
_WAL_PAGES = 4_000  # 16 MB: a large log saves repeated copies of often written pages into the file
_APPLICATION_ID = 0x1CA9A12  # in the header of each store, to recognize databases of other programs
_CORRUPT = ".corrupt-%Y%m%dT%H%M%S.%f%z"
_CORRUPT_FILES = ".corrupt-????????T??????.??????+0000"
_NOT_WRITABLE = (
    f"cannot be written; create its folder, or make both writable for this user (uid {os.getuid()})"
)
_ADVICE: Mapping[str, str] = {
    "locked": "in use by another process; use a separate file for each exporter",
    "unable to open": _NOT_WRITABLE,
    "readonly": _NOT_WRITABLE,
    "full": "the disk is full; stored data is not lost, and storing continues as soon as there is space",
}
_KINDS = {str: "text", bytes: "blob", float: "real", int: "integer"}


class SqliteDatabase(Database):
    """SQLite database in a file or in memory.

    Args:
        path: Path of the file; None for memory.

    Raises:
        StoreError: The path is a folder or a device.
    """

    advice = _ADVICE

    def __init__(self, path: Path | None) -> None:
        if path and path.exists() and not path.is_file():
            raise StoreError(f"{path}: is a folder or a device; use a file")
        self.shown = str(path or "the store in memory")
        self.retention = Retention() if path else IN_MEMORY
        self._path = path
        self.engine = create_engine(
            URL.create("sqlite", database=str(path or ":memory:")),
            # psycopg's style: Session.fast passes parameters to the driver unchanged
            paramstyle="named",
            # Only explicit statements begin and end transactions.
            connect_args={"timeout": _LOCK_SECONDS, "isolation_level": None, "check_same_thread": False},
            poolclass=NullPool,
        )
        self._inodes: list[int] = []

    def connect(self) -> Connection:
        """Open the file. An exporter first renames a corrupt file, or a file of version 0.1.0."""
        try:
            connection = super().connect()
        except DatabaseError as error:
            if not _is_corrupt(error.orig) or self.is_guest:
                raise
            self._set_aside(error.orig)
            connection = super().connect()
        for file in self._corrupt_files()[-1:]:
            self.set_aside_at = os.stat(file).st_ctime  # time of the rename
        self._inodes = self._find_inodes()
        return connection

    def begin(self, connection: Connection) -> None:
        """Begin a transaction.

        Raises:
            StoreAway: The file or its log was removed, and written data would be lost.
        """
        if self._find_inodes() != self._inodes:
            connection.invalidate()
            raise StoreAway(f"{self.shown}: the file was removed while in use; a new file is created")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Explain an error. A corrupt file is renamed, and the next call creates a new file."""
        cause = getattr(error, "orig", None) or error
        if _is_corrupt(cause) and not self.is_guest:
            if connection is not None:
                connection.invalidate()
                with suppress(OSError):
                    self._set_aside(cause)
            return StoreAway(
                f"{self.shown}: the file is corrupt ({cause}); it is set aside, and a new file is created"
            )
        kind = StoreAway if isinstance(cause, sqlite3.OperationalError) else StoreError
        is_writable = self._path is None or os.access(self._path.parent, os.W_OK)
        return kind(self.explained(str(cause), "" if is_writable else "readonly"))

    def size(self, connection: Connection) -> int:
        """Return the size of the database in bytes, without the write-ahead log."""
        pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        return int(connection.exec_driver_sql(pages).scalar_one())

    def age(self, connection: Connection, now: float | None = None) -> float:
        """Return the total seconds that exporters have run, up to the Unix time ``now`` if given."""
        if now is not None:
            connection.execute(queries.ADVANCE_CLOCK, {"now": now, "day": DAY_SECONDS})
        return connection.scalar(queries.AGE) or 0.0

    def _find_inodes(self) -> list[int]:
        """Return the inodes of the file and of its log; empty if either is missing."""
        try:
            return [os.stat(f"{self._path}{end}").st_ino for end in ("", "-wal") if self._path]
        except FileNotFoundError:
            return []

    def prepare(self, connection: Connection) -> None:
        """Keep other exporters away, and bring the tables to the current schema."""
        driver: Any = connection.connection.driver_connection
        # One name with a disk error must not make other rows unreadable.
        driver.text_factory = lambda text: text.decode(errors="replace")
        version = self._check(connection)
        if self._path and not self.is_guest:
            self._guard(connection)
        for pragma in (
            "main.journal_mode = WAL",
            "synchronous = NORMAL",
            "temp_store = MEMORY",
            f"cache_size = -{_CACHE_KIB}",
            f"wal_autocheckpoint = {_WAL_PAGES}",
            f"journal_size_limit = {_WAL_PAGES * 4096}",
        ):
            connection.exec_driver_sql(f"PRAGMA {pragma}")
        if version != schema.SCHEMA:
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            connection.exec_driver_sql(f"PRAGMA application_id = {_APPLICATION_ID}")
            # read again, because a guest may have upgraded the tables meanwhile
            migrate.update(connection, migrate.read_version(connection, self.shown))
            connection.commit()
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        if not self.is_guest:
            _drop_unreadable(connection)

    def _guard(self, connection: Connection) -> None:
        """Lock a second file for the life of the connection. The store's own file stays open for guests.

        Raises:
            DatabaseError: Another exporter has the lock.
        """
        connection.exec_driver_sql("ATTACH ? AS guard", (f"{self._path}-lock",))
        for statement in (
            "PRAGMA guard.locking_mode = EXCLUSIVE",
            "PRAGMA guard.journal_mode = MEMORY",
            "BEGIN EXCLUSIVE",
            "COMMIT",
        ):
            connection.exec_driver_sql(statement)

    def _check(self, connection: Connection) -> str | None:
        """Return the revision of the tables; None for an empty file."""
        application = connection.exec_driver_sql("PRAGMA application_id").scalar()
        names = connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars().all()
        # Reject views (whose queries may never end), triggers, and generated columns (which may have any size).
        odd = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master m WHERE type NOT IN ('table', 'index') OR sql LIKE '%VIRTUAL%' "
            "OR EXISTS (SELECT 1 FROM pragma_table_xinfo(m.name) WHERE hidden > 1)"
        ).scalar()
        if odd is not None:
            raise StoreError(
                f"{self.shown}: contains `{printable(odd, 80)}`, which no exporter creates; use another file"
            )
        if names and application != _APPLICATION_ID:
            raise StoreError(f"{self.shown}: the database of another program; use another file")
        fault = "ok"
        if self._path and self._path.stat().st_size <= _MAX_CHECKED_BYTES:
            fault = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if fault == "ok" and names and schema.schema.name not in names:
            fault = "tables of 0.1.0"
        if fault != "ok":
            raise DatabaseError("", None, sqlite3.DatabaseError(fault))
        return migrate.read_version(connection, self.shown)

    def _set_aside(self, error: object) -> None:
        """Rename the file and its log to make place for a new file. The last three corrupt files are kept."""
        renamed = f"{self._path}{datetime.now(timezone.utc).strftime(_CORRUPT)}"
        # The file itself comes last. After an interruption, the next start finds the file and continues renaming.
        for suffix in ("-wal", "-shm", "-journal", ""):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{renamed}{suffix}")
            for file in self._corrupt_files()[:-_MAX_SET_ASIDE]:
                Path(f"{file}{suffix}").unlink(missing_ok=True)
        log.warning("corrupt store set aside, new file created", path=renamed, error=str(error))

    def _corrupt_files(self) -> list[str]:
        """Return the renamed corrupt files in the store's folder, oldest first."""
        return sorted(glob.glob(f"{glob.escape(self.shown)}{_CORRUPT_FILES}")) if self._path else []


def _drop_unreadable(connection: Connection) -> None:
    """Drop rows with a value of a wrong type, because SQLite does not enforce the types of columns.

    For example, one flipped bit in a row's header turns a text into a blob, which readers do not expect. The large
    table of encoded runs is left out, because decoding checks each run.
    """
    for table in (schema.start, schema.series, schema.document):
        kinds = {column.name: _KINDS[column.type.python_type] for column in table.columns}
        odd = " OR ".join(f"typeof(\"{name}\") <> '{kind}'" for name, kind in kinds.items())
        connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {odd}")  # noqa: S608 - constants
    connection.execute(queries.RESET_CLOCK)


def _is_corrupt(error: object) -> bool:
    """Return True if the error means a corrupt file. All other errors are subclasses of ``DatabaseError``."""
    return type(error) is sqlite3.DatabaseError
