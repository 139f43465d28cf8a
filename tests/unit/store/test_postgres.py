"""What is of PostgreSQL alone: where it is, leases, reading what others wrote, and what goes wrong with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from postgres import Postgres
from sqlalchemy import text
from stores import starts_of

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store.base import LeaseLost, StoreAway, StoreError
from infercanary.store.fleet import Fleet
from infercanary.store.location import Location
from infercanary.store.postgres import PostgresDatabase
from infercanary.store.retention import Retention
from infercanary.store.store import Store, check, open_store

SEARCH, RANK = ServiceKey("", "search"), ServiceKey("prod", "rank")
T = 1_790_000_000.0


def start(container: str = "a", **more: object) -> Generation:
    known = Generation(service="search", container=container, boot_id="b", started_at=T)
    return msgspec.structs.replace(known, **more)


def runs(*bounds: int, canary: str = "c") -> list[Sample]:
    return [Sample(n, canary, T + 10 * n, "ok", 0.01 + n * 1e-6) for n in range(*bounds)]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def stores(url: str) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_store(url))) for _ in range(3)]


@pytest.fixture
def fleets(stores: list[Store]) -> list[Fleet]:
    return [store.fleet for store in stores if store.fleet is not None]


# Where it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("postgresql://me:secret@db/x", "postgresql://db/x: the password is in the URL"),
        ("postgresql://me@db/x?password=secret", "postgresql://db/x: the password is in the URL"),
        ("postgresql://me:se/cret@db/x", "the password is in the URL"),
        ("postgresql://me@db/x?sslmod=require", 'postgresql://db/x: invalid URI query parameter: "sslmod"'),
        ("postgresql://me@db/x?lease_seconds=0", "lease_seconds: '0' is not a number from 1 to 600"),
        ("postgresql://me@db/x?lease_seconds=soon", "lease_seconds: 'soon' is not a number from 1 to 600"),
        ("postgresql://me@[db/x", "IPv6 host address"),
        ("postgresql://me:se?cret@db/x", "the password is in the URL"),
    ],
)
def test_a_location_that_cannot_be_is_refused_without_its_secrets(location: str, says: str) -> None:
    with pytest.raises(StoreError) as caught:
        check(location)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value) and "cret" not in str(caught.value).replace("everybody", "")


@pytest.mark.parametrize(
    "location", ["postgresql:///x", "postgresql://me@/x?host=/run/pg", "postgresql://me@a:1,[::1]:2/x"]
)
def test_a_location_without_a_host_or_with_several_stays_as_it_is(location: str) -> None:
    from psycopg.conninfo import conninfo_to_dict

    ours, theirs = conninfo_to_dict(Location.of(location).conninfo), conninfo_to_dict(location)
    assert theirs.items() <= ours.items()
    assert ours["target_session_attrs"] == "read-write" and "statement_timeout" in str(ours["options"])


def test_a_password_that_is_changed_is_read_at_the_next_try(
    url: str, postgres: Postgres, tmp_path: Path
) -> None:
    postgres.sql("DROP ROLE IF EXISTS changing")
    postgres.sql("CREATE ROLE changing LOGIN SUPERUSER PASSWORD 'old'")
    file = tmp_path / "password"
    name = url.partition("@/")[2].partition("?")[0]
    with closing(
        open_store(f"postgresql://changing@127.0.0.1:{postgres.port}/{name}?password_file={file}")
    ) as store:
        with pytest.raises(StoreError, match=r"password_file .*: No such file"):
            store.canaries()
        file.write_text("old")
        assert store.canaries() == []
        postgres.sql("ALTER ROLE changing PASSWORD 'new'")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'changing'")
        for _ in range(2):  # the first one is of the connection that ended
            with pytest.raises(StoreAway) as caught:
                store.canaries()
        assert "the password was refused; it is read from the file again at each try" in str(caught.value)
        file.write_text("new\n")
        assert store.take(start(), runs(1, 3)) == 2


# What goes wrong -------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_one_line() -> None:
    with closing(open_store("postgresql://me@127.0.0.1:1/x")) as store, pytest.raises(StoreAway) as caught:
        store.canaries()
    assert str(caught.value).startswith("postgresql://127.0.0.1:1/x: connection failed")
    assert "refused" in str(caught.value) and "\n" not in str(caught.value)


def take_and_wait(store: Store) -> None:
    store.take(start(), runs(3, 5))
    with store.session.work() as connection:
        connection.execute(text("SELECT pg_sleep(30)"))


def test_a_call_that_takes_too_long_is_given_up(url: str) -> None:
    with closing(Store(PostgresDatabase(url, call_seconds=0.3))) as store:
        store.canaries()
        with pytest.raises(StoreAway, match=r"no answer for 0\.3 s"), store.session.work() as connection:
            connection.execute(text("SELECT pg_sleep(30)"))
        assert store.take(start(), runs(1, 3)) == 2, "by another connection"
        with pytest.raises(StoreAway), store.session.transaction():
            take_and_wait(store)
        assert [len(samples) for _, samples in store.generations(SEARCH, "c")] == [2], "the rest was not kept"


@pytest.mark.parametrize("within", [False, True])
def test_a_connection_that_broke_is_opened_again_and_nothing_is_kept_in_part(
    url: str, postgres: Postgres, within: bool
) -> None:
    def breaks() -> None:
        store.take(start(), runs(3, 5))
        postgres.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'infercanary%'",
            url,
        )

    def breaks_and_goes_on() -> None:
        breaks()
        store.take(start(), runs(5, 7))

    with closing(open_store(url)) as store:
        store.take(start(), runs(1, 3))
        if within:
            with pytest.raises(StoreAway), store.session.transaction():
                breaks_and_goes_on()
        else:
            breaks()
            with pytest.raises(StoreAway):
                store.canaries()
        assert store.take(start(), runs(1, 5)) == (2 if within else 0)


# Leases ----------------------------------------------------------------------------------------------------------


def test_a_service_has_one_holder_until_its_lease_ends(
    fleets: list[Fleet], url: str, postgres: Postgres
) -> None:
    first, second, _ = fleets
    assert first.hold({SEARCH, RANK}) == {SEARCH, RANK}
    assert second.hold({SEARCH, RANK}) == set()
    assert first.hold({SEARCH}) == {SEARCH}
    first.give_back({SEARCH})
    assert second.hold({SEARCH, RANK}) == {SEARCH}
    postgres.sql("UPDATE lease SET expires = extract(epoch FROM now())", url)
    assert first.hold({SEARCH, RANK}) == {SEARCH, RANK}
    assert second.hold({SEARCH, RANK}) == set()
    fences = postgres.sql("SELECT service || ' ' || fence FROM lease ORDER BY service", url).split("\n")
    assert fences == ["rank 2", "search 3"], "each change of holder counts up; a lease that ended is one"


@pytest.mark.parametrize("has_same_name", [False, True])
def test_one_that_slept_writes_nothing(
    stores: list[Store], fleets: list[Fleet], url: str, postgres: Postgres, has_same_name: bool
) -> None:
    """The fencing number tells it from a process that has its name by now."""
    slept, awake, reader = fleets
    if has_same_name:
        awake.holder = slept.holder
    slept.hold({SEARCH})
    slept.put_finding(SEARCH, "c", T, b"before", b"")
    postgres.sql("UPDATE lease SET expires = extract(epoch FROM now())", url)
    with pytest.raises(LeaseLost, match="search: the lease has ended"):
        slept.put_finding(SEARCH, "c", T, b"late", b"")
    assert slept.renew({SEARCH}) == set(), "a lease that ended is not renewed"
    assert awake.hold({SEARCH}) == {SEARCH}
    awake.put_finding(SEARCH, "c", T, b"after", b"")
    writes: list[Callable[[], None]] = [
        lambda: slept.put_finding(SEARCH, "c", T, b"late", b""),
        lambda: stores[0].save(SEARCH, "c", "verdict", T, b"late"),
    ]
    for write in writes:
        slept.held[SEARCH] = 1  # as if it did not know
        with pytest.raises(LeaseLost, match="search: the lease has ended"):
            write()
        assert SEARCH not in slept.held
    assert has_same_name or slept.renew({SEARCH}) == set()
    assert stores[1].history(SEARCH, "c", "verdict") == []
    assert reader.findings([SEARCH]) == [(SEARCH, "c", b"after")]
    assert reader.findings([SEARCH]) == [], "it did not change since"
    awake.put_finding(SEARCH, "c", T, b"again", b"")
    assert reader.findings([SEARCH, RANK]) == [(SEARCH, "c", b"again")]


def test_many_that_want_a_lease_together_do_not_get_it_twice(url: str, postgres: Postgres) -> None:
    services = {ServiceKey("", f"s-{n}") for n in range(20)}
    with ExitStack() as stack:
        each = [stack.enter_context(closing(open_store(url))).fleet for _ in range(6)]
        held: list[set[ServiceKey]] = [set()] * len(each)

        def want(number: int) -> None:
            barrier.wait()
            fleet = each[number]
            assert fleet is not None
            held[number] = fleet.hold(services)

        for round_ in range(5):
            barrier = threading.Barrier(len(each))
            threads = [threading.Thread(target=want, args=(n,)) for n in range(len(each))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(map(len, held)) == len(services) and set().union(*held) == services
            postgres.sql("UPDATE lease SET expires = extract(epoch FROM now())", url)
            assert postgres.sql("SELECT DISTINCT fence FROM lease", url) == str(round_ + 1)


@pytest.mark.parametrize("ended", [False, True])
def test_one_that_waited_for_another_which_took_the_lease_does_not_take_it(
    stores: list[Store], fleets: list[Fleet], url: str, postgres: Postgres, ended: bool
) -> None:
    first, second, third = fleets
    if ended:
        third.hold({SEARCH})
        third.give_back({SEARCH})
    stores[1].canaries()
    held: list[set[ServiceKey]] = []
    waiting = threading.Thread(target=lambda: held.append(second.hold({SEARCH})))
    with stores[0].session.transaction():
        assert first.hold({SEARCH}) == {SEARCH}
        waiting.start()
        while (
            postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", url) == "0"
        ):
            assert waiting.is_alive()
    waiting.join()
    assert held == [set()] and first.renew({SEARCH}) == {SEARCH}


def test_the_lease_of_another_is_not_waited_for(stores: list[Store], fleets: list[Fleet]) -> None:
    first, second, _ = fleets
    first.hold({SEARCH})
    with stores[0].session.transaction() as connection:
        first.claim(connection, SEARCH)
        assert second.hold({SEARCH, RANK}) == {RANK}


def test_a_lease_is_renewed_while_the_store_is_busy(stores: list[Store], fleets: list[Fleet]) -> None:
    first, second, _ = fleets
    first.hold({SEARCH, RANK})
    with stores[0].session.transaction():
        stores[0].take(start(), runs(1, 3))
        assert first.renew({SEARCH, RANK}) == {SEARCH, RANK}
        assert second.renew({SEARCH}) == set(), "renewing takes none"


def test_services_are_those_that_somebody_judges(fleets: list[Fleet]) -> None:
    first, second, reader = fleets
    first.hold({SEARCH})
    second.hold({RANK})
    assert reader.services() == {SEARCH, RANK}
    second.give_back({RANK})
    assert reader.services() == {SEARCH}


def test_what_all_services_teach_is_read_by_any(fleets: list[Fleet]) -> None:
    first, second, reader = fleets
    first.hold({SEARCH})
    second.hold({RANK})
    first.put_finding(SEARCH, "c", T, b"f", b"before")
    first.put_finding(SEARCH, "c", T, b"f", b"lesson")
    first.put_finding(SEARCH, "d", T, b"f", b"")
    second.put_finding(RANK, "c", T, b"f", b"another")
    assert sorted(reader.taught()) == [
        (SEARCH, "c", b"lesson"),
        (RANK, "c", b"another"),
    ]
    first.put_finding(SEARCH, "c", T, b"f", b"")  # its restarts are no longer kept
    assert reader.taught() == [(RANK, "c", b"another")]


def test_findings_that_could_not_be_read_are_read_at_the_next_call(
    fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader, _ = fleets
    writer.hold({SEARCH})
    for number in range(250):
        writer.put_finding(SEARCH, f"c-{number}", T, b"f", b"")

    with monkeypatch.context() as patched:
        patched.setattr("infercanary.store.queries.FINDINGS", text("SELECT * FROM nothing"))
        with pytest.raises(StoreAway):
            reader.findings({SEARCH})
    assert len(reader.findings({SEARCH})) == 250
    assert reader.findings({SEARCH}) == []
    assert reader.findings({RANK}) == [], "what was known of others is forgotten"
    assert len(reader.findings({SEARCH})) == 250


# Reading what others wrote ---------------------------------------------------------------------------------------


def test_a_change_by_anybody_is_seen_once_whatever_the_order_of_commits(
    stores: list[Store], fleets: list[Fleet], url: str
) -> None:
    writer, other, judge = stores
    fleet = fleets[2]
    fleets[0].hold({SEARCH})

    def seen() -> tuple[set[str], int]:
        changed = {canary for _, canary in fleet.refresh({SEARCH})}
        assert fleet.refresh({SEARCH}) == set()
        return changed, sum(len(samples) for _, samples in judge.generations(SEARCH, "c"))

    writer.take(start(), runs(10, 20))
    assert seen() == ({"c"}, 10)
    with writer.session.transaction():  # begins first, and commits last
        writer.take(start("z"), runs(0, 5))
        other.take(start("b"), runs(20, 25))
        assert seen() == ({"c"}, 15)
    assert seen() == ({"c"}, 20)
    writer.take(start(), runs(5, 10))  # late, out of a journal
    assert seen() == ({"c"}, 25)
    writer.take(start(), runs(0, 3, canary="d"))
    assert seen() == ({"d"}, 25)
    writer.take(start(), [Sample(99, "c", T + 990, "raised", None)])
    assert seen() == ({"c"}, 26)
    writer.take(start("b", host="another"), [])
    assert seen() == ({"c"}, 26), "what is known of a start is a change"
    with closing(open_store(url, Retention(opening=24, opening_starts=1, raw=36, slack=12))) as small:
        small.take(start(), runs(100, 400))
        assert seen() == ({"c"}, 326)
        small.thin(T)
    changed, rows = seen()
    assert changed == {"c"} and rows < 200
    assert fleet.refresh({RANK}) == set(), "another service is forgotten"
    assert fleet.refresh({SEARCH}) == {(SEARCH, "c"), (SEARCH, "d")}


def test_containers_that_run_are_those_with_runs_of_the_last_minutes(
    stores: list[Store], fleets: list[Fleet]
) -> None:
    store, reader = stores[0], fleets[1]
    store.take(start("gone"), runs(1, 10))
    store.take(start("ended", ended_at=T + 990.0), runs(60, 90))
    store.take(start("old"), runs(60, 90))
    store.take(start("old", boot_id="new"), runs(90, 95))
    assert reader.running(SEARCH) == [], "nobody judges it"
    fleets[0].hold({SEARCH})
    assert [(g.container, g.boot_id) for g in reader.running(SEARCH)] == [("old", "new")]


def test_what_belongs_to_nothing_any_more_goes(
    stores: list[Store], fleets: list[Fleet], url: str, postgres: Postgres
) -> None:
    fleets[0].hold({SEARCH})
    for number in range(4):
        stores[0].take(
            start(f"pod-{number}", image_id=f"sha256:{number}"),
            runs(1, 50, canary="old" if number < 2 else "c"),
        )
    for canary in ("old", "c"):
        fleets[0].put_finding(SEARCH, canary, T, b"f", b"")
        stores[0].save(SEARCH, canary, "verdict", T, b"v")
    postgres.sql("UPDATE start SET seen = 0", url)
    with closing(open_store(url, Retention(images=2))) as keeper:
        assert keeper.fleet is not None
        keeper.fleet.holder = fleets[0].holder
        keeper.fleet.hold({SEARCH})
        keeper.thin(T)
        assert [g.container for g in starts_of(keeper, SEARCH)] == ["pod-2", "pod-3"]
        assert [len(keeper.history(SEARCH, canary, "verdict")) for canary in ("old", "c")] == [0, 1]
        assert keeper.fleet.findings([SEARCH]) == [(SEARCH, "c", b"f")]
