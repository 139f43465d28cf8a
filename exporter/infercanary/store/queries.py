"""The statements of the store, once for SQLite and PostgreSQL, and nothing but statements.

Constants, since SQLAlchemy compiles a statement once; parameters are bound by name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Double,
    Select,
    Table,
    Text,
    Update,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)

from infercanary.judge.model import ServiceKey
from infercanary.store.retention import DAY_SECONDS
from infercanary.store.schema import clock, document, finding, lease, sample, series, start

_OF_SERVICE = (start.c.namespace == bindparam("namespace")) & (start.c.service == bindparam("service"))
_OF_CONTAINER = _OF_SERVICE & (start.c.container == bindparam("container"))
_OF_DOCUMENT = (
    (document.c.namespace == bindparam("namespace"))
    & (document.c.service == bindparam("service"))
    & (document.c.canary == bindparam("canary"))
    & (document.c.kind == bindparam("kind"))
)
_NAMES = start.c.namespace, start.c.service
ROWS: ColumnElement[int] = series.c.opening + series.c.raw + series.c.failed + series.c.first + series.c.hours
"""The number of a series' rows."""


def services_in(services: Collection[ServiceKey], table: Table = start) -> ColumnElement[bool]:
    """Return the condition that a row is of one of these services."""
    return tuple_(table.c.namespace, table.c.service).in_([tuple(service) for service in services])


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

CHANGEABLE = "image", "image_id", "image_digest", "image_key", "host", "environment", "details"
"""The columns that a later report of the same start may change."""
START_AS_WRITTEN = (
    select(start.c.id, start.c.seen, *(start.c[name] for name in CHANGEABLE))
    .where(_OF_CONTAINER, start.c.boot_id == bindparam("boot_id"))
    .with_for_update()
)
LATEST = (
    select(func.max(start.c.began), func.max(series.c.last_at))
    .join_from(start, series, isouter=True)
    .where(_OF_CONTAINER)
)
ADD_START = insert(start).returning(start.c.id)
CHANGE_START = (
    update(start)
    .where(start.c.id == bindparam("row"))
    .values({name: bindparam(name) for name in (*CHANGEABLE, "seen")} | {"revision": start.c.revision + 1})
)
SEEN = update(start).where(start.c.id == bindparam("row")).values(seen=bindparam("seen"))
CONTAINERS = select(*_NAMES, start.c.container).distinct()

_START = select(
    *_NAMES,
    start.c.container,
    start.c.boot_id,
    start.c.started_at,
    start.c.image,
    start.c.image_id,
    start.c.image_digest,
    start.c.environment,
    start.c.details,
)  # as records.start_in reads it
START = _START.where(_OF_CONTAINER, start.c.boot_id == bindparam("boot_id"))
STARTS = _START.where(_OF_SERVICE).order_by(start.c.began, start.c.container, start.c.id)
STARTS_BY_ID = _START.add_columns(start.c.id).where(start.c.id.in_(bindparam("ids", expanding=True)))

# Runs ------------------------------------------------------------------------------------------------------------

LOCK_SERIES = (
    select(
        series.c.canary,
        series.c.id,
        series.c.taken,
        series.c.last,
        series.c.merged_through,
        series.c.failed_through,
    )
    .where(series.c.start == bindparam("start"))
    .with_for_update()
)
ADD_SERIES = insert(series).returning(series.c.id)
KNOWN_SEQUENCES = select(sample.c.sequence).where(
    sample.c.series == bindparam("series"), sample.c.sequence.between(bindparam("first"), bindparam("last"))
)
# Under the lock of the series nothing is doubled; a failing disk may have lowered `last` in SQLite's file.
ADD_SAMPLES = insert(sample).prefix_with("OR IGNORE", dialect="sqlite")


def _larger(column: ColumnElement[Any], name: str) -> ColumnElement[Any]:
    given: ColumnElement[Any] = bindparam(name, type_=column.type)
    return case((column > given, column), else_=given)


COUNT_SAMPLES = (
    update(series)
    .where(series.c.id == bindparam("row"))
    .values(
        opening=series.c.opening + bindparam("begun"),
        raw=series.c.raw + bindparam("later"),
        failed=series.c.failed + bindparam("failures"),
        taken=series.c.taken + bindparam("begun") + bindparam("later"),
        last=_larger(series.c.last, "newest"),
        last_at=_larger(series.c.last_at, "newest_at"),
    )
)

