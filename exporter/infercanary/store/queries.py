"""The statements of the store, once for SQLite and PostgreSQL, and nothing but statements.

Constants, since SQLAlchemy compiles a statement once; parameters are bound by name.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from functools import reduce
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Delete,
    Double,
    Select,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    insert,
    select,
    text,
    tuple_,
    update,
)

from infercanary.judge.model import ServiceKey
from infercanary.store.retention import TIERS
from infercanary.store.schema import document, finding, lease, sample, series, start


def given(table: Table, *names: str) -> ColumnElement[bool]:
    """Return the condition that columns have the values that are bound by their names."""
    return and_(*(table.c[name] == bindparam(name) for name in names))


def of_services(table: Table, services: Collection[ServiceKey]) -> ColumnElement[bool]:
    """Return the condition that a row is of one of these services."""
    return tuple_(table.c.namespace, table.c.service).in_([tuple(service) for service in services])


def named(service: ServiceKey) -> dict[str, Any]:
    """Return the parameters that name a service."""
    return {"namespace": service.namespace, "service": service.name}


def _larger(column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((column > other, column), else_=other)


_SERVICE = "namespace", "service"
_NAMES = start.c[_SERVICE]
_OF_SERVICE = given(start, *_SERVICE)
_OF_CONTAINER = given(start, *_SERVICE, "container")
_OF_ROW: BindParameter[int] = bindparam("row")
_STARTS_AND_SERIES = start.join(series)
ROWS: ColumnElement[int] = reduce(operator.add, series.c[TIERS])
"""The number of a series' rows."""

# Age -------------------------------------------------------------------------------------------------------------

AGE = text("SELECT age FROM clock")
ADVANCE_CLOCK = text(
    "UPDATE clock SET now = :now, age = age + CASE WHEN :now - now BETWEEN 0 AND :day THEN :now - now ELSE 0 END"
)
"""A step back, or of more than a day, does not count."""
RESET_CLOCK = text(
    "UPDATE clock SET now = NULL, age = 0.0 "
    "WHERE typeof(age) <> 'real' OR typeof(now) NOT IN ('real', 'null') OR NOT abs(age) < 1e15"
)
"""A failing disk may have made it anything; 1e15 s are more than a store can have been watched."""
NOW = select(cast(extract("epoch", func.now()), Double))
"""The database's own clock, in PostgreSQL."""

# Starts ----------------------------------------------------------------------------------------------------------

LATEST = text(
    "SELECT max(CASE WHEN last_at > began THEN last_at ELSE began END) FROM start "
    "LEFT JOIN series ON series.start = start.id "
    "WHERE namespace = :namespace AND service = :service AND container = :container"
)
"""When the last start of a container began or, if later, its last run; None without a start."""
PUT_START = text(
    "INSERT INTO start (namespace, service, container, boot_id, began, seen, host, image_id, image_digest, image_key, "
    "body) VALUES (:namespace, :service, :container, :boot_id, :began, :seen, :host, :image_id, :image_digest, "
    ":image_key, :body) ON CONFLICT (namespace, service, container, boot_id) DO UPDATE SET seen = excluded.seen, "
    "host = excluded.host, image_id = excluded.image_id, image_digest = excluded.image_digest, "
    "image_key = excluded.image_key, body = excluded.body, "
    "revision = start.revision + CASE WHEN start.body = excluded.body THEN 0 ELSE 1 END RETURNING id"
)
"""Adds a start or brings it up to date."""
CONTAINERS = text("SELECT DISTINCT namespace, service, container FROM start")
START = select(start.c.body).where(_OF_CONTAINER, given(start, "boot_id"))
STARTS = select(start.c.body).where(_OF_SERVICE).order_by(start.c.began, start.c.container, start.c.id)
_BY_ID = start.c.id.in_(bindparam("ids", expanding=True))
STARTS_BY_ID = select(*start.c["id", "body"]).where(_BY_ID)
DROP_STARTS = delete(start).where(_BY_ID)

# Runs ------------------------------------------------------------------------------------------------------------

