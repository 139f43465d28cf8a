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
    Text,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from infercanary.judge.model import ServiceKey
from infercanary.store.retention import DAY_SECONDS
from infercanary.store.schema import clock, document, sample, series, start

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


def services_in(services: Collection[ServiceKey]) -> ColumnElement[bool]:
    """Return the condition that a start is of one of these services."""
    return tuple_(*_NAMES).in_([tuple(service) for service in services])


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


def drop_orphans(table: Any, service: ServiceKey | None) -> Delete:  # noqa: ANN401
    """Return the deletion of documents, or findings, of canaries that have no start; of a service, or of all."""
    names = table.c.namespace, table.c.service
    # Documents without a service are about all of them.
    orphans = delete(table).where(table.c.service != "", tuple_(*names, table.c.canary).not_in(_CANARIES))
    return orphans if service is None else orphans.where(tuple_(*names).in_([tuple(service)]))


# Thinning (below: s3), leases and findings (s2) --------------------------------------------------------------------
