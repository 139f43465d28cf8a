"""What is of PostgreSQL alone: the schema, leases, reading what others wrote, and what goes wrong with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from infercanary.store.kinds import check, open_store
from postgres import PASSWORD, Postgres

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store import migrate, retention
from infercanary.store.base import LeaseLost, StoredFinding, StoreError
from infercanary.store.postgres import Location, PostgresStore, sql
from infercanary.store.retention import Retention

SEARCH, RANK = ServiceKey("", "search"), ServiceKey("prod", "rank")
T = 1_790_000_000.0


def start(container: str = "a", boot: str = "b", image_id: str = "") -> Generation:
    return Generation(service="search", container=container, boot_id=boot, started_at=T, image_id=image_id)


def runs(*bounds: int, canary: str = "c") -> list[Sample]:
    return [Sample(n, canary, T + 10 * n, "ok", 0.01 + n * 1e-6) for n in range(*bounds)]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def stores(url: str) -> Iterator[list[PostgresStore]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(PostgresStore(Location.of(url)))) for _ in range(3)]


# The schema ------------------------------------------------------------------------------------------------------


def test_ten_that_start_together_make_one_schema(url: str, postgres: Postgres) -> None:
    failed: list[BaseException] = []

    def open_it() -> None:
        try:
            with closing(PostgresStore(Location.of(url))) as store:
                barrier.wait()
                store.canaries()
        except BaseException as error:
            failed.append(error)

    barrier = threading.Barrier(10)
    threads = [threading.Thread(target=open_it) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert postgres.sql("SELECT version FROM schema_version", url) == str(len(sql.STEPS))


def test_a_newer_schema_is_refused_in_one_line(url: str, postgres: Postgres) -> None:
    with closing(open_store(url)) as store:
        store.canaries()
    postgres.sql("UPDATE schema_version SET version = 7", url)
    with closing(open_store(url)) as store, pytest.raises(StoreError) as caught:
        store.canaries()
    known = len(sql.STEPS)
    assert f"written by a newer InferCanary (schema 7, this one knows {known}); upgrade this one" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


def test_a_role_with_the_grants_of_the_docs_does_all_and_may_not_drop(
    url: str, postgres: Postgres, tmp_path: Path
) -> None:
    assert migrate.main([url]) == 0
    grants = (
        (Path(__file__).parents[3] / "docs" / "fleet.md")
        .read_text()
        .partition("```sql\n")[2]
        .partition("```")[0]
    )
    database = Location.of(url).shown.rpartition("/")[2]
    postgres.sql("DROP ROLE IF EXISTS infercanary")
    postgres.sql(
        grants.replace("DATABASE infercanary", f"DATABASE {database}").replace("'…'", f"'{PASSWORD}'"), url
    )
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    named = f"postgresql://infercanary@127.0.0.1:{postgres.port}/{database}?password_file={file}"
    with closing(PostgresStore(Location.of(named))) as store:
        assert store.fleet.hold({SEARCH}) == {SEARCH}
        assert store.take(start(), runs(1, 200)) == 199
        store.thin(T)
        store.save(SEARCH, "c", "verdict", T, b"{}")
        store.fleet.put_finding(SEARCH, "c", T, b"f", b"")
        for statement in ("DROP TABLE sample", "CREATE TABLE mine ()"):
            with pytest.raises(StoreError, match=r"lacks a right; docs/fleet\.md has the grants"):
                store.session.run(statement)
    other = named.replace(database, "postgres")
    with (
        closing(PostgresStore(Location.of(other))) as store,
        pytest.raises(StoreError, match="permission denied"),
    ):
        store.canaries()


# Where it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["postgresql://me:secret@db/x", "postgresql://me@db/x?password=secret"])
def test_a_password_in_the_url_is_refused_and_not_shown(bad: str) -> None:
    with pytest.raises(StoreError, match=r"postgresql://db/x: the password is in the URL") as caught:
        check(bad)
    assert "secret" not in str(caught.value)


def test_a_parameter_that_libpq_does_not_know_is_one_line() -> None:
    with pytest.raises(StoreError, match=r'postgresql://db/x: invalid .* parameter: "sslmod"'):
        check("postgresql://me@db/x?sslmod=require")


def test_a_password_that_is_changed_is_read_at_the_next_try(
    url: str, postgres: Postgres, tmp_path: Path
) -> None:
    postgres.sql("DROP ROLE IF EXISTS changing")
    postgres.sql("CREATE ROLE changing LOGIN SUPERUSER PASSWORD 'old'")
    file = tmp_path / "password"
    database = Location.of(url).shown.rpartition("/")[2]
    location = f"postgresql://changing@127.0.0.1:{postgres.port}/{database}?password_file={file}"
    with closing(open_store(location)) as store:
        with pytest.raises(StoreError, match=r"password_file .*: No such file"):
            store.canaries()
        file.write_text("old")
        assert store.canaries() == []
        postgres.sql("ALTER ROLE changing PASSWORD 'new'")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'changing'")
        for _ in range(2):  # the first one is of the connection that ended
            with pytest.raises(StoreError) as caught:
                store.canaries()
        assert "the password was refused; it is read from the file again at each try" in str(caught.value)
        file.write_text("new\n")
        assert store.take(start(), runs(1, 3)) == 2


def test_a_server_that_is_paused_is_given_up(
    url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infercanary.store.postgres.session._CALL_SECONDS", 0.5)
    with closing(PostgresStore(Location.of(url))) as store:
        store.canaries()
        store.session.rows(sql.NOW)
        before = time.monotonic()
        with pytest.raises(StoreError):
            store.session.rows("SELECT pg_sleep(30)")
        assert time.monotonic() - before < 10
        assert store.take(start(), runs(1, 3)) == 2


def test_a_server_that_is_not_there_is_one_line() -> None:
    with closing(open_store("postgresql://me@127.0.0.1:1/x")) as store, pytest.raises(StoreError) as caught:
        store.canaries()
    assert "postgresql://127.0.0.1:1/x: connection failed" in str(caught.value) and "refused" in str(
        caught.value
    )


def test_a_lease_of_no_length_is_one_line() -> None:
    with pytest.raises(StoreError, match="lease_seconds: '0' is not a number from 1 to 600"):
        check("postgresql://me@db/x?lease_seconds=0")


# Leases ----------------------------------------------------------------------------------------------------------


def test_a_service_has_one_holder_until_its_lease_ends(
    stores: list[PostgresStore], url: str, postgres: Postgres
) -> None:
    first, second, _ = (store.fleet for store in stores)
    assert first.hold({SEARCH, RANK}) == {SEARCH, RANK}
    assert second.hold({SEARCH, RANK}) == set()
    assert first.hold({SEARCH}) == {SEARCH}
    first.give_back({SEARCH})
    assert second.hold({SEARCH, RANK}) == {SEARCH}
    postgres.sql("UPDATE lease SET expires = now()", url)
    assert first.hold({SEARCH, RANK}) == {SEARCH, RANK}
    assert second.hold({SEARCH, RANK}) == set()
    fences = postgres.sql("SELECT name || ' ' || fence FROM lease ORDER BY name", url).split("\n")
    assert fences == ["rank 2", "search 3"], "each change of holder counts up; a lease that ended is one"


def test_one_that_slept_writes_nothing(stores: list[PostgresStore], url: str, postgres: Postgres) -> None:
    slept, awake, _ = stores
    slept.fleet.hold({SEARCH})
    slept.fleet.put_finding(SEARCH, "c", T, b"before", b"")
    postgres.sql("UPDATE lease SET expires = now()", url)
    with pytest.raises(LeaseLost, match="search: another exporter judges it by now"):
        slept.fleet.put_finding(SEARCH, "c", T, b"late", b"")
    awake.fleet.hold({SEARCH})
    awake.fleet.put_finding(SEARCH, "c", T, b"after", b"")
    for write in (
        lambda: slept.fleet.put_finding(SEARCH, "c", T, b"late", b""),
        lambda: slept.save(SEARCH, "c", "verdict", T, b"late"),
    ):
        slept.fleet.held[SEARCH] = 1  # as if it did not know
        with pytest.raises(LeaseLost):
            write()
    assert awake.history(SEARCH, "c", "verdict") == []
    assert stores[2].fleet.findings([SEARCH]) == [StoredFinding(SEARCH, "c", b"after")]
    assert stores[2].fleet.findings([SEARCH]) == [], "it did not change since"
    assert postgres.sql("SELECT number || ' ' || fence FROM finding", url) == "2 2"


def test_many_that_want_a_lease_together_do_not_get_it_twice(url: str, postgres: Postgres) -> None:
    services = {ServiceKey("", f"s-{n}") for n in range(20)}
    with ExitStack() as stack:
        each = [stack.enter_context(closing(PostgresStore(Location.of(url)))) for _ in range(6)]
        held: list[set[ServiceKey]] = [set()] * len(each)

        def want(number: int) -> None:
            barrier.wait()
            held[number] = each[number].fleet.hold(services)

        for round_ in range(5):
            barrier = threading.Barrier(len(each))
            threads = [threading.Thread(target=want, args=(n,)) for n in range(len(each))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(map(len, held)) == len(services) and set().union(*held) == services
            postgres.sql("UPDATE lease SET expires = now()", url)
            assert postgres.sql("SELECT DISTINCT fence FROM lease", url) == str(round_ + 1)


def test_services_are_those_that_somebody_judges(
    stores: list[PostgresStore], url: str, postgres: Postgres
) -> None:
    first, second, reader = (store.fleet for store in stores)
    first.hold({SEARCH})
    second.hold({RANK})
    assert reader.services() == {SEARCH, RANK}
    second.give_back({RANK})
    assert reader.services() == {SEARCH}


def test_what_all_services_teach_is_read_by_any(stores: list[PostgresStore]) -> None:
    first, second, reader = (store.fleet for store in stores)
    first.hold({SEARCH})
    second.hold({RANK})
    first.put_finding(SEARCH, "c", T, b"f", b"before")
    first.put_finding(SEARCH, "c", T, b"f", b"lesson")
    first.put_finding(SEARCH, "d", T, b"f", b"")
    second.put_finding(RANK, "c", T, b"f", b"another")
    assert sorted(reader.taught()) == [
        StoredFinding(SEARCH, "c", b"lesson"),
        StoredFinding(RANK, "c", b"another"),
    ]
    first.put_finding(SEARCH, "c", T, b"f", b"")  # its restarts are no longer kept
    assert reader.taught() == [StoredFinding(RANK, "c", b"another")]


# Reading what others wrote ---------------------------------------------------------------------------------------


def test_only_what_is_new_is_read_whatever_the_order_of_commits(
    stores: list[PostgresStore], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other, judge = stores

    def seen() -> list[int]:
        judge.fleet.refresh({SEARCH})
        return [s.sequence for _, found in judge.generations(SEARCH, "c") for s in found]

    writer.take(start(), runs(10, 20))
    assert seen() == [*range(10, 20)]
    with writer.transaction():  # begins first, and commits last
        writer.take(start("z"), runs(0, 5))
        other.take(start("b"), runs(20, 25))
        assert seen() == [*range(10, 20), *range(20, 25)]
    assert seen() == [*range(10, 20), *range(20, 25), *range(5)]
    fetched: list[int] = []
    real = judge.session.rows

    def rows(statement: str, **given: object) -> list[tuple[object, ...]]:
        found = real(statement, **given)
        if statement == sql.SAMPLES:
            fetched.append(len(found))
        return found

    monkeypatch.setattr(judge.session, "rows", rows)
    writer.take(start(), runs(20, 22))
    assert seen()[:12] == [*range(10, 22)]
    assert fetched == [2], "what is known is not read again"
    writer.take(start(), runs(5, 10))  # late, out of a journal
    assert seen()[:17] == [*range(5, 22)]
    writer.take(start(), runs(22, 400))
    small = PostgresStore(
        Location.of(url), Retention(opening=24, opening_starts=1, raw=36, slack=12, blocks=5)
    )
    with closing(small):
        small.take(start(), runs(399, 401))
        before = len(seen())
        small.thin(T)
        assert before - len(seen()) > 50
    count = len(seen())
    with psycopg.connect(url) as db:
        [(rows_there,)] = db.execute("SELECT count(*) FROM sample").fetchall()
    assert count == rows_there


def test_a_mirror_holds_no_more_than_it_may(
    stores: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infercanary.store.postgres.store._MOST_READ_BYTES", 1000)
    writer, judge, _ = stores
    for canary in ("c", "d"):
        writer.take(start(), runs(1, 100, canary=canary))
    judge.fleet.refresh({SEARCH})
    for canary in ("c", "d", "c"):
        assert [len(found) for _, found in judge.generations(SEARCH, canary)] == [99]
        held = {one.canary for one in judge.fleet.mirrors[SEARCH].series.values() if one.bodies}
        assert held == {canary}


def test_what_belongs_to_nothing_any_more_goes(
    stores: list[PostgresStore], url: str, postgres: Postgres
) -> None:
    store = stores[0]
    store.fleet.hold({SEARCH})
    for number in range(4):
        store.take(start(f"pod-{number}", image_id=f"sha256:{number}"), runs(1, 50))
    store.fleet.put_finding(SEARCH, "c", T, b"f", b"")
    store.save(SEARCH, "c", "verdict", T, b"v")
    postgres.sql("UPDATE generation SET seen = 0", url)
    store._keep = Retention(images=2)
    store.thin(T)
    assert [g.container for g in store.starts(SEARCH)] == ["pod-2", "pod-3"]
    assert len(store.history(SEARCH, "c", "verdict")) == 1
    assert retention.DAY_SECONDS == 86_400
