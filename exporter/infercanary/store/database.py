"""The SQLite file of the store: how it is opened, what is in it, and what is done where it cannot be used."""

from __future__ import annotations

import calendar
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from infercanary.contract.text import printable
from infercanary.store.base import StoreError

_LOCK_SECONDS = 2.0  # an exporter that is just ending lets go of the file within it
_MAX_CHECKED_BYTES = 256 << 20  # are checked as a whole when opened; reading them takes about a second
_MAX_SET_ASIDE = 3
_CACHE_KIB = 16 << 10
_WAL_PAGES = 4_000  # 16 MB: a page that was written often meanwhile goes into the file once
_APPLICATION_ID = 0x1CA9A12  # in the file's header: no other program's database is taken for ours
_BESIDE = ("-wal", "-shm", "-journal")
_STAMP = "%Y%m%dT%H%M%SZ"


def connect(path: Path | None) -> sqlite3.Connection:
    """The database at ``path``, or one in memory, in the schema of today and for this process alone.

    Args:
        path: A file, made if there is none; None for memory.

    Returns:
        An open connection, which holds the file's lock from its first read on.

    Raises:
        StoreError: It is not ours to use.
        sqlite3.Error: As sqlite3 does.
    """
    db = sqlite3.connect(
        path or ":memory:",
        timeout=_LOCK_SECONDS,
        isolation_level=None,  # transactions begin and end where it is written that they do
        check_same_thread=False,
    )
    try:
        # From the first read on: so no shared memory is needed beside the file.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # One flipped byte in a name must not cost the rows beside it.
        db.text_factory = lambda text: text.decode(errors="replace")
        version = _check(db, path)
        for pragma in (
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "temp_store = MEMORY",
            f"cache_size = -{_CACHE_KIB}",
            f"wal_autocheckpoint = {_WAL_PAGES}",
            f"journal_size_limit = {_WAL_PAGES * 4096}",
        ):
            db.execute(f"PRAGMA {pragma}")
        for number, step in enumerate(_STEPS[version:], version + 1):
            with db:  # takes back what a step did before it failed
                db.execute("BEGIN EXCLUSIVE")
                for statement in step:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")
        db.execute(
            "PRAGMA foreign_keys = ON"
        )  # a step may make a table again: its rows must not take others with them
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, path: Path | None) -> int:
    """The schema that it is in."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # A view may never end, a trigger may do anything, and a generated column may be of any size.
    made = db.execute(
        "SELECT name FROM sqlite_master m WHERE type NOT IN ('table', 'index') OR sql LIKE '%VIRTUAL%' "
        "OR EXISTS (SELECT 1 FROM pragma_table_xinfo(m.name) WHERE hidden > 1)"
    )
    if (odd := made.fetchone()) is not None:
        raise StoreError(
            f"{path}: holds `{printable(odd[0], 80)}`, which no exporter makes; name another file"
        )
    if tables and application != _APPLICATION_ID:
        raise StoreError(f"{path}: the database of another program; name another file")
    if version > len(_STEPS):
        raise StoreError(
            f"{path}: written by a newer InferCanary (schema {version}, this one knows {len(_STEPS)}); "
            "upgrade this one, or name another file"
        )
    if path and path.stat().st_size <= _MAX_CHECKED_BYTES:
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
    return int(version)


def retype(db: sqlite3.Connection) -> None:
    """Give the values the types of their columns again, which SQLite does not hold them to.

    One flipped bit of a row's header makes a text a blob or a number another one, and whoever reads it would have to
    expect that. Runs are read as what they are, whatever they became: their table is the large one, and is left out.

    Args:
        db: A connection outside a transaction.
    """
    db.execute(
        "PRAGMA foreign_keys = OFF"
    )  # a row that names another one wrongly is nobody's, and is not read
    for table in ("generation", "series", "document", "clock"):
        kinds = {
            name: kind
            for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})")
            if name.isidentifier()
            and kind in ("TEXT", "INTEGER", "REAL", "BLOB")  # they become statements here
        }
        odd = " OR ".join(f"typeof({name}) NOT IN ('{kind.lower()}', 'null')" for name, kind in kinds.items())
        casts = ", ".join(f"{name} = CAST({name} AS {kind})" for name, kind in kinds.items())
        db.execute(f"UPDATE OR IGNORE {table} SET {casts} WHERE {odd}")  # noqa: S608 - names of columns
        db.execute(f"DELETE FROM {table} WHERE {odd}")  # noqa: S608 - another row has its name by now
    db.execute("PRAGMA foreign_keys = ON")


def is_corrupt(error: BaseException) -> bool:
    """Whether the file is at fault: Python has a class of its own for each other error of SQLite.

    Args:
        error: What sqlite3 raised, or anything else.
    """
    return type(error) is sqlite3.DatabaseError


def set_aside(path: Path) -> Path:
    """Rename the corrupt file at ``path``, so that a new one can be begun; the last three such files are kept.

    Args:
        path: Of the database; its log and shared memory are renamed with it.

    Returns:
        The path that it has now.
    """
    earlier = sorted(_aside(path))
    for file in earlier[: max(0, len(earlier) - _MAX_SET_ASIDE + 1)]:
        for suffix in (*_BESIDE, ""):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
    stamp = time.strftime(_STAMP, time.gmtime())
    target = path.with_name(_prefix(path) + stamp)
    number = 1
    while target in earlier:
        number += 1
        target = path.with_name(f"{_prefix(path)}{stamp}.{number}")
    for suffix in (*_BESIDE, ""):  # the file itself last: until then it would be found corrupt again
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{target}{suffix}")
    return target


def set_aside_at(path: Path) -> float | None:
    """When the last of the corrupt files that lie beside ``path`` was set aside, a Unix time; None if none does.

    Their names have the time: so it is known after a restart too, and where no new file could be begun at first.

    Args:
        path: Of the database, which need not exist.

    Returns:
        A Unix time, in whole seconds; None also where the folder cannot be listed.
    """
    times = []
    with suppress(OSError):  # a folder that cannot be listed
        for file in _aside(path):
            stamp = file.name.removeprefix(_prefix(path)).partition(".")[0]
            with suppress(ValueError):  # somebody gave it another name
                times.append(float(calendar.timegm(time.strptime(stamp, _STAMP))))
    return max(times, default=None)


def _prefix(path: Path) -> str:
    return f"{path.name}.corrupt-"


def _aside(path: Path) -> Iterator[Path]:
    """The corrupt files beside ``path``, without their logs."""
    for file in path.parent.iterdir():
        if file.name.startswith(_prefix(path)) and not file.name.endswith(_BESIDE):
            yield file


def explain(error: BaseException, path: Path | None) -> str:
    """What went wrong, and how to fix it.

    Args:
        error: What opening, reading or writing raised.
        path: Of the database; None for memory.
    """
    text = str(error)
    if is_corrupt(error):
        return f"corrupt ({text}); it is set aside, and begun anew"
    if "locked" in text:
        return "in use by another process; give each exporter a file of its own"
    if "full" in text:
        return "the disk is full; what was kept is not lost, and it goes on once there is room"
    if path and not os.path.isdir(path.parent):
        return f"no folder `{path.parent}`; make it, or mount a volume there"
    if path and os.path.isdir(path):
        return "is a folder; name a file in it"
    if path and not (
        os.access(path.parent, os.W_OK) and (not os.path.exists(path) or os.access(path, os.W_OK))
    ):
        return f"cannot be written; make it and its folder writable for this user (uid {os.getuid()})"
    return text


def size(db: sqlite3.Connection) -> int:
    """Bytes of the database, without what still is in its log.

    Args:
        db: Its connection.

    Returns:
        Bytes: pages times the size of a page.
    """
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (page,) = db.execute("PRAGMA page_size").fetchone()
    return int(pages * page)


_CREATE = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    "CREATE TABLE clock (now REAL, age REAL NOT NULL)",
    "INSERT INTO clock VALUES (NULL, 0)",
    "CREATE TABLE environment (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
    # began: started_at, or that of the container's start before if this is earlier. seen: an age of the store.
    """CREATE TABLE generation (
        id INTEGER PRIMARY KEY, service TEXT NOT NULL, container TEXT NOT NULL, boot_id TEXT NOT NULL,
        started_at REAL NOT NULL, began REAL NOT NULL, seen REAL NOT NULL, image TEXT NOT NULL,
        image_id TEXT NOT NULL, image_digest TEXT NOT NULL, image_key TEXT NOT NULL,
        environment INTEGER NOT NULL REFERENCES environment, details BLOB NOT NULL,
        UNIQUE (service, container, boot_id)
    )""",
    "CREATE INDEX generation_environment ON generation (environment)",
    # How many rows there are of each tier, and up to which sequence they were merged or, if failed, dropped; taken:
    # how many runs there ever were that had not failed.
    """CREATE TABLE series (
        id INTEGER PRIMARY KEY, generation INTEGER NOT NULL REFERENCES generation ON DELETE CASCADE,
        canary TEXT NOT NULL, first_at REAL NOT NULL,
        merged_through INTEGER NOT NULL DEFAULT -1, failed_through INTEGER NOT NULL DEFAULT -1,
        opening INTEGER NOT NULL DEFAULT 0, raw INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
        first INTEGER NOT NULL DEFAULT 0, blocks INTEGER NOT NULL DEFAULT 0, hours INTEGER NOT NULL DEFAULT 0,
        taken INTEGER NOT NULL DEFAULT 0,
        UNIQUE (generation, canary)
    )""",
    # One tree, in which the rows of a series lie side by side: what is read together is stored together.
    """CREATE TABLE sample (
        series INTEGER NOT NULL REFERENCES series ON DELETE CASCADE, sequence INTEGER NOT NULL,
        tier INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (series, sequence)
    ) WITHOUT ROWID""",
    """CREATE TABLE document (
        kind TEXT NOT NULL, service TEXT NOT NULL, canary TEXT NOT NULL, number INTEGER NOT NULL,
        at REAL NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, service, canary, number)
    ) WITHOUT ROWID""",
)

# A service is known by its namespace too, which was empty so far. https://sqlite.org/lang_altertable.html#otheralter
_NAMESPACES = (
    """CREATE TABLE new_generation (
        id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, service TEXT NOT NULL, container TEXT NOT NULL,
        boot_id TEXT NOT NULL, started_at REAL NOT NULL, began REAL NOT NULL, seen REAL NOT NULL, image TEXT NOT NULL,
        image_id TEXT NOT NULL, image_digest TEXT NOT NULL, image_key TEXT NOT NULL,
        environment INTEGER NOT NULL REFERENCES environment, details BLOB NOT NULL,
        UNIQUE (namespace, service, container, boot_id)
    )""",
    "INSERT INTO new_generation SELECT id, '', service, container, boot_id, started_at, began, seen, image, image_id, "
    "image_digest, image_key, environment, details FROM generation",
    "DROP TABLE generation",
    "ALTER TABLE new_generation RENAME TO generation",
    "CREATE INDEX generation_environment ON generation (environment)",
    """CREATE TABLE new_document (
        kind TEXT NOT NULL, namespace TEXT NOT NULL, service TEXT NOT NULL, canary TEXT NOT NULL,
        number INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (kind, namespace, service, canary, number)
    ) WITHOUT ROWID""",
    "INSERT INTO new_document SELECT kind, '', service, canary, number, at, body FROM document",
    "DROP TABLE document",
    "ALTER TABLE new_document RENAME TO document",
)

# A start has the host that it ran on, and a series when its last run began.
_HOSTS = (
    "ALTER TABLE generation ADD COLUMN host TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE series ADD COLUMN last_at REAL NOT NULL DEFAULT 0",
)

# Step k brings a file of schema k to k + 1, in a transaction of its own. One that was released is never changed.
_STEPS: tuple[tuple[str, ...], ...] = (_CREATE, _NAMESPACES, _HOSTS)
