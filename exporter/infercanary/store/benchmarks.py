"""Benchmarks: recorded results of `ab`, `compare` and journals, in their own table.

Verdicts, leases and limits of the store do not depend on benchmarks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import Text, bindparam, text

from infercanary.contract.vocabulary import SETTINGS, of_canary
from infercanary.judge.identity import Digests
from infercanary.judge.model import Generation, Sample, Start, merge
from infercanary.store.session import Session

KEPT = 2_000
"""Number of latest benchmarks that are kept for each canary: about 100 MB if each has 12 starts."""
_RUNS = 16  # maximum number of merged runs of a start; `report` needs at least 8

_PUT = text(
    "INSERT INTO benchmark (id, canary, at, config_digest, manifest_digest, index_digest, body) "
    "VALUES (:id, :canary, :at, :config_digest, :manifest_digest, :index_digest, :body) "
    "ON CONFLICT (id) DO UPDATE SET at = excluded.at, config_digest = excluded.config_digest, "
    "manifest_digest = excluded.manifest_digest, index_digest = excluded.index_digest, body = excluded.body"
)
_FORGET = text(
    "DELETE FROM benchmark WHERE canary = :canary AND id NOT IN "
    "(SELECT id FROM benchmark WHERE canary = :canary ORDER BY at DESC, id LIMIT :kept)"
)
_READ = text(
    "SELECT body FROM benchmark WHERE :everything OR (canary = :canary AND "
    "(config_digest IN :digests OR manifest_digest IN :digests OR index_digest IN :digests)) "
    "ORDER BY canary, at DESC, id"
).bindparams(bindparam("digests", expanding=True, type_=Text))


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one canary in one image, with the result of a comparison if there is a baseline.

    Model, engine, settings, device and host are in the starts. The service of a start is the command that made the
    record: `ab`, `compare` or `report`.
    """

    canary: str
    at: float
    """Unix time of the last run."""
    digests: Digests
    starts: Sequence[tuple[Generation, Sequence[Sample]]]
    baseline: str = ""
    """Id of the baseline; empty without a comparison."""
    verdict: str = ""
    shift: float | None = None

    @property
    def last_start(self) -> Generation:
        """Last start, in order of time."""
        return self.starts[-1][0]

    @property
    def id(self) -> str:
        """Identity of the starts and their baseline. A benchmark with the same identity is recorded once."""
        boots = [self.baseline, *(boot(self.canary, start) for start, _ in self.starts)]
        return hashlib.sha256(msgspec.json.encode(boots)).hexdigest()


_decoder = msgspec.msgpack.Decoder(Benchmark)


def boot(canary: str, start: Generation) -> tuple[str, ...]:
    """Return the identity of a canary's start. The boot id implies image and device."""
    return canary, start.environment.get(of_canary(SETTINGS, canary), ""), start.boot_id


def compact(start: Start) -> tuple[Generation, list[Sample]]:
    """Return a start without profiles, with its runs merged into a few."""
    size = math.ceil(len(start.samples) / _RUNS)
    blocks = (start.samples[i : i + size] for i in range(0, len(start.samples), size))
    return msgspec.structs.replace(start.generation, profiles={}), [*map(merge, blocks)]


def save(session: Session, benchmarks: Iterable[Benchmark]) -> None:
    """Record benchmarks in one transaction. A benchmark with the same identity is replaced.

    Raises:
        StoreError: The store cannot be written.
    """
    with session.transaction() as connection:
        for each in benchmarks:
            row = {"id": each.id, "canary": each.canary, "at": each.at, "body": msgspec.msgpack.encode(each)}
            connection.execute(_PUT, row | msgspec.structs.asdict(each.digests))
            connection.execute(_FORGET, {"canary": each.canary, "kept": KEPT})


def read(session: Session, canary: str = "", digests: Collection[str] = ()) -> list[Benchmark]:
    """Return the benchmarks of a canary in an image, or all benchmarks. For each canary, the newest comes first."""
    benchmarks = []
    given = {"everything": not digests, "canary": canary, "digests": [*digests]}
    for (body,) in session.rows(_READ, given):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # disk error, or from a newer version
            benchmarks.append(_decoder.decode(body))
    return benchmarks