_CANARIES = select(*_NAMES, series.c.canary).distinct().join_from(start, series)
LAST_RUNS = (
    select(*_NAMES, start.c.container, series.c.canary, func.max(series.c.last_at))
    .join_from(start, series)
    .where(start.c.host == bindparam("host"), or_(start.c.image_id != "", start.c.image_digest != ""))
    .group_by(*_NAMES, start.c.container, series.c.canary)
)
_OF_CANARY = _OF_SERVICE & (series.c.canary == bindparam("canary"))
TAKEN = select(start.c.container, start.c.boot_id, series.c.taken).join_from(start, series).where(_OF_CANARY)
SERIES_OF_CANARY = (
    select(
        start.c.id.label("start"),
        series.c.id.label("series"),
        start.c.container,
        start.c.image_key,
        series.c.first_at,
        series.c.last_at,
        series.c.taken,
        ROWS.label("rows"),
        (func.length(start.c.environment) + func.length(start.c.details)).label("bytes"),
    )
    .join_from(start, series)
    .where(
        _OF_CANARY,
        start.c.began >= bindparam("since"),
        start.c.container == func.coalesce(bindparam("container", type_=Text), start.c.container),
    )
    .order_by(start.c.began, start.c.container, start.c.id)
)
_OF_SERIES = sample.c.series.in_(bindparam("series", expanding=True))
BODIES = select(sample.c.series, sample.c.body).where(_OF_SERIES).order_by(sample.c.series, sample.c.sequence)
SIZES = (
    select(sample.c.series, func.count(), func.sum(func.length(sample.c.body)))
    .where(_OF_SERIES)
    .group_by(sample.c.series)
)
_BODIES_OF_ONE = select(sample.c.body).where(sample.c.series == bindparam("series")).limit(bindparam("count"))
FIRST_BODIES = _BODIES_OF_ONE.order_by(sample.c.sequence)
LAST_BODIES = _BODIES_OF_ONE.order_by(sample.c.sequence.desc())


def canaries(services: Collection[ServiceKey] | None) -> Select[tuple[str, str, str]]:
    """Return namespace, service and canary of each canary that ran; of these services, or of all."""
    return _CANARIES if services is None else _CANARIES.where(services_in(services))


# Documents -------------------------------------------------------------------------------------------------------

LAST_DOCUMENT = select(func.max(document.c.number)).where(_OF_DOCUMENT)
ADD_DOCUMENT = insert(document)
FORGET_DOCUMENTS = delete(document).where(_OF_DOCUMENT, document.c.number <= bindparam("number"))
HISTORY = select(document.c.at, document.c.body).where(_OF_DOCUMENT).order_by(document.c.number)

# Sweeping --------------------------------------------------------------------------------------------------------


def records(service: ServiceKey | None) -> Select[Any]:
    """Return the starts as :func:`.retention.expired` wants them; of a service, or of all."""
    rows = select(*_NAMES, start.c.id, start.c.container, start.c.image_key, start.c.seen)
    if service is not None:
        rows = rows.where(services_in([service]))
    return rows.order_by(start.c.began, start.c.id)


def drop_orphans(table: Any, service: ServiceKey | None) -> Delete:
    """Return the deletion of documents, or findings, of canaries that have no start; of a service, or of all."""
    names = table.c.namespace, table.c.service
    # Documents without a service are about all of them.
    orphans = delete(table).where(table.c.service != "", tuple_(*names, table.c.canary).not_in(_CANARIES))
    return orphans if service is None else orphans.where(tuple_(*names).in_([tuple(service)]))


# Thinning (below: s3), leases and findings (s2) --------------------------------------------------------------------

# Leases and findings, in PostgreSQL ------------------------------------------------------------------------------

_LEASE = lease.c.namespace, lease.c.service
_FINDING = finding.c.namespace, finding.c.service, finding.c.canary
_NOW = NOW.scalar_subquery()
# A lease is asked for in a statement by itself: now() is when it began, so one that waited for a row's lock finds less
# expired, not more.
_GOES_ON = lease.c.expires > _NOW
_IS_MINE = lease.c.holder == bindparam("me")
_OF_LEASE = (lease.c.namespace == bindparam("namespace")) & (lease.c.service == bindparam("service"))

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
_NEWEST = select(func.max(series.c.last_at)).join_from(start, series).where(_OF_SERVICE).scalar_subquery()
RUNNING = STARTS.where(
    select(series.c.id)
    .where(series.c.start == start.c.id, series.c.last_at >= _NEWEST - bindparam("gone"))
    .exists(),
    select(lease.c.fence).where(_OF_LEASE, _GOES_ON).exists(),
)


def renew(services: Collection[ServiceKey]) -> Update:
    """Return the renewal of those of these leases that a process holds."""
    renewed = update(lease).where(services_in(services, lease), _IS_MINE, _GOES_ON)
    return renewed.values(expires=_NOW + bindparam("seconds")).returning(*_LEASE, lease.c.fence)


def held(services: Collection[ServiceKey]) -> Select[tuple[str, str]]:
    """Return those of these services whose lease anybody holds."""
    return SERVICES.where(services_in(services, lease))


def give_back(services: Collection[ServiceKey]) -> Update:
    """Return the end of those of these leases that a process holds."""
    ended = update(lease).where(services_in(services, lease), _IS_MINE)
    return ended.values(expires=_NOW).returning(*_LEASE)


def finding_numbers(services: Collection[ServiceKey]) -> Select[Any]:
    """Return the number of each finding about these services."""
    return select(*_FINDING, finding.c.number).where(services_in(services, finding))


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
    sums = select(*_NAMES, series.c.canary, func.count(), *map(func.sum, numbers)).join_from(start, series)
    return sums.where(services_in(services)).group_by(*_NAMES, series.c.canary)
