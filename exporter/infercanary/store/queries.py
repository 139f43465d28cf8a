"""SQL statements of the store, shared by SQLite and PostgreSQL.

Most statements are SQL text that both databases accept. SQLite has no FOR UPDATE, so SQLAlchemy builds the statements
that lock rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BindParameter, Text, bindparam, select, text
from sqlalchemy.types import TupleType

from infercanary.judge.model import ServiceKey
from infercanary.store.schema import series, start


def named(service: ServiceKey, **more: Any) -> dict[str, Any]:
    """Return parameters of a statement: the service's namespace and name, and ``more``."""
    return {"namespace": service.namespace, "service": service.name, **more}


def among(services: Collection[ServiceKey] | None) -> dict[str, Any]:
    """Return the parameters of a statement about some services, or about all services for None."""
    return {"everything": services is None, "services": [*map(tuple, services or ())]}


_SERVICES: BindParameter[Any] = bindparam("services", expanding=True, type_=TupleType(Text, Text))

# Age -------------------------------------------------------------------------------------------------------------

AGE = text("SELECT age FROM clock")
ADVANCE_CLOCK = text(
    "UPDATE clock SET now = :now, age = age + CASE WHEN :now - now BETWEEN 0 AND :day THEN :now - now ELSE 0 END"
)
"""Advance the store's age to a Unix time. A step back, or a step of more than a day, does not count."""
RESET_CLOCK = text(
    "UPDATE clock SET now = NULL, age = 0.0 "
    "WHERE typeof(age) <> 'real' OR typeof(now) NOT IN ('real', 'null') OR NOT abs(age) < 1e15"
)
"""Reset an impossible age (such as after a disk error). No store is older than 1e15 s."""
NOW = text("SELECT extract(epoch FROM now())")
"""Unix time of the database's own clock, for PostgreSQL."""

# Starts ----------------------------------------------------------------------------------------------------------

KNOWN = text(
    "SELECT coalesce(max(CASE WHEN last_at > began THEN last_at ELSE began END), 0), (SELECT body FROM start "
    "WHERE namespace = :namespace AND service = :service AND container = :container AND boot_id = :boot_id) "
    "FROM start LEFT JOIN series ON series.start = start.id "
    "WHERE namespace = :namespace AND service = :service AND container = :container"
)
"""Latest known time of a container (its last start or run; 0 if unknown), and the stored body of one start."""
PUT_START = text(
    "INSERT INTO start (namespace, service, container, boot_id, began, seen, host, image_id, image_digest, image_key, "
    "body) VALUES (:namespace, :service, :container, :boot_id, :began, :seen, :host, :image_id, :image_digest, "
    ":image_key, :body) ON CONFLICT (namespace, service, container, boot_id) DO UPDATE SET seen = excluded.seen, "
    "host = excluded.host, image_id = excluded.image_id, image_digest = excluded.image_digest, "
    "image_key = excluded.image_key, body = excluded.body, "
    "revision = start.revision + CASE WHEN start.body = excluded.body THEN 0 ELSE 1 END RETURNING id"
)
"""Insert or update a start. The revision increases only if the body changes."""
START = text(
    "SELECT body FROM start WHERE namespace = :namespace AND service = :service AND container = :container "
    "AND boot_id = :boot_id"
)
NEWEST_STARTS = text(
    "SELECT body FROM start JOIN (SELECT id, row_number() OVER (PARTITION BY container ORDER BY began DESC, id DESC) "
    "AS place FROM start WHERE namespace = :namespace AND service = :service) AS placed USING (id) WHERE place = 1"
)
_IDS: BindParameter[int] = bindparam("ids", expanding=True)
STARTS_BY_ID = text("SELECT id, body FROM start WHERE id IN :ids").bindparams(_IDS)
DROP_STARTS = text("DELETE FROM start WHERE id IN :ids").bindparams(_IDS)

# Runs ------------------------------------------------------------------------------------------------------------

