"""The disk loses power, or becomes full, at any single write: the stored content must be complete after recovery."""

import random
import sqlite3
import sys
from contextlib import closing

import full_disk
import msgspec
import pytest
import store_writer
from disk import FakeDisk, Platter, needs_cc, put
from full_disk import REPORTS, Trial
from store_writer import KEEP, RUNS, S, take

from infercanary.store.retention import TIERS
from infercanary.store.store import open_store
from tests.programs import ended
from tests.scenarios import cases

pytestmark = [needs_cc, pytest.mark.store]


def batches_in(path):
    """Return the number of batches in a store's file. Each batch must be complete, and no earlier batch may be
    missing.
    """
    with closing(open_store(path, KEEP)) as store:
        assert store.database.set_aside_at is None
        found = store.generations(S, "c")
        taken = store.taken(S, "c")
        documents = [int(document.body) for document in store.history(S, "c", "answer")]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        counts = f"SELECT total({' + '.join(TIERS)}) FROM series"
        assert db.execute(counts).fetchone() == db.execute("SELECT count(*) FROM sample").fetchone()
    for _, samples in found:
        sequences = [sample.sequence for sample in samples]
        assert sequences == sorted(set(sequences))
    last = documents[-1] if documents else 0
    assert documents == [*range(max(1, last - len(documents) + 1), last + 1)]
    assert taken.get(("a", "a"), 0) == RUNS * last
    return last


@cases([(60, 10), pytest.param(400, 2000, marks=pytest.mark.campaign)])
def test_a_loss_of_power_leaves_whole_transactions_and_all_that_was_safe(batches, losses, tmp_path):
    rng = random.Random(5)
    disk = FakeDisk(tmp_path / "disk", tmp_path)
    ended(sys.executable, store_writer.__file__, disk.folder, batches, env=disk.environment, seconds=300)
    calls = disk.take_record()
    assert batches_in(disk.folder / "store.db") == batches
    # Half of the power losses are near calls that order writes: these calls are rare, and a fault would show
    # there.
    order = [number for number, call in enumerate(calls) if call.kind in "CTSUR"]
    moments = [rng.choice(order) + rng.randint(-3, 3) for _ in range(losses // 2)]
    moments += [rng.randrange(len(calls)) for _ in range(losses - len(moments))]
    after = {moment: moments.count(moment) for moment in sorted(moments)}
    platter = Platter({})
    done = safe = 0
    lost = []
    for number, call in enumerate(calls):
        for _ in range(after.get(number, 0)):
            put(disk.folder, platter.left(rng))
            found = batches_in(disk.folder / "store.db")
            assert safe <= found <= done + 1
            lost.append(done - found)
            with closing(open_store(disk.folder / "store.db", KEEP)) as store:
                new = [take(store, batch) for batch in range(max(1, found - 1), found + 3)]
                assert new[-2:] == [2 * RUNS] * 2
                assert not any(new[:-2])
            assert batches_in(disk.folder / "store.db") == found + 2
        platter.take(call)
        if (call.kind, call.name) == ("W", "done"):
            done = int(call.data)
        elif (call.kind, call.name) == ("S", "store.db-wal"):
            safe = done
    assert done == batches
    assert max(lost) > 0
    print(f"{len(lost)} losses of power in {len(calls)} calls: {sum(map(bool, lost))} cost a batch or more, "
          f"at most {max(lost)}")  # fmt: skip


@cases([9, pytest.param(1, marks=pytest.mark.campaign)])
def test_a_disk_that_is_full_at_any_write_costs_nothing_that_the_rings_hold(step, tmp_path):
    disk = FakeDisk(tmp_path / "disk", tmp_path)
    done = ended(sys.executable, full_disk.__file__, disk.folder, step, env=disk.environment, seconds=1800)
    assert "Traceback" not in done.stderr
    trials = {
        int(call): msgspec.convert(found, Trial)
        for call, found in map(msgspec.json.decode, done.stdout.splitlines())
    }
    everything = [*range(REPORTS * full_disk.RUNS)]
    assert len(trials) > trials[0].calls / step
    for call, found in trials.items():
        assert found.kept == found.found_again == everything, call
        assert found.counted == len(everything), call
        assert found.left == everything[: len(found.left)] and len(found.left) % full_disk.RUNS == 0, call
        assert found.ups[-1] == 1.0, call
        assert found.verdict == trials[0].verdict, call
        # The exporter logs each report that it could not store, and at most one verdict.
        assert 0 <= len(found.left) // full_disk.RUNS - found.ups[:-1].count(1.0) <= 1, call
        assert (0.0 in found.ups) is (call > 0), call
    print(f"{len(trials) - 1} of {trials[0].calls} calls without room")