LOCK_SERIES = (
    select(*series.c["canary", "id", "taken", "last", "through"])
    .where(given(series, "start"))
    .with_for_update()
)
ADD_SERIES = insert(series)
KNOWN_SEQUENCES = text(
    "SELECT sequence FROM sample WHERE series = :series AND sequence BETWEEN :first AND :last"
)
# Under the lock of the series nothing is doubled; a failing disk may have lowered `last` in SQLite's file.
ADD_SAMPLES = insert(sample).prefix_with("OR IGNORE", dialect="sqlite")
COUNT_SAMPLES = text(
    "UPDATE series SET opening = opening + :opening, raw = raw + :raw, failed = failed + :failed, "
    "taken = taken + :opening + :raw, last = CASE WHEN last > :last THEN last ELSE :last END, "
    "last_at = CASE WHEN last_at > :last_at THEN last_at ELSE :last_at END WHERE id = :row"
)
_CANARIES = select(*_NAMES, series.c.canary).distinct().select_from(_STARTS_AND_SERIES)
LAST_RUNS = text(
    "SELECT namespace, service, container, canary, max(last_at) FROM start JOIN series ON series.start = start.id "
    "WHERE host = :host AND (image_id <> '' OR image_digest <> '') GROUP BY namespace, service, container, canary"
)
TAKEN = text(
    "SELECT container, boot_id, taken FROM start JOIN series ON series.start = start.id "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary"
)
SERIES_OF_CANARY = (
    select(
        *start.c["container", "image_key"],
        *series.c["first_at", "last_at", "taken", "start", "id"],
        ROWS.label("rows"),
        func.length(start.c.body).label("bytes"),
    )
    .select_from(_STARTS_AND_SERIES)
    .where(
        given(start, *_SERVICE) & given(series, "canary") & (ROWS > 0),
        text("began >= :since AND container = coalesce(:container, container)"),
    )
    .order_by(*start.c["began", "container", "id"])
)
_OF_SERIES = sample.c.series.in_(bindparam("series", expanding=True))
BODIES = select(sample.c.series, sample.c.body).where(_OF_SERIES).order_by(sample.c.series, sample.c.sequence)
SIZES = select(func.sum(func.length(sample.c.body))).where(_OF_SERIES).group_by(sample.c.series)


def canaries(services: Collection[ServiceKey] | None) -> Select[tuple[str, str, str]]:
    """Return namespace, service and canary of each canary that ran; of these services, or of all."""
    return _CANARIES if services is None else _CANARIES.where(of_services(start, services))


# Documents -------------------------------------------------------------------------------------------------------

LAST_DOCUMENT = text(
    "SELECT coalesce(max(number), 0) FROM document "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary AND kind = :kind"
)
ADD_DOCUMENT = insert(document)
FORGET_DOCUMENTS = text(
    "DELETE FROM document WHERE namespace = :namespace AND service = :service AND canary = :canary AND kind = :kind "
    "AND number <= :number"
)
HISTORY = text(
    "SELECT at, body FROM document "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary AND kind = :kind ORDER BY number"
)

# Sweeping --------------------------------------------------------------------------------------------------------


def records(services: Collection[ServiceKey] | None) -> Select[Any]:
    """Return the starts as :func:`.retention.expired` wants them; of these services, or of all."""
    rows = (
        select(*_NAMES, *start.c["id", "container", "image_key", "seen"], func.coalesce(func.sum(ROWS), 0))
        .select_from(start.outerjoin(series))
        .group_by(start.c.id)
        .order_by(start.c.began, start.c.id)
    )
    return rows if services is None else rows.where(of_services(start, services))


def drop_orphans(table: Table, services: Collection[ServiceKey] | None) -> Delete:
    """Return the deletion of documents, or findings, of canaries that have no start; of these services, or of all."""
    key = tuple_(*table.c[_SERVICE], table.c.canary)
    orphans = delete(table).where(
        table.c.service != "", key.not_in(_CANARIES)
    )  # without a service: about all of them
    return orphans if services is None else orphans.where(of_services(table, services))


# Thinning --------------------------------------------------------------------------------------------------------

SERIES_OF_CONTAINER = (
    select(series, start.c.image_key)
    .select_from(_STARTS_AND_SERIES)
    .where(_OF_CONTAINER)
    .order_by(series.c.canary, start.c.began.desc(), start.c.id.desc())
    .with_for_update(of=series)
)
_OF_TIER = given(sample, "series", "tier")
OLDEST = (
    select(*sample.c["sequence", "body"])
    .where(_OF_TIER)
    .order_by(sample.c.sequence)
    .limit(bindparam("count"))
)
DROP_OLDEST = delete(sample).where(_OF_TIER, sample.c.sequence <= bindparam("last"))
COUNT_REPLACED = (
    update(series)
    .where(series.c.id == _OF_ROW)
    .values({name: series.c[name] + bindparam(f"new_{name}") for name in (*TIERS, "thinned")})
    .values(through=_larger(series.c.through, bindparam("new_through")))
)

