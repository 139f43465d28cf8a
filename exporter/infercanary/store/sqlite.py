"""SQLite: one file for one exporter, how it is opened, and what is done where it cannot be used.

The file is in WAL mode with ``synchronous = NORMAL``: what is committed outlives the process, however that ends. A
loss of power may cost what the kernel had not written yet (half a minute, by Linux's defaults), but not the file, which
then holds all transactions up to one; the rest is still in the rings of probes that went on.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import URL, Connection, create_engine, select
from sqlalchemy.exc import DatabaseError, DBAPIError
from sqlalchemy.pool import NullPool

from infercanary.contract.text import printable
from infercanary.store import migrate, queries, schema
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.retention import DAY_SECONDS, IN_MEMORY, Retention
from infercanary.store.session import Session, discard

log = structlog.get_logger(__name__)

_LOCK_SECONDS = 2.0  # an exporter that is just ending lets go of the file within it
_MAX_CHECKED_BYTES = 256 << 20  # are checked as a whole when opened; reading them takes about a second
_MAX_SET_ASIDE = 3
_CACHE_KIB = 16 << 10
_WAL_PAGES = 4_000  # 16 MB: a page that was written often meanwhile goes into the file once
_APPLICATION_ID = 0x1CA9A12  # in the file's header: no other program's database is taken for ours
_BESIDE = ("-wal", "-shm", "-journal", "")
_CORRUPT = ".corrupt-%Y%m%dT%H%M%S.%f%z"
_KINDS = {str: "text", bytes: "blob", float: "real", int: "integer"}
_OF_0_1_0 = "0.1.0"
_MOST = 1e15  # seconds that a store can have been watched


class SqliteDatabase:
    """A file, or a database in memory: :class:`.base.Database`.

    Args:
        path: The file; None for memory.

    Raises:
        StoreError: It is a folder, or a device.
    """

    def __init__(self, path: Path | None) -> None:
        if path and os.path.exists(path) and not os.path.isfile(path):
            raise StoreError(f"{path}: is no regular file; name a file")
        self.shown = str(path or "the store in memory")
        self.set_aside_at: float | None = None
        self.retention = Retention() if path else IN_MEMORY
        self._path = path
        self._engine = create_engine(
            URL.create("sqlite", database=str(path or ":memory:")),
            paramstyle="named",  # as psycopg's: what Session.fast is given goes to the driver as it is
            # Transactions begin and end where it is written that they do.
            connect_args={"timeout": _LOCK_SECONDS, "isolation_level": None, "check_same_thread": False},
            poolclass=NullPool,
        )
        self._files = [f"{path}{suffix}" for suffix in ("", "-wal")] if path else []
        self._inodes: list[int] = []

    def connect(self) -> Connection:
        """Open the file for this process alone; a corrupt one is set aside, and one of 0.1.0 renamed."""
        try:
            connection = self._connect()
        except DatabaseError as error:
            if not _is_corrupt(error.orig):
                raise
            self._set_aside(error.orig)
            connection = self._connect()
        self.set_aside_at = max((at for at, _ in self._aside()), default=None)
        self._inodes = []
        self._is_gone()
        return connection

    def begin(self, connection: Connection) -> None:
        """Begin a transaction, unless the file or its log was removed: what is written to it then is lost."""
        if self._is_gone():
            discard(connection)
            raise StoreAway(f"{self.shown}: was removed while in use; it is begun anew")
        connection.connection.cursor().execute("BEGIN IMMEDIATE")

    def in_transaction(self, driver: Any) -> bool:
        """Return whether the transaction is still open: SQLite ends it by itself, as where the disk is full."""
        return bool(driver.in_transaction)

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Return what went wrong; a corrupt file is set aside, for the next work to begin anew."""
        cause = (error.orig if isinstance(error, DBAPIError) else None) or error
        text = f"{self.shown}: {self._explain(cause)}"
        is_corrupt = _is_corrupt(cause)
        if connection is not None and is_corrupt:
            discard(connection)
            with suppress(OSError):
                self._set_aside(cause)
        return (StoreAway if is_corrupt or isinstance(cause, sqlite3.OperationalError) else StoreError)(text)

    def size(self, connection: Connection) -> int:
        """Return the bytes of the database, without what still is in its log."""
        pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        [(size,)] = connection.connection.cursor().execute(pages)
        return int(size)

    def age(self, connection: Connection, now: float | None) -> float:
        """Return how long exporters have watched, in seconds, and count on to the Unix time ``now``."""
        if now is not None:
            connection.execute(queries.ADVANCE_CLOCK, {"now": now, "day": DAY_SECONDS})
        return connection.scalar(queries.AGE) or 0.0

    def fleet(self, session: Session, holder: str | None) -> None:
        """Return nothing: the file has one owner."""

    def _is_gone(self) -> bool:
        inodes = [os.stat(file).st_ino if os.path.exists(file) else 0 for file in self._files]
        was_there, self._inodes = self._inodes, inodes  # the log is there from the first write on
        return any(inode not in (0, now) for inode, now in zip(was_there, inodes, strict=False))

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            driver: Any = connection.connection.driver_connection
            # One flipped byte in a name must not cost the rows beside it.
            driver.text_factory = lambda text: text.decode(errors="replace")
            # From the first read on: so no shared memory is needed beside the file.
            connection.exec_driver_sql("PRAGMA locking_mode = EXCLUSIVE")
            version = self._check(connection)
            if version == _OF_0_1_0:
                discard(connection)
                log.warning("store of 0.1.0 renamed; a new one is begun", path=self._rename(".0.1.0"))
                return self._connect()
            for pragma in (
                "journal_mode = WAL",
                "synchronous = NORMAL",
                "temp_store = MEMORY",
                f"cache_size = -{_CACHE_KIB}",
                f"wal_autocheckpoint = {_WAL_PAGES}",
                f"journal_size_limit = {_WAL_PAGES * 4096}",
            ):
                connection.exec_driver_sql(f"PRAGMA {pragma}")
            if version is None or migrate.is_older(version, self.shown):
                connection.exec_driver_sql("BEGIN EXCLUSIVE")
                connection.exec_driver_sql(f"PRAGMA application_id = {_APPLICATION_ID}")
                (migrate.make if version is None else migrate.upgrade)(connection)
                connection.exec_driver_sql("COMMIT")
            _retype(connection)
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        except BaseException:
            discard(connection)
            raise
        return connection

    def _check(self, connection: Connection) -> str | None:
        """Return the revision of the tables; None for an empty file."""
        application = connection.exec_driver_sql("PRAGMA application_id").scalar()
        names = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
        # A view may never end, a trigger may do anything, and a generated column may be of any size.
        odd = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master m WHERE type NOT IN ('table', 'index') OR sql LIKE '%VIRTUAL%' "
            "OR EXISTS (SELECT 1 FROM pragma_table_xinfo(m.name) WHERE hidden > 1)"
        ).scalar()
        if odd is not None:
            raise StoreError(
                f"{self.shown}: holds `{printable(odd, 80)}`, which no exporter makes; name another file"
            )
        if names and application != _APPLICATION_ID:
            raise StoreError(f"{self.shown}: the database of another program; name another file")
        if self._path and self._path.stat().st_size <= _MAX_CHECKED_BYTES:
            fault = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
            if fault != "ok":
                raise DatabaseError("", None, sqlite3.DatabaseError(fault))
        if not names:
            return None
        if schema.schema.name not in names:
            return _OF_0_1_0
        return str(connection.execute(select(schema.schema.c.version_num)).scalar_one())

    def _explain(self, error: BaseException) -> str:
        text, path = str(error), self._path
        if _is_corrupt(error):
            return f"corrupt ({text}); it is set aside, and begun anew"
        if "locked" in text:
            return "in use by another process; give each exporter a file of its own"
        if "full" in text:
            return "the disk is full; what was kept is not lost, and it goes on once there is room"
        if path and not os.path.isdir(path.parent):
            return f"no folder `{path.parent}`; make it, or mount a volume there"
        if path and not (
            os.access(path.parent, os.W_OK) and (not os.path.exists(path) or os.access(path, os.W_OK))
        ):
            return f"cannot be written; make it and its folder writable for this user (uid {os.getuid()})"
        return text

    def _set_aside(self, error: object) -> None:
        """Rename the corrupt file, for a new one to be begun; the last three such files are kept."""
        for _, file in self._aside()[: 1 - _MAX_SET_ASIDE]:
            for suffix in _BESIDE:
                Path(f"{file}{suffix}").unlink(missing_ok=True)
        path = self._rename(datetime.now(timezone.utc).strftime(_CORRUPT))
        log.warning("store was corrupt; set aside, and begun anew", path=path, error=str(error))

    def _rename(self, ending: str) -> str:
        """Rename the file with its log, and return its new name, which no other file has."""
        name = f"{self._path}{ending}"
        while os.path.exists(name):
            name += ".new"
        for suffix in _BESIDE:  # the file itself last: until then the same would be found again
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{name}{suffix}")
        return name

    def _aside(self) -> list[tuple[float, Path]]:
        """Return the corrupt files beside the file and when each was set aside, which their names say; sorted."""
        aside: list[tuple[float, Path]] = []
        if self._path is None:
            return aside
        with suppress(OSError):  # a folder that cannot be listed
            for file in self._path.parent.iterdir():
                with suppress(ValueError):
                    stamp = datetime.strptime(file.name.removeprefix(self._path.name), _CORRUPT)
                    aside.append((stamp.timestamp(), file))
        return sorted(aside)


