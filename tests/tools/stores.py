"""Test data for stores, stores in SQLite and in PostgreSQL, and access to their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing

import msgspec
from sqlalchemy import text

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store.records import decode_start
from infercanary.store.retention import TIERS, Retention
from infercanary.store.store import Store, open_store

SEARCH = ServiceKey("", "search")
CANARY = "resnet18"
DAY = 86_400.0
T = 1_790_000_000.0
"""Unix time."""

SMALL = Retention(
    opening=24,
    opening_starts=2,
    raw=36,
    slack=12,
    first=120,
    blocks=40,
    hours=10,
    failed=20,
    starts=6,
    first_starts=2,
    images=3,
    containers=3,
)
"""Small limits that a test can reach."""

Opens = Callable[[Retention | None], Store]
"""Opens an empty store, and closes the previously opened store."""


def generation(boot_id="boot", **given):
    identity = {
        "service": SEARCH.name,
        "container": "search-1",
        "started_at": T,
        "image": "search:1",
        "image_id": "sha256:1",
        "environment": {"torch": "2.13.0"},
    }
    return msgspec.convert({**identity, **given, "boot_id": boot_id}, Generation)


def sample(sequence, **given):
    fields = {
        "sequence": sequence,
        "canary": CANARY,
        "started_at": T + 10 * sequence,
        "outcome": "ok",
        "median": 0.01 + sequence * 1e-6,
        "phases": {"compute": 0.009},
        "runs": 1,
    }
    return Sample(**{**fields, **given})


def samples(*bounds, **given):
    return [sample(sequence, **given) for sequence in range(*bounds)]


def failure(sequence):
    return sample(sequence, outcome="raised", median=None, phases={})


def in_memory():
    with ExitStack() as stores:

        def opens(keep=None):
            stores.close()
            return stores.enter_context(closing(open_store(None, keep or Retention())))

        yield opens


def in_postgres(postgres):
    """Yield a function that opens stores in separate databases, each with the lease on :data:`SEARCH`."""
    with ExitStack() as stores:

        def opens(keep=None):
            stores.close()
            store = stores.enter_context(closing(open_store(postgres.database(), keep or Retention())))
            store.fleet.hold({SEARCH})
            return store

        yield opens


def query(store, statement, **given):
    with store.session.transaction(), store.session.work() as connection:
        result = connection.execute(text(statement), given)
        return [tuple(row) for row in result] if result.returns_rows else []


def count(store):
    [(rows,)] = query(store, "SELECT count(*) FROM sample")
    return int(rows)


def kept(store, boot_id="boot"):
    return next((runs for start, runs in store.generations(SEARCH, CANARY) if start.boot_id == boot_id), [])


def starts_of(store, service=SEARCH):
    statement = "SELECT body FROM start WHERE namespace = :namespace AND service = :name ORDER BY began, container, id"
    bodies = query(store, statement, namespace=service.namespace, name=service.name)
    return [start for (body,) in bodies if (start := decode_start(body)) is not None]


def check_counts(store):
    """Check that the counts of each series match its rows, and that every row belongs to a series."""
    tiers = Counter({
        (series, tier): rows
        for series, tier, rows in query(store, "SELECT series, tier, count(*) FROM sample GROUP BY series, tier")
    })  # fmt: skip
    for series, *counts in query(store, f"SELECT id, {', '.join(TIERS)} FROM series"):
        assert counts == [tiers.pop((series, tier), 0) for tier in range(len(TIERS))]
    assert not tiers, "rows without a series"
    assert query(store, 'SELECT 1 FROM series WHERE start NOT IN (SELECT id FROM "start")') == []
