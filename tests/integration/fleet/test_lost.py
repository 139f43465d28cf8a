"""Exporters and the database are killed, stopped and resumed: the store has each run once, and only one judge
writes.
"""

import random
import signal
import time
from contextlib import closing

import msgspec
import pytest
from postgres import running

from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.judging.worker import Judging
from infercanary.store.store import open_store
from tests.integration.exporter.processes import KEY
from tests.integration.fleet.world import (
    audited,
    eventually,
    fleet,
    location,
    made,
    one_owner_at_a_time,
    publishers,
    written,
)
from tests.scenarios import cases


def stored(store):
    """Return the rows' number of runs by start (a block median covers several runs), and the last sequence number."""
    return {
        g.boot_id: (sum(s.runs for s in samples), samples[-1].sequence)
        for g, samples in store.generations(KEY, "c")
    }


def undisturbed(store):
    """Return the verdict of a single judge with a file, which receives the same runs at once."""
    alone = Judging(None)
    alone.turn()
    assert alone._store is not None
    for start, samples in store.generations(KEY, "c"):
        alone._store.take(start, samples)
    alone._due[KEY, "c"] = None
    alone._act(alone._store)
    return alone.findings[KEY]["c"].result


@pytest.mark.takes(15)
@cases([(3, 1), pytest.param(100, 20, marks=pytest.mark.campaign)])
def test_every_run_is_stored_once_whoever_is_killed(kills, crashes, tmp_path):
    rng = random.Random(3)
    with running() as postgres:
        url = audited(postgres)
        at = location(postgres, url, tmp_path, lease_seconds=2)
        with fleet(tmp_path, at, hosts=2, replicas=4) as (probes, exporters):
            eventually(lambda: len(publishers(exporters)) == 1)
            with closing(open_store(url)) as store:
                # An exporter must poll each start while it runs. Otherwise the start's image is unknown, and
                # its runs are not stored.
                eventually(lambda: {probe.boot_id for probe in probes} <= stored(store).keys())
            for probe in probes:
                probe.upgrade(0.03, "2")
            moments = [*["exporter"] * kills, *["database"] * crashes]
            rng.shuffle(moments)
            for what in moments:
                time.sleep(rng.uniform(0.2, 1.0))
                if what == "database":
                    postgres.stop(signal.SIGKILL)
                    time.sleep(rng.uniform(0.2, 1.0))
                    # An exporter without its database still serves, and reports that the store is down.
                    eventually(
                        lambda: all(e.values("infercanary_store_up").get("") == 0.0 for e in exporters)
                    )
                    postgres.start()
                else:
                    victim = rng.choice(exporters)
                    victim.kill()
                    victim.start()  # the test may kill the exporter again before it serves
            for probe in probes:
                probe.stopped = True
            expected = {boot: (len(numbers), numbers[-1]) for boot, numbers in made(probes).items()}
            with closing(open_store(url)) as store:
                eventually(lambda: stored(store) == expected)
                taken = store.taken(KEY, "c")
                assert {boot: count for (_, boot), count in taken.items()} == {
                    b: n for b, (n, _) in expected.items()
                }
                truth = undisturbed(store)
                assert truth.state == "regressed"

                def judged():
                    with closing(open_store(url)) as reader:
                        found = {canary: body for _, canary, body in reader.fleet.findings([KEY])}
                    result = msgspec.msgpack.decode(found["c"], type=Finding).result
                    return (result.state, result.upgraded_at) == (truth.state, truth.upgraded_at)

                eventually(judged)
            eventually(lambda: len(publishers(exporters)) == 1)
        one_owner_at_a_time(postgres, url)


@pytest.mark.campaign
@pytest.mark.store
def test_one_that_was_stopped_for_longer_than_its_lease_writes_and_shows_nothing_more(tmp_path, postgres):
    url = audited(postgres)
    at = location(postgres, url, tmp_path, lease_seconds=2)
    with fleet(tmp_path, at, hosts=2, replicas=2) as (probes, exporters):
        eventually(lambda: len(publishers(exporters)) == 1)
        [host] = publishers(exporters)
        holder, other = sorted(exporters, key=lambda one: one.host != host)
        before = {name for name, _ in written(postgres, url)}
        assert len(before) == 1

        def writes():
            return len([name for name, _ in written(postgres, url) if name in before])

        holder.process.send_signal(signal.SIGSTOP)
        eventually(lambda: publishers([other]) == [other.host])
        for probe in probes:
            probe.upgrade(0.04, "2")
        by_stopped = writes()
        holder.process.send_signal(signal.SIGCONT)
        # a resumed exporter must not publish, not even in its first scrape
        assert publishers([holder]) == []
        eventually(lambda: len({f for _, f in written(postgres, url)}) == 2 and "regressed" in other.log)
        assert writes() == by_stopped
        assert publishers(exporters) == [other.host]
        one_owner_at_a_time(postgres, url)