LOCK_SERIES = (
    select(*series.c["canary", "id", "taken", "last", "through"])
    .where(series.c.start == bindparam("start"))
    .with_for_update()
)
ADD_SERIES = text("INSERT INTO series (start, canary) VALUES (:start, :canary) RETURNING id")
KNOWN_SEQUENCES = text(
    "SELECT sequence FROM sample WHERE series = :series AND sequence BETWEEN :first AND :last"
)
# The series is locked, so duplicates occur only if a disk error lowered `last` in SQLite's file.
ADD_SAMPLES = text(
    "INSERT INTO sample (series, sequence, tier, body) VALUES (:series, :sequence, :tier, :body) "
    "ON CONFLICT DO NOTHING"
)
COUNT_SAMPLES = text(
    "UPDATE series SET opening = opening + :opening, raw = raw + :raw, failed = failed + :failed, "
    "taken = taken + :opening + :raw, last = CASE WHEN last > :last THEN last ELSE :last END, "
    "last_at = CASE WHEN last_at > :last_at THEN last_at ELSE :last_at END WHERE id = :row"
)
LAST_RUNS = text(
    "SELECT namespace, service, container, canary, max(last_at) FROM start JOIN series ON series.start = start.id "
    "WHERE host = :host AND (image_id <> '' OR image_digest <> '') GROUP BY namespace, service, container, canary"
)
TAKEN = text(
    "SELECT container, boot_id, taken FROM start JOIN series ON series.start = start.id "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary"
)
SERIES_OF_CANARY = text(
    "SELECT container, image_key, last_at, taken, start, series.id, length(body) AS bytes, "
    "opening + raw + failed + first + blocks + hours AS rows FROM start JOIN series ON series.start = start.id "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary AND began >= :since "
    "AND container = coalesce(:container, container) AND opening + raw + failed + first + blocks + hours > 0 "
    "ORDER BY began, container, start.id"
)
SIZE = text("SELECT coalesce(sum(length(body)), 0) FROM sample WHERE series IN :ids").bindparams(_IDS)
BODIES = text("SELECT series, body FROM sample WHERE series IN :ids ORDER BY series, sequence").bindparams(
    _IDS
)
ENDS = text(
    "SELECT series, body FROM sample JOIN (SELECT series, sequence, "
    "sum(length(body)) OVER (PARTITION BY series ORDER BY sequence) AS size, "
    "sum(length(body)) OVER (PARTITION BY series) AS total FROM sample WHERE series IN :ids) AS sizes "
    "USING (series, sequence) WHERE size <= :half OR size > total - :half ORDER BY series, sequence"
).bindparams(_IDS)
"""First and last rows of each series, up to ``half`` bytes at either end."""

CANARIES = text(
    "SELECT DISTINCT namespace, service, canary FROM start JOIN series ON series.start = start.id "
    "WHERE (:everything OR (namespace, service) IN :services)"
).bindparams(_SERVICES)

# Documents -------------------------------------------------------------------------------------------------------

ADD_DOCUMENT = text(
    "INSERT INTO document (namespace, service, canary, kind, number, at, body) "
    "SELECT :namespace, :service, :canary, :kind, coalesce(max(number), 0) + 1, :at, :body FROM document "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary AND kind = :kind RETURNING number"
)
FORGET_DOCUMENTS = text(
    "DELETE FROM document WHERE namespace = :namespace AND service = :service AND canary = :canary AND kind = :kind "
    "AND number <= :number"
)
HISTORY = text(
    "SELECT at, body FROM document "
    "WHERE namespace = :namespace AND service = :service AND canary = :canary AND kind = :kind ORDER BY number"
)

# Sweeping --------------------------------------------------------------------------------------------------------

RECORDS = text(
    "SELECT namespace, service, start.id, container, image_key, seen, count(series.id) AS canaries "
    "FROM start LEFT JOIN series ON series.start = start.id "
    "WHERE (:everything OR (namespace, service) IN :services) GROUP BY start.id ORDER BY began, start.id"
).bindparams(_SERVICES)
"""One row for each start, with the columns that :func:`.retention.expired` needs."""
DROP_ORPHANS = [
    text(
        f"DELETE FROM {table} WHERE service <> '' AND (:everything OR (namespace, service) IN :services) "  # noqa: S608 - constants
        "AND (namespace, service, canary) NOT IN "
        "(SELECT namespace, service, canary FROM start JOIN series ON series.start = start.id)"
    ).bindparams(_SERVICES)
    for table in ("document", "finding")
]
"""Drop documents and findings of canaries without a start. Rows without a service name concern all services, and stay.
"""