# Leases and findings, in PostgreSQL ------------------------------------------------------------------------------

_LEASE = lease.c[_SERVICE]
_FINDING = finding.c["namespace", "service", "canary"]
_NOW = NOW.scalar_subquery()
_GOES_ON = lease.c.expires > _NOW
_OF_LEASE = given(lease, *_SERVICE)

SERVICES = select(*_LEASE).where(_GOES_ON)
"""The services whose lease anybody holds."""
LEASE = text(
    "INSERT INTO lease (namespace, service, holder, fence, expires) "
    "SELECT namespace, service, :holder, 1, extract(epoch FROM now()) + :seconds "
    "FROM unnest(CAST(:namespaces AS text[]), CAST(:services AS text[])) AS wanted (namespace, service) "
    "WHERE NOT EXISTS (SELECT 1 FROM lease WHERE lease.namespace = wanted.namespace "
    "AND lease.service = wanted.service AND holder <> :holder AND expires > extract(epoch FROM now())) "
    "ORDER BY 1, 2 ON CONFLICT (namespace, service) DO UPDATE "
    "SET holder = excluded.holder, expires = excluded.expires, "
    "fence = lease.fence + CASE WHEN lease.expires > extract(epoch FROM now()) THEN 0 ELSE 1 END "
    "WHERE CASE WHEN lease.expires > extract(epoch FROM now()) THEN lease.holder = excluded.holder ELSE :takes END "
    "RETURNING namespace, service, fence"
)
"""Leases these services for some seconds: those that this process holds and, if ``takes``, those that nobody holds.

In one order, since the two connections of a process do it at the same time. A statement by itself: now() is when it
began, so one that waited for a row's lock finds less expired, not more. Rows of other holders are not even locked.
"""
CLAIM = select(*_LEASE).where(_OF_LEASE, given(lease, "holder", "fence"), _GOES_ON).with_for_update()
"""Locks a lease: whoever wants to take it waits until the transaction ends."""
PUT_FINDING = text(
    "INSERT INTO finding (namespace, service, canary, number, at, body, taught) "
    "SELECT namespace, service, :canary, 1, :at, :body, :taught FROM lease "
    "WHERE namespace = :namespace AND service = :service AND holder = :holder AND fence = :fence "
    "AND expires > extract(epoch FROM now()) FOR UPDATE "
    "ON CONFLICT (namespace, service, canary) DO UPDATE SET number = finding.number + 1, at = excluded.at, "
    "body = excluded.body, taught = excluded.taught RETURNING namespace, service, number"
)
"""Locks the lease too; no row without it. The number changes with the finding."""
TAUGHT = select(*_FINDING, finding.c.taught).where(func.length(finding.c.taught) > 0)
_NEWEST = (
    select(func.max(series.c.last_at)).select_from(_STARTS_AND_SERIES).where(_OF_SERVICE).scalar_subquery()
)
RUNNING = STARTS.where(
    select(series.c.id)
    .where(series.c.start == start.c.id, series.c.last_at >= _NEWEST - bindparam("gone"))
    .exists(),
    select(lease.c.fence).where(_OF_LEASE, _GOES_ON).exists(),
)


def finding_numbers(services: Collection[ServiceKey]) -> Select[Any]:
    """Return the number of each finding about these services."""
    return select(*_FINDING, finding.c.number).where(of_services(finding, services))


def finding_bodies(canaries: Collection[tuple[ServiceKey, str]]) -> Select[Any]:
    """Return the findings about these canaries."""
    keys = [(*service, canary) for service, canary in canaries]
    return select(*_FINDING, finding.c.body).where(tuple_(*_FINDING).in_(keys))


def counts(services: Collection[ServiceKey]) -> Select[Any]:
    """Return sums for each canary of these services, of which one changes whenever its starts or runs change.

    Of a start or a series each of these numbers only grows (with fewer rows ``thinned`` does), and new ones have larger
    ids than those that were dropped.
    """
    numbers = series.c.id, series.c.taken, series.c.thinned, ROWS, start.c.revision
    sums = select(*_NAMES, series.c.canary, func.count(), *map(func.sum, numbers)).select_from(
        _STARTS_AND_SERIES
    )
    return sums.where(of_services(start, services)).group_by(*_NAMES, series.c.canary)
