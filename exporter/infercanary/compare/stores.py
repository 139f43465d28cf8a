"""Opens the judge's stores for reading."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

from infercanary.command.settings import UsageError
from infercanary.judge.model import Generation, Sample
from infercanary.store.base import StoreError
from infercanary.store.store import open_store

_MAGIC = b"SQLite format 3"
_MAX_BYTES = 16 << 30


def is_store(path: str) -> bool:
    """True if a file begins like a store. False for a pipe, because the bytes of a pipe can be read only once."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):  # the name is too long, or has a NUL
        return False  # the reader of journals reports the error


def starts(
    path: Path, canary: str = "*", service: str = "*"
) -> Iterator[tuple[str, Generation, list[Sample]]]:
    """Yield the starts in a store, grouped by service and canary.

    Args:
        path: File of the store. A copy of the file is read, because a running exporter locks the file.
        canary: Pattern (fnmatch) of canary names.
        service: Pattern of service names; in Kubernetes, ``namespace/service`` also matches.

    Yields:
        The canary, the start, and all runs of the canary in this start, in order of time.

    Raises:
        UsageError: The file cannot be read as a store.
    """
    files = [file for suffix in ("", "-wal") if (file := Path(f"{path}{suffix}")).exists()]
    if sum(file.stat().st_size for file in files) > _MAX_BYTES:
        raise UsageError(f"{path}: more than {_MAX_BYTES >> 30} GB; give a store of fewer services")
    with tempfile.TemporaryDirectory(prefix="infercanary-") as folder:
        copy = Path(folder) / path.name
        try:
            for file in files:
                shutil.copy(file, folder)
            with closing(sqlite3.connect(copy)) as connection:
                tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
            if "infercanary_schema" not in tables:
                raise UsageError(
                    f"{path}: not the judge's store, or a store of 0.1.0, which can no longer be read"
                )
            with closing(open_store(copy)) as store:
                if (
                    store.database.set_aside_at is not None
                ):  # during the copy, the exporter moved its write-ahead log into the file
                    raise UsageError(f"{path}: changed while it was read, or is corrupt; try again")
                for name, each in store.canaries():
                    names = name.name, str(name)
                    if fnmatchcase(each, canary) and any(fnmatchcase(known, service) for known in names):
                        for generation, samples in store.generations(name, each):
                            yield each, generation, samples
        except (OSError, StoreError, sqlite3.Error) as error:
            raise UsageError(f"{path}: {str(error).removeprefix(f'{copy}: ')}") from None
