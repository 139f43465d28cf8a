"""Opens the judge's stores for reading."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from infercanary.command.settings import UsageError
from infercanary.judge.model import Generation, Sample
from infercanary.store import benchmarks
from infercanary.store.base import StoreError
from infercanary.store.benchmarks import Benchmark, boot
from infercanary.store.store import Store, is_shared, open_store

_MAGIC = b"SQLite format 3"
_MAX_BYTES = 16 << 30


def is_store(location: str) -> bool:
    """True for a PostgreSQL URL, or if a file begins like a store.

    A pipe is never a store, because its bytes can be read only once.
    """
    if is_shared(location):
        return True
    try:
        if not Path(location).is_file():
            return False
        with Path(location).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):  # the name is too long, or has a NUL
        return False  # the reader of journals reports the error


def starts(
    hosts: Mapping[str, str], canary: str = "*", service: str = "*", *, recorded: bool = True
) -> Iterator[tuple[str, str, Generation, Sequence[Sample]]]:
    """Yield the starts in stores, grouped by host, service and canary; then the starts of recorded benchmarks.

    Each start is yielded once, even if it was recorded several times.

    Args:
        hosts: Locations of stores, by host.
        canary: Pattern (fnmatch) of canary names.
        service: Pattern of service names; in Kubernetes, ``namespace/service`` also matches. The service of a benchmark
            is the command that recorded the benchmark.
        recorded: False to leave out benchmarks.

    Yields:
        The host, the canary, the start, and all runs of the canary in this start, in order of time.

    Raises:
        UsageError: A location cannot be read as a store.
    """
    seen = set[tuple[str, ...]]()
    found: list[Benchmark] = []
    for host, location in hosts.items():
        with _opened(location) as store:
            for name, each in store.canaries():
                names = name.name, str(name)
                if fnmatchcase(each, canary) and any(fnmatchcase(known, service) for known in names):
                    for generation, samples in store.generations(name, each):
                        seen.add(boot(each, generation))
                        yield generation.host or host, each, generation, samples
            if recorded:
                found += benchmarks.read(store.session)
    for benchmark in found:
        for generation, runs in benchmark.starts:
            names = benchmark.canary, generation.service
            start = boot(benchmark.canary, generation)
            if start not in seen and all(map(fnmatchcase, names, (canary, service))):
                seen.add(start)
                yield generation.host or "unknown host", benchmark.canary, generation, runs


@contextmanager
def _opened(location: str) -> Iterator[Store]:
    """Open a shared store, or a copy of a file, because opening a store may change the file.

    Raises:
        UsageError: The location cannot be read as a store.
    """
    if is_shared(location):
        try:
            with closing(open_store(location)) as store:
                yield store
        except StoreError as error:
            raise UsageError(str(error)) from None
        return
    path = Path(location)
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
                why = (
                    "a store of 0.1.0, which can no longer be read"
                    if tables
                    else "copied without its -wal file"
                )
                raise UsageError(f"{path}: not the judge's store, or {why}")
            with closing(open_store(copy)) as store:
                if (
                    store.database.set_aside_at is not None
                ):  # during the copy, the exporter moved its write-ahead log into the file
                    raise UsageError(f"{path}: changed while it was read, or is corrupt; try again")
                yield store
        except (OSError, StoreError, sqlite3.Error) as error:
            raise UsageError(f"{path}: {str(error).removeprefix(f'{copy}: ')}") from None