def _retype(connection: Connection) -> None:
    """Give the values the types of their columns again, which SQLite does not hold them to.

    One flipped bit of a row's header makes a text a blob or a number another one, and whoever reads it would have to
    expect that. Runs are read as what they are, whatever they became: their table is the large one, and is left out.
    A row that names another one wrongly is nobody's, and is not read: foreign keys are off meanwhile.
    """
    for table in (schema.start, schema.series, schema.document, schema.clock):
        kinds = {f'"{column.name}"': _KINDS[column.type.python_type] for column in table.columns}
        odd = " OR ".join(f"typeof({name}) NOT IN ('{kind}', 'null')" for name, kind in kinds.items())
        casts = ", ".join(f"{name} = CAST({name} AS {kind})" for name, kind in kinds.items())
        connection.exec_driver_sql(f"UPDATE OR IGNORE {table.name} SET {casts} WHERE {odd}")  # noqa: S608 - constants
        connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {odd}")  # noqa: S608 - another row has its name
    connection.exec_driver_sql(f"UPDATE clock SET age = 0.0 WHERE NOT abs(age) < {_MOST}")  # noqa: S608 - a constant


def _is_corrupt(error: object) -> bool:
    """Return whether the file is at fault: Python has a class of its own for each other error of SQLite."""
    return type(error) is sqlite3.DatabaseError