# Thinning --------------------------------------------------------------------------------------------------------

SERIES_OF_CONTAINER = (
    select(series, start.c.image_key)
    .select_from(start.join(series))
    .where(*(start.c[name] == bindparam(name) for name in ("namespace", "service", "container")))
    .order_by(series.c.canary, start.c.began.desc(), start.c.id.desc())
    .with_for_update(of=series)
)
OLDEST = text(
    "SELECT sequence, body FROM sample WHERE series = :series AND tier = :tier ORDER BY sequence LIMIT :count"
)
DROP_OLDEST = text("DELETE FROM sample WHERE series = :series AND tier = :tier AND sequence <= :last")
COUNT_REPLACED = text(
    "UPDATE series SET opening = opening + :opening, raw = raw + :raw, failed = failed + :failed, "
    "first = first + :first, blocks = blocks + :blocks, hours = hours + :hours, thinned = thinned + 1, "
    "through = CASE WHEN through > :last THEN through ELSE :last END WHERE id = :series"
)

# Leases and findings, in PostgreSQL ------------------------------------------------------------------------------

SERVICES = text("SELECT namespace, service FROM lease WHERE expires > extract(epoch FROM now())")
"""Services with a valid lease of any exporter."""
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
"""Renew the leases of this process and, if ``takes`` is true, take free leases.

A process may run this statement on two connections at the same time, so rows are locked in a fixed order. now() is the
time at which the statement began. So after waiting for a lock, the statement takes too few leases rather than too many.
Rows of other holders are not locked.
"""
CLAIM = text(
    "SELECT fence FROM lease WHERE namespace = :namespace AND service = :service AND holder = :holder "
    "AND fence = :fence AND expires > extract(epoch FROM now()) FOR UPDATE"
)
"""Lock a lease of this process until the transaction ends. Other processes wait for the lease."""
PUT_FINDING = text(
    "INSERT INTO finding (namespace, service, canary, number, at, body, taught) "
    "SELECT namespace, service, :canary, 1, :at, :body, :taught FROM lease "
    "WHERE namespace = :namespace AND service = :service AND holder = :holder AND fence = :fence "
    "AND expires > extract(epoch FROM now()) FOR UPDATE "
    "ON CONFLICT (namespace, service, canary) DO UPDATE SET number = finding.number + 1, at = excluded.at, "
    "body = excluded.body, taught = excluded.taught RETURNING namespace, service, number"
)
"""Insert or replace a finding. Without this process's lease, the statement returns no row and changes nothing. The
finding's number increases at each change.
"""
TAUGHT = text("SELECT namespace, service, canary, taught FROM finding WHERE length(taught) > 0")
RUNNING = text(
    "SELECT body FROM start WHERE namespace = :namespace AND service = :service "
    "AND EXISTS (SELECT 1 FROM series WHERE series.start = start.id AND last_at >= (SELECT max(last_at) - :gone "
    "FROM start JOIN series ON series.start = start.id WHERE namespace = :namespace AND service = :service)) "
    "AND EXISTS (SELECT 1 FROM lease WHERE namespace = :namespace AND service = :service "
    "AND expires > extract(epoch FROM now())) ORDER BY began, container, id"
)
FINDING_NUMBERS = text(
    "SELECT namespace, service, canary, number FROM finding WHERE (:everything OR (namespace, service) IN :services)"
).bindparams(_SERVICES)
FINDINGS = text(
    "SELECT namespace, service, canary, body FROM finding WHERE (namespace, service, canary) IN :canaries"
).bindparams(bindparam("canaries", expanding=True, type_=TupleType(Text, Text, Text)))
COUNTS = text(
    "SELECT namespace, service, canary, count(*), sum(series.id), sum(taken), sum(failed), sum(thinned), sum(revision) "
    "FROM start JOIN series ON series.start = start.id "
    "WHERE (:everything OR (namespace, service) IN :services) GROUP BY namespace, service, canary"
).bindparams(_SERVICES)
"""Sums by canary. At least one sum changes with each change of the canary's starts or runs. The summed numbers of a row
never decrease, except ``failed``; ``thinned`` increases whenever ``failed`` decreases. New rows have larger ids than
dropped rows.
"""
