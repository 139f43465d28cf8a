"""One damaged row costs itself: it is left out, counted, and what lies beside it is read."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store.base import StoreError
from infercanary.store.records import decode, encode
from infercanary.store.sqlite import SqliteStore

SEARCH = ServiceKey("", "search")
RUNS = [
    Sample(
        number, "resnet18", 1e9 + 10 * number, "ok", 0.01, 5, {"compute": 0.009}, {"cpu": 0.1}, 1e9, ("gc",)
    )
    for number in range(20)
]


def start(container: str = "search-1") -> Generation:
    return Generation(
        service="search", container=container, boot_id="one", started_at=1e9, image_id="sha256:1",
        environment={"torch": "2.13.0"}, outputs={"resnet18": (1.0, 2.0)},
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "judge.sqlite"
    store = SqliteStore.open(path)
    for container in ("search-1", "search-2"):
        store.take(start(container), RUNS)
    store.close()
    return path


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(statement, values).rowcount >= 1
        database.commit()


@pytest.mark.parametrize("number", [1.7e308, float("inf"), float("nan"), -1.0])
def test_a_latency_that_cannot_be_is_no_sample(number: float) -> None:
    bad = msgspec.structs.replace(RUNS[0], median=number)
    assert decode(map(encode, (RUNS[0], bad, RUNS[1]))) == RUNS[:2]


def test_whatever_byte_of_a_run_flips_the_others_are_read() -> None:
    rng = random.Random(1)
    body = encode(RUNS[3])
    for place in range(len(body)):
        for bit in rng.sample(range(8), 3):
            flipped = body[:place] + bytes([body[place] ^ 1 << bit]) + body[place + 1 :]
            found = decode([encode(RUNS[0]), flipped, encode(RUNS[1])])
            assert found[0] == RUNS[0] and found[-1] == RUNS[1]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE environment SET body = x'81a5746f726368a6322e31ff2e30'",
        "UPDATE generation SET details = x'93' WHERE container = 'search-1'",
        "UPDATE generation SET started_at = 1e308 WHERE container = 'search-1'",
        "UPDATE generation SET started_at = 'soon' WHERE container = 'search-1'",
        "UPDATE generation SET boot_id = CAST(x'6fff65' AS TEXT) WHERE container = 'search-1'",
        "UPDATE generation SET image = CAST(x'ff' AS TEXT) WHERE container = 'search-1'",
        "UPDATE series SET canary = CAST(x'ff' AS TEXT) WHERE id = 1",
        "UPDATE sample SET body = x'ff' WHERE series = 1 AND sequence = 3",
        "UPDATE clock SET age = 'x', now = 'y'",
        "UPDATE series SET canary = CAST(canary AS BLOB) WHERE id = 1",
        "UPDATE series SET failed = x'ff', merged_through = 'x' WHERE id = 1",
        "UPDATE generation SET seen = 'x', image_key = x'' WHERE container = 'search-1'",
        "UPDATE generation SET service = CAST(service AS BLOB), image_id = x'ff' WHERE container = 'search-1'",
    ],
)
def test_a_row_that_cannot_be_read_stops_nothing(path: Path, statement: str) -> None:
    change(path, statement)
    store = SqliteStore.open(path)
    assert (SEARCH, "resnet18") in store.canaries()
    for canary in {name for _, name in store.canaries()}:
        store.taken(SEARCH, canary)
        store.generations(SEARCH, canary)
    store.starts(SEARCH)
    store.take(start("search-3"), RUNS)
    store.take(start("search-1"), [msgspec.structs.replace(RUNS[0], sequence=99)])
    store.thin(2e9)
    by_container = {g.container: len(runs) for g, runs in store.generations(SEARCH, "resnet18")}
    assert by_container["search-3"] == 20
    store.close()


def test_a_row_that_cannot_be_read_costs_no_other(path: Path) -> None:
    change(path, "UPDATE sample SET body = x'ff' WHERE series = 1 AND sequence = 3")
    store = SqliteStore.open(path)
    assert [len(runs) for _, runs in store.generations(SEARCH, "resnet18")] == [19, 20]
    store.close()


def test_a_store_with_a_view_is_no_store(path: Path) -> None:
    change(path, "UPDATE clock SET age = 1")
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE clock")
        database.execute(
            "CREATE VIEW clock AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) "
            "SELECT x AS now, x AS age FROM n"
        )
        database.commit()
    with pytest.raises(StoreError, match="holds `clock`, which no exporter makes"):
        SqliteStore.open(path)


def test_a_store_with_a_column_that_is_computed_is_no_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE clock ADD COLUMN wide GENERATED ALWAYS AS (hex(zeroblob(500000000)))")
    with pytest.raises(StoreError, match="holds `clock`, which no exporter makes"):
        SqliteStore.open(path)


def test_a_file_that_was_removed_is_an_error_and_is_begun_anew(path: Path) -> None:
    store = SqliteStore.open(path)
    path.unlink()
    with pytest.raises(StoreError, match="was removed while in use"):
        store.take(start(), RUNS)
    assert store.take(start(), RUNS) == 20
    assert path.exists()
    store.close()


def test_a_log_that_was_removed_is_an_error_and_nothing_is_lost(path: Path) -> None:
    """What lies in the log alone is written into the file when it is closed, and the next write makes a new log."""
    store = SqliteStore.open(path)
    assert store.take(start("new"), RUNS[:10]) == 10
    assert store.take(start("new"), RUNS[10:15]) == 5
    Path(f"{path}-wal").unlink()
    with pytest.raises(StoreError, match="was removed while in use"):
        store.take(start("new"), RUNS[15:])
    assert store.take(start("new"), RUNS[15:]) == 5
    copy = path.with_name("copy")  # as a crash would leave it
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{copy}{end}")
    store.close()
    with closing(SqliteStore.open(copy)) as after:
        [kept] = [runs for begun, runs in after.generations(SEARCH, "resnet18") if begun.container == "new"]
        assert len(kept) == 20
