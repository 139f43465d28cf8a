"""The connection to the SQLite file: opened when first used, with nested transactions and errors in plain words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from infercanary.store import database
from infercanary.store.base import StoreError

log = structlog.get_logger(__name__)


class Session:
    """One connection to the file ``path``, or to a database in memory.

    Args:
        path: The file; made if there is none. A corrupt one is set aside, and begun anew.
        load: Called with each new connection, to read what the caller keeps in memory of it.
        rolled_back: Called after each transaction that was not kept.
    """

    def __init__(
        self,
        path: Path | None,
        load: Callable[[sqlite3.Connection], None],
        rolled_back: Callable[[], None],
    ) -> None:
        self.set_aside_at: float | None = None
        """When the last of those that still lie beside the file was, also by an earlier exporter: a Unix time."""
        self.size_bytes = 0
        """Size of the database, without what is not yet moved to it from its log."""
        self._path = path
        self._load = load
        self._rolled_back = rolled_back
        self._db: sqlite3.Connection | None = None
        self._opened = (0, 0)
        self._log: tuple[int, int] | None = None  # of the write-ahead log, once it was seen
        self._closed = False
        self._within = False

    @contextmanager
    def work(self) -> Iterator[sqlite3.Connection]:
        """The connection; what goes wrong with it is a :class:`StoreError`.

        Yields:
            The connection, which is not to be kept.

        Raises:
            StoreError: In one line, with the fix; also after :meth:`close`.
        """
        try:
            if self._closed:
                raise StoreError(f"{self._path}: closed")
            if self._db is None:
                self._db = self._connect()
            yield self._db
        except (sqlite3.Error, UnicodeError, OverflowError, OSError) as error:
            text = f"{self._path or 'the store in memory'}: {database.explain(error, self._path)}"
            if self._db is not None and database.is_corrupt(error):
                self._disconnect()  # the next work begins anew
                with suppress(OSError):
                    self._set_aside(error)
            raise StoreError(text) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """As :meth:`infercanary.store.base.Store.transaction`.

        Yields:
            Nothing.

        Raises:
            StoreError: It cannot be begun or ended, or a part of it failed.
        """
        inner = self._within
        with self.work() as db:
            if inner and not db.in_transaction:
                raise StoreError("not done, since a part before it failed")
            if not inner and self._is_gone():
                self._disconnect()  # the next work begins anew
                raise StoreError(f"{self._path}: was removed while in use; it is begun anew")
            db.execute("SAVEPOINT part" if inner else "BEGIN IMMEDIATE")
        self._within = True
        try:
            yield
            with self.work() as still:
                if still is not db or not db.in_transaction:
                    raise StoreError("not done, since a part of it failed")
                if not inner:
                    self.size_bytes = database.size(db)
                db.execute("RELEASE part" if inner else "COMMIT")
        except BaseException:
            # SQLite may have rolled all of it back by itself, as it does when the disk is full.
            with suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK TO part" if inner else "ROLLBACK")
                if db.in_transaction:
                    db.execute("RELEASE part")
            self._rolled_back()
            raise
        finally:
            self._within = inner

    def close(self) -> None:
        """Let go of the file. Never raises."""
        self._closed = True
        self._disconnect()

    def _connect(self) -> sqlite3.Connection:
        try:
            db = database.connect(self._path)
        except sqlite3.DatabaseError as error:
            if not database.is_corrupt(error):
                raise
            self._set_aside(error)
            db = database.connect(self._path)
        try:
            self._load(db)
            self.size_bytes = database.size(db)
        except BaseException:
            db.close()
            raise
        if self._path:
            self.set_aside_at = database.set_aside_at(self._path)
            self._opened, self._log = _inode(self._path), None
        return db

    def _is_gone(self) -> bool:
        """Whether the file or its log lies at its path no more: what is written to it then is lost with the process."""
        if self._path is None:
            return False
        try:
            if _inode(self._path) != self._opened:
                return True
            log = Path(f"{self._path}-wal")
            if self._log is None:
                self._log = _inode(log) if log.exists() else None
            return self._log is not None and _inode(log) != self._log
        except OSError:
            return True

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    def _set_aside(self, error: BaseException) -> None:
        assert self._path is not None
        target = database.set_aside(self._path)
        log.warning("store was corrupt; set aside, and begun anew", path=str(target), error=str(error))


def _inode(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino
