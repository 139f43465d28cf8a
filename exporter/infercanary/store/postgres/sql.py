"""All SQL of the PostgreSQL store, and nothing but SQL.

Only what distributed engines with PostgreSQL's protocol have too; tests/unit/store/test_postgres_sql.py holds this
module to a list of statements and functions. Keys begin with the service, so that a service's rows are on one shard and
services spread. Identifiers of services, starts and series are digests that the exporter computes
(:mod:`.keys`).
"""

# ruff: noqa: S608 - all parts are constants of this module; what is given is bound by name
from __future__ import annotations

# Schema ----------------------------------------------------------------------------------------------------------

CREATE_VERSION = (
    "CREATE TABLE IF NOT EXISTS schema_version (id smallint PRIMARY KEY, version integer NOT NULL)",
    "INSERT INTO schema_version (id, version) VALUES (1, 0) ON CONFLICT (id) DO NOTHING",
)
VERSION = "SELECT version FROM schema_version WHERE id = 1"
LOCK_VERSION = "SELECT version FROM schema_version WHERE id = 1 FOR UPDATE"
SET_VERSION = "UPDATE schema_version SET version = %(version)s WHERE id = 1"

_CREATE = (
    # began: started_at, or later than that of the container's start before. seen: Unix seconds, by the database's
    # clock. revision is counted up at each change.
    """CREATE TABLE generation (
        service uuid NOT NULL, start uuid NOT NULL, namespace text NOT NULL, name text NOT NULL,
        container text NOT NULL, boot_id text NOT NULL, started_at double precision NOT NULL,
        began double precision NOT NULL, seen double precision NOT NULL,
        revision bigint NOT NULL DEFAULT 0, host text NOT NULL, image text NOT NULL,
        image_id text NOT NULL, image_digest text NOT NULL, image_key text NOT NULL, environment bytea NOT NULL,
        details bytea NOT NULL, PRIMARY KEY (service, start)
    )""",
    "CREATE INDEX generation_host ON generation (host)",
    "CREATE TABLE environment (service uuid NOT NULL, digest bytea NOT NULL, body bytea NOT NULL, "
    "PRIMARY KEY (service, digest))",
    # As the columns of the SQLite file. last: the highest sequence that was taken; thinned: how often rows were
    # replaced.
    """CREATE TABLE series (
        service uuid NOT NULL, series uuid NOT NULL, start uuid NOT NULL, canary text NOT NULL,
        first_at double precision NOT NULL, last_at double precision NOT NULL DEFAULT 0,
        last bigint NOT NULL DEFAULT -1,
        merged_through bigint NOT NULL DEFAULT -1, failed_through bigint NOT NULL DEFAULT -1,
        opening bigint NOT NULL DEFAULT 0, raw bigint NOT NULL DEFAULT 0, failed bigint NOT NULL DEFAULT 0,
        first bigint NOT NULL DEFAULT 0, blocks bigint NOT NULL DEFAULT 0, hours bigint NOT NULL DEFAULT 0,
        taken bigint NOT NULL DEFAULT 0, thinned bigint NOT NULL DEFAULT 0, PRIMARY KEY (service, series),
        FOREIGN KEY (service, start) REFERENCES generation (service, start) ON DELETE CASCADE
    )""",
    "CREATE TABLE sample (service uuid NOT NULL, series uuid NOT NULL, sequence bigint NOT NULL, "
    "tier smallint NOT NULL, body bytea NOT NULL, PRIMARY KEY (service, series, sequence))",
    "CREATE TABLE document (service uuid NOT NULL, kind text NOT NULL, canary text NOT NULL, number bigint NOT NULL, "
    "at double precision NOT NULL, fence bigint NOT NULL, body bytea NOT NULL, "
    "PRIMARY KEY (service, kind, canary, number))",
    "CREATE TABLE finding (service uuid NOT NULL, canary text NOT NULL, number bigint NOT NULL, "
    "at double precision NOT NULL, fence bigint NOT NULL, holder text NOT NULL, body bytea NOT NULL, "
    "taught bytea NOT NULL, PRIMARY KEY (service, canary))",
    "CREATE TABLE lease (service uuid NOT NULL, namespace text NOT NULL, name text NOT NULL, holder text NOT NULL, "
    "fence bigint NOT NULL, expires timestamp with time zone NOT NULL, PRIMARY KEY (service))",
)

# Step k brings a database of schema k to k + 1, in a transaction of its own. One that was released is never changed.
STEPS: tuple[tuple[str, ...], ...] = (_CREATE,)

SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
NOW = "SELECT extract(epoch FROM now())::double precision"

# Starts ----------------------------------------------------------------------------------------------------------

START = (
    "SELECT image, image_id, image_digest, image_key, host, environment, details FROM generation "
    "WHERE service = %(service)s AND start = %(start)s FOR UPDATE"
)
LATEST = (
    "SELECT max(greatest(g.began, s.last_at)) FROM generation g LEFT JOIN series s "
    "ON s.service = g.service AND s.start = g.start WHERE g.service = %(service)s AND g.container = %(container)s"
)
ADD_ENVIRONMENT = (
    "INSERT INTO environment (service, digest, body) VALUES (%(service)s, %(digest)s, %(body)s) "
    "ON CONFLICT (service, digest) DO NOTHING"
)
ADD_START = (
    "INSERT INTO generation (service, start, namespace, name, container, boot_id, started_at, began, seen, "
    "image, image_id, image_digest, image_key, host, environment, details) VALUES (%(service)s, %(start)s, "
    "%(namespace)s, %(name)s, %(container)s, %(boot_id)s, %(started_at)s, %(began)s, extract(epoch FROM now()), "
    "%(image)s, %(image_id)s, %(image_digest)s, %(image_key)s, %(host)s, %(environment)s, %(details)s) "
    "ON CONFLICT (service, start) DO NOTHING"
)
CHANGE_START = (
    "UPDATE generation SET image = %(image)s, image_id = %(image_id)s, image_digest = %(image_digest)s, "
    "image_key = %(image_key)s, host = %(host)s, environment = %(environment)s, details = %(details)s, "
    "revision = revision + 1 WHERE service = %(service)s AND start = %(start)s"
)
SEEN = (
    "UPDATE generation SET seen = extract(epoch FROM now()) WHERE service = %(service)s AND start = %(start)s"
)
_COLUMNS = (
    "SELECT g.start, g.revision, g.began, g.namespace, g.name, g.container, g.boot_id, g.started_at, g.image, "
    "g.image_id, g.image_digest, e.body, g.details FROM generation g "
    "JOIN environment e ON e.service = g.service AND e.digest = g.environment WHERE g.service = %(service)s"
)
STARTS = f"{_COLUMNS} AND g.start = ANY(%(starts)s)"
REVISIONS = "SELECT start, revision FROM generation WHERE service = %(service)s"
REVISIONS_OF_CONTAINER = f"{REVISIONS} AND container = %(container)s"

# Series and runs -------------------------------------------------------------------------------------------------

CANARIES_OF_START = "SELECT canary FROM series WHERE service = %(service)s AND start = %(start)s"
ADD_SERIES = (
    "INSERT INTO series (service, series, start, canary, first_at) "
    "VALUES (%(service)s, %(series)s, %(start)s, %(canary)s, %(first_at)s) ON CONFLICT (service, series) DO NOTHING"
)
LOCK_SERIES = (
    "SELECT series, taken, last, merged_through, failed_through FROM series "
    "WHERE service = %(service)s AND series = ANY(%(series)s) ORDER BY series FOR UPDATE"
)
KNOWN_SEQUENCES = (
    "SELECT series, sequence FROM sample WHERE service = %(service)s AND series = ANY(%(series)s) "
    "AND sequence = ANY(%(sequences)s)"
)
ADD_SAMPLES = (
    "INSERT INTO sample (service, series, sequence, tier, body) "
    "SELECT %(service)s::uuid, new.series, new.sequence, new.tier, new.body FROM "
    "unnest(%(series)s::uuid[], %(sequences)s::bigint[], %(tiers)s::smallint[], %(bodies)s::bytea[]) "
    "AS new (series, sequence, tier, body)"
)
COUNT_SAMPLES = (
    "UPDATE series SET opening = series.opening + new.opening, raw = series.raw + new.raw, "
    "failed = series.failed + new.failed, taken = series.taken + new.opening + new.raw, "
    "last = greatest(series.last, new.last), last_at = greatest(series.last_at, new.last_at) FROM "
    "unnest(%(series)s::uuid[], %(opening)s::bigint[], %(raw)s::bigint[], %(failed)s::bigint[], %(last)s::bigint[], "
    "%(last_at)s::double precision[]) AS new (series, opening, raw, failed, last, last_at) "
    "WHERE series.service = %(service)s AND series.series = new.series"
)
COUNTS = (
    "SELECT series, start, canary, taken, thinned, opening + raw + failed + first + blocks + hours, first_at, last_at "
    "FROM series WHERE service = %(service)s"
)
COUNTS_OF_SERIES = f"{COUNTS} AND series = ANY(%(series)s)"
COUNTS_OF_STARTS = f"{COUNTS} AND start = ANY(%(starts)s)"
SAMPLES = (
    "SELECT sample.series, sequence, body FROM "
    "unnest(%(series)s::uuid[], %(after)s::bigint[]) AS known (series, after) "
    "JOIN sample ON sample.service = %(service)s AND sample.series = known.series AND sample.sequence > known.after "
    "ORDER BY sample.series, sequence"
)
CANARIES = (
    "SELECT DISTINCT g.namespace, g.name, s.canary FROM series s "
    "JOIN generation g ON g.service = s.service AND g.start = s.start"
)
CANARIES_OF_SERVICES = f"{CANARIES} WHERE s.service = ANY(%(services)s)"
LAST_RUNS_OF_STARTS = "SELECT start, max(last_at) FROM series WHERE service = %(service)s GROUP BY start"
LAST_RUNS = (
    "SELECT g.namespace, g.name, g.container, s.canary, max(s.last_at) FROM series s "
    "JOIN generation g ON g.service = s.service AND g.start = s.start "
    "WHERE g.host = %(host)s AND (g.image_id <> '' OR g.image_digest <> '') "
    "GROUP BY g.namespace, g.name, g.container, s.canary"
)

# Retention -------------------------------------------------------------------------------------------------------

STARTS_OF_CONTAINER = (
    "SELECT start, image_key FROM generation WHERE service = %(service)s AND container = %(container)s "
    "ORDER BY began FOR UPDATE"
)
SERIES_OF_CONTAINER = (
    "SELECT s.series, s.canary, g.image_key, s.first_at, s.merged_through, s.failed_through, s.opening, s.raw, "
    "s.failed, s.first, s.blocks, s.hours FROM generation g "
    "JOIN series s ON s.service = g.service AND s.start = g.start "
    "WHERE g.service = %(service)s AND g.container = %(container)s ORDER BY s.canary, g.began DESC FOR UPDATE OF s"
)
OLDEST = (
    "SELECT sequence, body FROM sample WHERE service = %(service)s AND series = %(series)s AND sequence > %(after)s "
    "AND tier = %(tier)s ORDER BY sequence LIMIT %(count)s"
)
DROP_SAMPLES = (
    "DELETE FROM sample WHERE service = %(service)s AND series = %(series)s AND sequence = ANY(%(sequences)s)"
)
SET_COUNTS = (
    "UPDATE series SET merged_through = %(merged_through)s, failed_through = %(failed_through)s, "
    "opening = %(opening)s, raw = %(raw)s, failed = %(failed)s, first = %(first)s, blocks = %(blocks)s, "
    "hours = %(hours)s, thinned = thinned + 1 WHERE service = %(service)s AND series = %(series)s"
)
LOCK_SERIES_OF_STARTS = (
    "SELECT series FROM series WHERE service = %(service)s AND start = ANY(%(starts)s) FOR UPDATE"
)
DROP_SAMPLES_OF_SERIES = "DELETE FROM sample WHERE service = %(service)s AND series = ANY(%(series)s)"
DROP_STARTS = "DELETE FROM generation WHERE service = %(service)s AND start = ANY(%(starts)s)"
EMPTY_STARTS = (
    "SELECT start FROM generation WHERE service = %(service)s AND container = %(container)s AND began < "
    "(SELECT max(began) FROM generation WHERE service = %(service)s AND container = %(container)s) AND NOT EXISTS "
    "(SELECT 1 FROM series s WHERE s.service = generation.service AND s.start = generation.start "
    "AND s.opening + s.raw + s.failed + s.first + s.blocks + s.hours > 0)"
)
RECORDS = (
    "SELECT start, container, image_key, seen FROM generation WHERE service = %(service)s "
    "ORDER BY began, container, boot_id"
)
DROP_UNUSED_ENVIRONMENTS = (
    "DELETE FROM environment WHERE service = %(service)s AND NOT EXISTS (SELECT 1 FROM generation g "
    "WHERE g.service = environment.service AND g.environment = environment.digest)"
)
DROP_DOCUMENTS = (
    "DELETE FROM document WHERE service = %(service)s AND NOT EXISTS (SELECT 1 FROM series s "
    "WHERE s.service = document.service AND s.canary = document.canary)"
)
DROP_FINDINGS = (
    "DELETE FROM finding WHERE service = %(service)s AND NOT EXISTS (SELECT 1 FROM series s "
    "JOIN generation g ON g.service = s.service AND g.start = s.start "
    "WHERE s.service = finding.service AND s.canary = finding.canary)"
)

# Leases, findings, documents -------------------------------------------------------------------------------------

# A statement by itself: now() is when it began, so one that waited for a row's lock finds less expired, not more.
RENEW = (
    "UPDATE lease SET expires = now() + %(seconds)s * interval '1 second' "
    "WHERE service = ANY(%(services)s) AND holder = %(holder)s AND expires > now() RETURNING service, fence"
)
HELD = "SELECT service FROM lease WHERE service = ANY(%(services)s) AND expires > now()"
SERVICES = "SELECT namespace, name FROM lease WHERE expires > now()"
TAKE = (
    "INSERT INTO lease (service, namespace, name, holder, fence, expires) "
    "VALUES (%(service)s, %(namespace)s, %(name)s, %(holder)s, 1, now() + %(seconds)s * interval '1 second') "
    "ON CONFLICT (service) DO UPDATE "
    "SET holder = excluded.holder, fence = lease.fence + 1, expires = excluded.expires "
    "WHERE lease.expires <= now() RETURNING fence"
)
GIVE_BACK = "UPDATE lease SET expires = now() WHERE service = ANY(%(services)s) AND holder = %(holder)s"
# Whoever writes about a service locks its lease in the same statement: another holder waits, or nothing is written.
_MINE = (
    "WITH mine AS (SELECT service FROM lease WHERE service = %(service)s AND holder = %(holder)s "
    "AND fence = %(fence)s AND expires > now() FOR UPDATE) "
)
PUT_FINDING = (
    f"{_MINE} INSERT INTO finding (service, canary, number, at, fence, holder, body, taught) "
    "SELECT mine.service, %(canary)s::text, 1, %(at)s, %(fence)s, %(holder)s::text, %(body)s, %(taught)s FROM mine "
    "ON CONFLICT (service, canary) DO UPDATE SET number = finding.number + 1, at = excluded.at, "
    "fence = excluded.fence, holder = excluded.holder, body = excluded.body, taught = excluded.taught "
    "RETURNING number"
)
SAVE = (
    f"{_MINE} INSERT INTO document (service, kind, canary, number, at, fence, body) "
    "SELECT mine.service, %(kind)s::text, %(canary)s::text, coalesce((SELECT max(number) FROM document "
    "WHERE service = %(service)s AND kind = %(kind)s AND canary = %(canary)s), 0) + 1, %(at)s, %(fence)s, %(body)s "
    "FROM mine RETURNING number"
)
FORGET_DOCUMENTS = (
    "DELETE FROM document WHERE service = %(service)s AND kind = %(kind)s AND canary = %(canary)s "
    "AND number <= %(number)s"
)
HISTORY = (
    "SELECT at, body FROM document WHERE service = %(service)s AND kind = %(kind)s AND canary = %(canary)s "
    "ORDER BY number"
)
FINDING_NUMBERS = "SELECT service, canary, number FROM finding WHERE service = ANY(%(services)s)"
FINDING = "SELECT body FROM finding WHERE service = %(service)s AND canary = %(canary)s"
TAUGHT = (
    "SELECT l.namespace, l.name, f.canary, f.taught FROM finding f JOIN lease l ON l.service = f.service "
    "WHERE length(f.taught) > 0"
)
