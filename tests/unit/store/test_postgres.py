"""Properties of PostgreSQL only: location, leases, data of other exporters, and faults."""

import threading
from contextlib import ExitStack, closing
from functools import partial

import pytest
from sqlalchemy import text
from stores import CANARY, SEARCH, SMALL, T, failure, generation, samples, starts_of

from infercanary.judge.model import ServiceKey
from infercanary.store.base import LeaseLost, StoreAway, StoreError
from infercanary.store.location import Location
from infercanary.store.postgres import PostgresDatabase
from infercanary.store.store import Store, open_store
from tests.scenarios import cases

RANK = ServiceKey("prod", "rank")


class Server:
    def __init__(self, postgres, stack):
        self.postgres, self.url = postgres, postgres.database()
        self._stack = stack
        self.stores = [self.open() for _ in range(3)]
        self.fleets = [store.fleet for store in self.stores if store.fleet is not None]

    def open(self, keep=None):
        return self._stack.enter_context(closing(open_store(self.url, keep)))

    def sql(self, statement):
        return self.postgres.sql(statement, self.url)

    def end_leases(self):
        self.sql("UPDATE lease SET expires = extract(epoch FROM now())")


@pytest.fixture
def server(postgres):
    with ExitStack() as stack:
        yield Server(postgres, stack)


# Location and faults ---------------------------------------------------------------------------------------------


@cases(["postgresql:///x", "postgresql://me@/x?host=/run/pg", "postgresql://me@a:1,[::1]:2/x"])
def test_a_location_without_a_host_or_with_several_stays_as_it_is(location):
    from psycopg.conninfo import conninfo_to_dict

    ours = conninfo_to_dict(Location.of(location).conninfo)
    assert conninfo_to_dict(location).items() <= ours.items()
    assert ours["target_session_attrs"] == "read-write"
    assert "statement_timeout" in str(ours["options"])


@cases(
    [("", "postgresql://127.0.0.1:1/x: connection failed"), ("?password_file=/none", "/none: No such file")],
)
def test_an_unreachable_database_is_one_line(end, says):
    with (
        closing(open_store(f"postgresql://me@127.0.0.1:1/x{end}")) as store,
        pytest.raises(StoreError) as caught,
    ):
        store.canaries()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, StoreAway) is not bool(end)


def test_a_call_that_takes_too_long_is_given_up_with_its_transaction(server):
    def waits(store):
        with store.session.work() as connection:
            connection.execute(text("SELECT pg_sleep(30)"))

    def takes_and_waits(store):
        store.take(generation(), samples(3, 5))
        waits(store)

    with closing(Store(PostgresDatabase(server.url, call_seconds=0.5))) as store:
        with pytest.raises(StoreAway, match="no answer within "):
            waits(store)
        assert store.take(generation(), samples(1, 3)) == 2  # the store uses a new connection
        with pytest.raises(StoreAway), store.session.transaction():
            takes_and_waits(store)
        # the interrupted transaction was kept
        assert [len(runs) for _, runs in store.generations(SEARCH, CANARY)] == [2]


@cases([False, True])
def test_a_connection_that_broke_is_opened_again_and_nothing_is_kept_in_part(within, server):
    store = server.stores[0]

    def breaks():
        store.take(generation(), samples(3, 5))
        server.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'infercanary%'"
        )
        store.take(generation(), samples(5, 7))

    store.take(generation(), samples(1, 3))
    transaction = store.session.transaction() if within else ExitStack()
    with pytest.raises(StoreAway), transaction:
        breaks()
    assert store.take(generation(), samples(1, 5)) == (2 if within else 0)


# Leases ----------------------------------------------------------------------------------------------------------


def test_a_service_has_one_holder_until_its_lease_ends(server):
    first, second, reader = server.fleets
    both = {SEARCH, RANK}
    assert first.hold(both) == both
    assert second.hold(both) == set()
    assert first.hold({SEARCH}) == {SEARCH}
    assert reader.services() == both
    first.give_back({SEARCH})
    assert reader.services() == {RANK}
    assert second.hold(both) == {SEARCH}
    server.end_leases()
    assert first.hold(both) == both
    assert second.hold(both) == set()
    fences = server.sql("SELECT service || ' ' || fence FROM lease ORDER BY service").split("\n")
    # each change of holder, and each end of a lease, increases the number
    assert fences == ["rank 2", "search 3"]


@cases([False, True])
def test_one_that_slept_writes_nothing(has_same_name, server):
    """The fencing token distinguishes a process that slept from a later process with the same name."""
    slept, awake, reader = server.fleets
    if has_same_name:
        awake.holder = slept.holder
    slept.hold({SEARCH})
    slept.put_finding(SEARCH, "c", T, b"before", b"")
    server.end_leases()
    with pytest.raises(LeaseLost):
        slept.put_finding(SEARCH, "c", T, b"late", b"")
    assert slept.renew({SEARCH}) == set()  # the holder cannot renew a lease that ended
    assert awake.hold({SEARCH}) == {SEARCH}
    awake.put_finding(SEARCH, "c", T, b"after", b"")
    for write in (
        partial(slept.put_finding, SEARCH, "c", T, b"late", b""),
        partial(server.stores[0].save, SEARCH, "c", "verdict", T, b"late"),
    ):
        slept.held[SEARCH] = 1  # simulates a process that does not know
        with pytest.raises(LeaseLost, match="search: the lease has ended"):
            write()
        assert SEARCH not in slept.held
    assert has_same_name or slept.renew({SEARCH}) == set()
    assert server.stores[1].history(SEARCH, "c", "verdict") == []
    # an unchanged finding is not returned again
    assert [reader.findings([SEARCH]), reader.findings([SEARCH])] == [[(SEARCH, "c", b"after")], []]


