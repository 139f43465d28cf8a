"""The statements of the store, once for SQLite and PostgreSQL, and nothing but statements.

Constants, since SQLAlchemy compiles a statement once; parameters are bound by name.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from functools import reduce
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Double,
    Select,
    Table,
    Text,
    Update,
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
from infercanary.store.retention import DAY_SECONDS, TIERS
from infercanary.store.schema import clock, document, finding, lease, sample, series, start


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
_OF_ROW = bindparam("row")
_STARTS_AND_SERIES = start.join(series)
ROWS: ColumnElement[int] = reduce(operator.add, series.c[TIERS])
"""The number of a series' rows."""

# Age -------------------------------------------------------------------------------------------------------------

_STEP = bindparam("now", type_=Double) - clock.c.now
AGE = select(clock.c.age)
ADVANCE_CLOCK = update(clock).values(
    now=bindparam("now"), age=clock.c.age + case((_STEP.between(0.0, DAY_SECONDS), _STEP), else_=0.0)
)
"""A step back, or of more than a day, does not count."""
NOW = select(cast(extract("epoch", func.now()), Double))
"""The database's own clock, in PostgreSQL."""

# Starts ----------------------------------------------------------------------------------------------------------

CHANGEABLE = "host", "image_id", "image_digest", "image_key", "body"
"""The columns that a later report of the same start may change."""
LATEST = (
    select(func.max(_larger(start.c.began, func.coalesce(series.c.last_at, 0.0))))
    .select_from(start.outerjoin(series))
    .where(_OF_CONTAINER)
)
ADD_START = insert(start).returning(start.c.id)
CHANGE_START = (
    update(start)
    .where(start.c.id == _OF_ROW)
    .values({name: bindparam(name) for name in (*CHANGEABLE, "seen")})
    .values(revision=start.c.revision + bindparam("changes"))
)
CONTAINERS = select(*_NAMES, start.c.container).distinct()

START = select(*start.c[("id", "seen", *CHANGEABLE)]).where(_OF_CONTAINER, given(start, "boot_id"))
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
KNOWN_SEQUENCES = select(sample.c.sequence).where(
    given(sample, "series"), sample.c.sequence.between(bindparam("first"), bindparam("last"))
)
# Under the lock of the series nothing is doubled; a failing disk may have lowered `last` in SQLite's file.
ADD_SAMPLES = insert(sample).prefix_with("OR IGNORE", dialect="sqlite")
_NEW = {name: bindparam(f"new_{name}") for name in ("opening", "raw", "failed", "last", "last_at")}
COUNT_SAMPLES = (
    update(series)
    .where(series.c.id == _OF_ROW)
    .values({name: series.c[name] + _NEW[name] for name in ("opening", "raw", "failed")})
    .values({name: _larger(series.c[name], _NEW[name]) for name in ("last", "last_at")})
    .values(taken=series.c.taken + _NEW["opening"] + _NEW["raw"])
)
_CANARIES = select(*_NAMES, series.c.canary).distinct().select_from(_STARTS_AND_SERIES)
LAST_RUNS = (
    select(*_NAMES, start.c.container, series.c.canary, func.max(series.c.last_at))
    .select_from(_STARTS_AND_SERIES)
    .where(given(start, "host"), start.c.image_id + start.c.image_digest != "")
    .group_by(*_NAMES, start.c.container, series.c.canary)
)
_OF_CANARY = _OF_SERVICE & given(series, "canary")
TAKEN = (
    select(start.c.container, start.c.boot_id, series.c.taken)
    .select_from(_STARTS_AND_SERIES)
    .where(_OF_CANARY)
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
        _OF_CANARY,
        ROWS > 0,
        start.c.began >= bindparam("since"),
        start.c.container == func.coalesce(bindparam("container", type_=Text), start.c.container),
    )
    .order_by(start.c.began, start.c.container, start.c.id)
)
_OF_SERIES = sample.c.series.in_(bindparam("series", expanding=True))
BODIES = select(sample.c.series, sample.c.body).where(_OF_SERIES).order_by(sample.c.series, sample.c.sequence)
SIZES = select(func.sum(func.length(sample.c.body))).where(_OF_SERIES).group_by(sample.c.series)


def canaries(services: Collection[ServiceKey] | None) -> Select[tuple[str, str, str]]:
    """Return namespace, service and canary of each canary that ran; of these services, or of all."""
    return _CANARIES if services is None else _CANARIES.where(of_services(start, services))


# Documents -------------------------------------------------------------------------------------------------------

_OF_DOCUMENT = given(document, *_SERVICE, "canary", "kind")
LAST_DOCUMENT = select(func.coalesce(func.max(document.c.number), 0)).where(_OF_DOCUMENT)
ADD_DOCUMENT = insert(document)
FORGET_DOCUMENTS = delete(document).where(_OF_DOCUMENT, document.c.number <= bindparam("number"))
HISTORY = select(document.c.at, document.c.body).where(_OF_DOCUMENT).order_by(document.c.number)

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
# A lease is asked for in a statement by itself: now() is when it began, so one that waited for a row's lock finds less
# expired, not more.
_GOES_ON = lease.c.expires > _NOW
_IS_MINE = lease.c.holder == bindparam("me")
_OF_LEASE = given(lease, *_SERVICE)

SERVICES = select(*_LEASE).where(_GOES_ON)
"""The services whose lease anybody holds."""
TAKE_LEASES = text(
    "INSERT INTO lease (namespace, service, holder, fence, expires) "
    "SELECT namespace, service, :me, 1, extract(epoch FROM now()) + :seconds "
    "FROM unnest(CAST(:namespaces AS text[]), CAST(:services AS text[])) AS free (namespace, service) "
    "ON CONFLICT (namespace, service) DO UPDATE "
    "SET holder = excluded.holder, fence = lease.fence + 1, expires = excluded.expires "
    "WHERE lease.expires <= extract(epoch FROM now()) RETURNING namespace, service, fence"
)
"""Takes those of these leases that nobody holds."""
CLAIM = (
    select(*_LEASE)
    .where(_OF_LEASE, _IS_MINE, lease.c.fence == bindparam("fence"), _GOES_ON)
    .with_for_update()
)
"""Locks a lease: whoever wants to take it waits until the transaction ends."""
PUT_FINDING = text(
    "INSERT INTO finding (namespace, service, canary, number, at, body, taught) "
    "SELECT namespace, service, :canary, 1, :at, :body, :taught FROM lease "
    "WHERE namespace = :namespace AND service = :service AND holder = :me AND fence = :fence "
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


def renew(services: Collection[ServiceKey]) -> Update:
    """Return the renewal of those of these leases that a process holds."""
    renewed = update(lease).where(of_services(lease, services), _IS_MINE, _GOES_ON)
    return renewed.values(expires=_NOW + bindparam("seconds")).returning(*_LEASE, lease.c.fence)


def held(services: Collection[ServiceKey]) -> Select[tuple[str, str]]:
    """Return those of these services whose lease anybody holds."""
    return SERVICES.where(of_services(lease, services))


def give_back(services: Collection[ServiceKey]) -> Update:
    """Return the end of those of these leases that a process holds."""
    ended = update(lease).where(of_services(lease, services), _IS_MINE)
    return ended.values(expires=_NOW).returning(*_LEASE)


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
