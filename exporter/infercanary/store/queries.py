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
    and_,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    insert,
    select,
    tuple_,
    update,
)

from infercanary.judge.model import ServiceKey
from infercanary.store.retention import DAY_SECONDS, TIERS
from infercanary.store.schema import clock, document, sample, series, start


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

CHANGEABLE = "host", "image", "image_id", "image_digest", "image_key", "environment", "details"
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

_START = select(
    *_NAMES,
    *start.c[
        "container", "boot_id", "started_at", "image", "image_id", "image_digest", "environment", "details"
    ],
)  # as records.start_in reads it
START = _START.add_columns(*start.c["id", "seen", "host", "image_key"]).where(
    _OF_CONTAINER, given(start, "boot_id")
)
STARTS = _START.where(_OF_SERVICE).order_by(start.c.began, start.c.container, start.c.id)
STARTS_BY_ID = _START.add_columns(start.c.id).where(start.c.id.in_(bindparam("ids", expanding=True)))

# Runs ------------------------------------------------------------------------------------------------------------

LOCK_SERIES = (
    select(*series.c["canary", "id", "taken", "last", "merged_through", "failed_through"])
    .where(given(series, "start"))
    .with_for_update()
)
ADD_SERIES = insert(series)
KNOWN_SEQUENCES = select(sample.c.sequence).where(
    given(sample, "series"), sample.c.sequence.between(bindparam("first"), bindparam("last"))
)
# Under the lock of the series nothing is doubled; a failing disk may have lowered `last` in SQLite's file.
ADD_SAMPLES = insert(sample).prefix_with("OR IGNORE", dialect="sqlite")
COUNT_SAMPLES = (
    update(series)
    .where(series.c.id == _OF_ROW)
    .values(
        {name: series.c[name] + bindparam(f"new_{name}") for name in ("opening", "raw", "failed", "taken")}
    )
    .values({name: _larger(series.c[name], bindparam(f"new_{name}")) for name in ("last", "last_at")})
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
        (func.length(start.c.environment) + func.length(start.c.details)).label("bytes"),
    )
    .select_from(_STARTS_AND_SERIES)
    .where(
        _OF_CANARY,
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
    rows = select(*_NAMES, *start.c["id", "container", "image_key", "seen"]).order_by(
        start.c.began, start.c.id
    )
    return rows if services is None else rows.where(of_services(start, services))


def drop_orphans(table: Table, services: Collection[ServiceKey] | None) -> Delete:
    """Return the deletion of documents, or findings, of canaries that have no start; of these services, or of all."""
    key = tuple_(*table.c[_SERVICE], table.c.canary)
    orphans = delete(table).where(
        table.c.service != "", key.not_in(_CANARIES)
    )  # without a service: about all of them
    return orphans if services is None else orphans.where(of_services(table, services))


# Thinning (below: s3), leases and findings (s2) --------------------------------------------------------------------