@cases([False, True])
def test_one_that_waited_for_another_which_took_the_lease_does_not_take_it(ended, server):
    first, second, third = server.fleets
    if ended:
        third.hold({SEARCH})
        third.give_back({SEARCH})
    server.stores[1].canaries()
    held = []
    waiting = threading.Thread(target=lambda: held.append(second.hold({SEARCH})))
    with server.stores[0].session.transaction():
        assert first.hold({SEARCH}) == {SEARCH}
        waiting.start()
        while server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "0":
            assert waiting.is_alive()
    waiting.join()
    assert held == [set()]
    assert first.renew({SEARCH}) == {SEARCH}


def test_a_lease_is_renewed_while_the_store_is_busy_and_that_of_another_is_not_waited_for(server):
    first, second, _ = server.fleets
    first.hold({SEARCH})
    with server.stores[0].session.transaction() as connection:
        server.stores[0].take(generation(), samples(1, 3))
        assert first.renew({SEARCH}) == {SEARCH}
        assert second.renew({SEARCH}) == set()  # renew() must not take another holder's lease
        first.claim(connection, SEARCH)
        assert second.hold({SEARCH, RANK}) == {RANK}


def test_findings_that_could_not_be_read_are_read_at_the_next_call(server):
    writer, reader, _ = server.fleets
    writer.hold({SEARCH})
    for number in range(25):
        writer.put_finding(SEARCH, f"c-{number}", T, b"f", b"")
    server.sql("ALTER TABLE finding RENAME TO hidden")
    with pytest.raises(StoreAway):
        reader.findings({SEARCH})
    server.sql("ALTER TABLE hidden RENAME TO finding")
    counts = [len(reader.findings({service})) for service in (SEARCH, SEARCH, RANK, SEARCH)]
    assert counts == [25, 0, 0, 25]  # findings of other services are forgotten


# Data of other exporters ----------------------------------------------------------------------------------------


def test_a_change_by_anybody_is_seen_once_whatever_the_order_of_commits(server):
    writer, other, judge = server.stores
    fleet, small = server.fleets[2], server.open(SMALL)
    server.fleets[0].hold({SEARCH})

    def sees(changed, count):
        assert fleet.refresh({SEARCH}) == {(SEARCH, changed)}
        assert fleet.refresh({SEARCH}) == set()
        assert sum(len(runs) for _, runs in judge.generations(SEARCH, CANARY)) == count

    writer.take(generation(), samples(10, 20))
    sees(CANARY, 10)
    with writer.session.transaction():  # this transaction begins first, and commits last
        writer.take(generation("z"), samples(0, 5))
        other.take(generation("b", container="b"), samples(20, 25))
        sees(CANARY, 15)
    sees(CANARY, 20)
    for start, runs, changed, count in (
        (generation(), samples(5, 10), CANARY, 25),  # late runs from a journal
        (generation(), samples(0, 3, canary="d"), "d", 25),
        (generation(), [failure(99)], CANARY, 26),
        (generation("b", container="b", host="another"), [], CANARY, 26),
        (generation(), samples(100, 400), CANARY, 326),
    ):
        small.take(start, runs)
        sees(changed, count)
    small.thin(T)
    assert fleet.refresh({SEARCH}) == {(SEARCH, CANARY)}
    assert fleet.refresh({RANK}) == set()  # another service is forgotten
    assert fleet.refresh({SEARCH}) == {(SEARCH, CANARY), (SEARCH, "d")}


def test_containers_that_run_are_those_with_runs_of_the_last_minutes(server):
    for container, boot, runs, ended_at in (
        ("gone", "a", samples(1, 10), 0.0),
        ("ended", "a", samples(60, 90), T + 990.0),
        ("old", "a", samples(60, 90), 0.0),
        ("old", "new", samples(90, 95), 0.0),
    ):
        server.stores[0].take(generation(boot, container=container, ended_at=ended_at), runs)
    assert server.fleets[1].running(SEARCH) == []  # no exporter has the service's lease
    server.fleets[0].hold({SEARCH})
    running = [(start.container, start.boot_id) for start in server.fleets[1].running(SEARCH)]
    assert running == [("old", "new")]


def test_rows_without_a_start_are_dropped(server):
    writer, fleet = server.stores[0], server.fleets[0]
    fleet.hold({SEARCH})
    for number, canary in enumerate(("old", "old", "c", "c")):
        start = generation(container=f"pod-{number}", image_id=f"sha256:{number}")
        writer.take(start, samples(1, 50, canary=canary))
        fleet.put_finding(SEARCH, canary, T, b"f", b"")
        writer.save(SEARCH, canary, "verdict", T, b"v")
    server.sql("UPDATE start SET seen = 0")
    writer.thin(T)
    assert [start.container for start in starts_of(writer)] == ["pod-2", "pod-3"]
    assert [len(writer.history(SEARCH, canary, "verdict")) for canary in ("old", "c")] == [0, 2]
    assert server.fleets[1].findings([SEARCH]) == [(SEARCH, "c", b"f")]
