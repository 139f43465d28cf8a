"""A damaged row affects only itself: the store omits and counts it, and reads the rows beside it."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from stores import CANARY, SEARCH, T, generation, sample

from infercanary.judge.model import Generation
from infercanary.store.base import StoreError
from infercanary.store.records import decode, decode_start, encode, encode_start
from infercanary.store.store import open_store
from tests.scenarios import cases, scenarios

RUNS = [
    sample(number, controls={"cpu": 0.1}, sm_clock=1e9, tags=("gc",), measures={"memory": 5e8})
    for number in range(20)
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "judge.sqlite"
    with closing(open_store(path)) as store:
        for container in ("search-1", "search-2"):
            store.take(generation(container=container), RUNS)
    return path


def runs(store):
    return {start.container: several for start, several in store.generations(SEARCH, CANARY)}


@cases([1.7e308, float("nan"), -1.0])
def test_a_latency_that_cannot_be_is_no_sample(number):
    bad = msgspec.structs.replace(RUNS[0], median=number)
    assert decode(map(encode, (RUNS[0], bad, RUNS[1]))) == RUNS[:2]


def flipped(body):
    rng = random.Random(1)
    for place, byte in enumerate(body):
        for bit in rng.sample(range(8), 3):
            yield body[:place] + bytes([byte ^ 1 << bit]) + body[place + 1 :]


def test_whatever_byte_of_a_run_flips_the_others_are_read():
    for body in flipped(encode(RUNS[3])):
        found = decode([encode(RUNS[0]), body, encode(RUNS[1])])
        assert found[0] == RUNS[0]
        assert found[-1] == RUNS[1]


def test_whatever_byte_of_a_start_flips_it_is_a_start_or_none():
    start = generation(
        outputs={CANARY: (0.1,)}, cold_start={CANARY: {"load": 1.5}}, ended_at=T, memory_kills=(T,)
    )
    assert decode_start(encode_start(start)) == start
    found = [decode_start(body) for body in flipped(encode_start(start))]
    assert None in found
    assert {type(start) for start in found} == {Generation, type(None)}


ROWS = scenarios("""
start SET body = x'93'                                                             | 20
start SET body = 5                                                                 | 20
start SET began = 1e308                                                            | 0
start SET began = 'soon'                                                           | 20
start SET boot_id = CAST(x'6fff65' AS TEXT), host = CAST(x'ff' AS TEXT)            | 0
start SET service = CAST(service AS BLOB), image_id = x'ff'                        | 20
series SET canary = CAST(x'ff' AS TEXT)                                            | 20
series SET canary = CAST(canary AS BLOB)                                           | 20
series SET failed = x'ff', through = 'x'                                           | 20
sample SET body = x'ff'                                                            | 1
clock SET age = 'x', now = 'y'                                                     | 0
""")


@cases(ROWS)
def test_a_row_that_cannot_be_read_costs_no_other_and_stops_nothing(statement, lost, path):
    row = "series = 1 AND sequence" if statement.startswith("sample") else "rowid"
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(f"UPDATE {statement} WHERE {row} = 1").rowcount == 1
    with closing(open_store(path)) as store:
        assert (SEARCH, CANARY) in store.canaries()
        assert sum(map(len, runs(store).values())) == 2 * len(RUNS) - int(lost)
        for _, canary in store.canaries():
            store.taken(SEARCH, canary)
            store.generations(SEARCH, canary)
        store.take(generation(container="search-3"), RUNS)
        store.take(generation(), [sample(99)])
        store.thin(2e9)
        assert runs(store)["search-3"] == RUNS


def test_a_file_or_its_log_that_was_removed_is_an_error_and_the_next_write_begins_anew(path):
    """A store that closes writes the content of its log into the file."""
    copy = path.with_name("copy")  # copied like the files after a crash
    with closing(open_store(path)) as store:
        assert store.take(generation(container="new"), RUNS[:15]) == 15
        for end, left in (("-wal", 15), ("", 0)):
            Path(f"{path}{end}").unlink()
            with pytest.raises(StoreError, match="was removed while in use"):
                store.take(generation(container="new"), RUNS)
            assert store.take(generation(container="new"), RUNS) == 20 - left
            for beside in ("", "-wal"):
                shutil.copy(f"{path}{beside}", f"{copy}{beside}")
            with closing(open_store(copy)) as after:
                assert runs(after)["new"] == RUNS
