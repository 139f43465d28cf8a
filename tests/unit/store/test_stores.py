"""The judge's store: each run once, thinner with age, whatever is delivered twice and whatever the clocks say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Executable
from stores import (
    CANARY,
    DAY,
    SEARCH,
    SMALL,
    Opens,
    T,
    check_counts,
    count,
    failure,
    generation,
    kept,
    query,
    sample,
    samples,
    starts_of,
)
from structlog.testing import capture_logs

from infercanary.contract.report import Run
from infercanary.exporter.judging import intake
from infercanary.exporter.judging.queue import StartReport
from infercanary.exporter.judging.store_metrics import LEFT_OUT, STORE_ERRORS, STORED
from infercanary.judge.model import Sample, ServiceKey, merge
from infercanary.judge.origin import Origin
from infercanary.judge.policy import LIVE
from infercanary.store.base import Document, LastRun
from infercanary.store.records import MAX_BYTES, decode, encode
from infercanary.store.retention import BLOCK, HOUR, Retention, expired
from infercanary.store.store import Store, open_store


def of_probe(*sequences: int) -> list[Run]:
    """Runs as a probe reports them."""
    return [
        Run(sequence=n, canary=CANARY, scheduled_at=T, started_at=T + n, outcome="ok", latencies=(0.01,))
        for n in sequences
    ]


# What is taken is what is read -----------------------------------------------------------------------------------


def test_what_was_taken_is_read_also_by_the_next_process(location: str) -> None:
    given = generation(
        image_digest="sha256:d",
        outputs={"resnet18": (0.1, -2.5e-7)},
        cold_start={"resnet18": {"load": 1.5, "first_run": 0.2}},
        origin=Origin("9f8e7d6c5b4a", "https://github.com/acme/search", "1.5"),
        ended_at=T + 60.0,
    )
    whole = Sample(
        7, "resnet18", T + 0.25, "ok", 0.0101, 9, {"compute": 0.009, "launch": 0.001}, {"cpu_spin": 0.002},
        1.41e9, ("stalled", "throttled"), 1e-7,
    )  # fmt: skip
    failed = Sample(8, "resnet18", T + 10.0, "timed_out", None)
    other = Sample(9, "bert", T + 11.0, "ok", 0.02)
    with closing(open_store(location)) as store:
        assert store.take(given, [failed, whole, other]) == 3
    with closing(open_store(location)) as store:
        assert store.generations(SEARCH, "resnet18") == [(given, [whole, failed])]
        assert store.generations(SEARCH, "bert") == [(given, [other])]
        assert starts_of(store, SEARCH) == [given] == [store.start_of(SEARCH, "search-1", "boot")]
        assert starts_of(store, SEARCH)[0] is starts_of(store, SEARCH)[0], "equal bytes are decoded once"
        assert store.start_of(SEARCH, "search-1", "other") is None
        assert store.canaries() == [(SEARCH, "bert"), (SEARCH, "resnet18")]
        assert store.taken(SEARCH, "resnet18") == {("search-1", "boot"): 1}
        assert count(store) == 3 and (store.session.size_bytes or store.fleet)
        assert store.take(given, [failed, whole, other]) == 0


def test_what_a_start_reports_of_itself_may_change_and_its_time_does_not(store: Store) -> None:
    store.take(generation(), samples(1, 2))
    later = generation(
        started_at=T - 500,
        image="search:latest",
        environment={"torch": "2.14.0"},
        cold_start={"resnet18": {"time_to_steady": 3.0}},
    )
    assert store.take(later, samples(1, 3)) == 1
    assert starts_of(store, SEARCH) == [msgspec.structs.replace(later, started_at=T)]
    assert store.take(later, []) == 0


def test_what_identifies_an_image() -> None:
    assert generation(image_digest="sha256:d").image_key == "sha256:1"
    assert generation(image_id="", image_digest="sha256:d").image_key == "sha256:d"
    static = [
        generation(image_id="", environment=environment).image_key
        for environment in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1", "b": "3"})
    ]
    assert static[0] == static[1] != static[2]
    assert all(key.startswith("environment:") for key in static)


def test_the_starts_of_a_container_since_a_moment(store: Store) -> None:
    for number, container in enumerate(("a", "b", "a")):
        store.take(
            generation(f"{container}-{number}", container=container, started_at=T + number), samples(1, 4)
        )

    def found(**limits: object) -> list[str]:
        return [g.boot_id for g, _ in store.generations(SEARCH, "resnet18", **limits)]  # type: ignore[arg-type]

    assert found() == ["a-0", "b-1", "a-2"]
    assert found(container="a") == ["a-0", "a-2"]
    assert found(since=T + 1) == ["b-1", "a-2"]
    assert found(container="a", since=T + 1) == ["a-2"]


def test_what_one_judgement_reads_is_bounded(store: Store) -> None:
    """Of the starts with most runs the first and the last, and no more starts than fit."""
    for boot, count_of in (("a", 200), ("b", 20), ("c", 200)):
        store.take(generation(boot, started_at=T + ord(boot)), samples(1, count_of + 1))
    size = len(encode(sample(100)))

    def found(most_bytes: int | None) -> dict[str, list[int]]:
        read = store.generations(SEARCH, "resnet18", most_bytes=most_bytes)
        return {g.boot_id: [s.sequence for s in several] for g, several in read}

    everything = {boot: [*range(1, count_of + 1)] for boot, count_of in (("a", 200), ("b", 20), ("c", 200))}
    assert found(None) == found(430 * size) == everything
    some = found(102 * size)
    assert some["b"] == [*range(1, 21)]
    several = len(some["a"])
    assert 32 <= several <= 34, "a third of what one judgement reads"
    assert some["a"] == some["c"]
    assert some["a"] == [*range(1, several // 2 + 1), *range(201 - (several - several // 2), 201)]


def test_a_start_with_runs_of_any_size_costs_no_judgement_its_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {f"phase-{number}": 0.1 for number in range(150)}
    runs = [sample(number, phases=large if number > 100 else {}) for number in range(1, 1_001)]
    store.take(generation(), runs)
    most, rows, read = 100_000, store.session.rows, 0

    def counted(statement: Executable, given: object = None) -> Sequence[Any]:
        nonlocal read
        found = rows(statement, given)
        read += sum(len(value) for row in found for value in row if isinstance(value, bytes))
        return found

    monkeypatch.setattr(store.session, "rows", counted)
    [(_, several)] = store.generations(SEARCH, "resnet18", most_bytes=most)
    assert most / 2 < read < most + 2 * MAX_BYTES
    sequences = [run.sequence for run in several]
    first = next(place for place, sequence in enumerate(sequences, 1) if sequence != place) - 1
    assert first > 100
    assert sequences[first:] == [*range(1_001 - len(sequences) + first, 1_001)]


def test_only_the_newest_starts_that_fit_are_read(store: Store) -> None:
    for number in range(6):
        large = {"large": "x" * 3_000}
        store.take(generation(f"{number}", started_at=T + number, environment=large), samples(1, 3))

    def found(most_bytes: int) -> list[str]:
        return [g.boot_id for g, _ in store.generations(SEARCH, "resnet18", most_bytes=most_bytes)]

    assert found(100_000) == ["0", "1", "2", "3", "4", "5"]
    assert found(7_500) == ["4", "5"]
    assert found(1_000) == ["5"], "the last one in any case"


def test_a_judgement_reads_few_starts_however_many_containers_come_and_go(store: Store) -> None:
    """Of each image those of containers that run, and the first and the latest of the others: others take no place."""
    ran = {
        "old": [(f"old-{n}", 8, 0.0) for n in range(20)],
        "nameless": [(f"x-{n}", 2, 1e5 + n) for n in range(80)],
        "new": [(f"new-{n}", 8, 2e5 + 100.0 * n) for n in range(80)],
        "other": [(f"other-{n}", 2, 3e5 + n) for n in range(80)],
        "live": [(f"live-{n}", 8, 3e5) for n in range(80)],
    }
    with store.session.transaction():
        store.take(
            generation(container="main", image_id="old"),
            [sample(n, started_at=T + 3e4 * n) for n in range(11)],
        )
        for image, starts in ran.items():
            for container, runs, at in starts:
                start = generation(container=container, image_id=image, started_at=T + at)
                store.take(start, [sample(n, started_at=T + at + n) for n in range(runs)])
    read = {g.container for g, _ in store.generations(SEARCH, "resnet18", most_bytes=1 << 30)}
    assert {"main", *(name for name, *_ in ran["old"] + ran["live"])} <= read
    for image in ("nameless", "new", "other"):
        names = [name for name, *_ in ran[image]]
        assert [name for name in names if name in read] == names[:8] + names[-56:]
    assert len(store.generations(SEARCH, "resnet18")) == 341, "all for who compares stored starts"


def test_a_judgement_reads_few_starts_however_often_containers_restart(store: Store) -> None:
    with store.session.transaction():
        for number in range(40):
            for container in ("a", "b", "c"):
                at = T + 1_000 * number
                runs = [sample(n, started_at=at + n) for n in range(5)]
                store.take(generation(f"{number}", container=container, started_at=at), runs)
    read = [
        (g.container, int(g.boot_id)) for g, _ in store.generations(SEARCH, "resnet18", most_bytes=1 << 30)
    ]
    assert len(read) == 8 + 56 + 3 * 8
    assert {(container, 39 - n) for container in "abc" for n in range(8)} <= {*read}
    assert read[:8] == [(container, n) for n in range(3) for container in "abc"][:8], "when the image began"


def test_a_probe_that_invents_canaries_and_phases_costs_little(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [sample(number, canary=f"canary-{number}") for number in range(100)]
    assert store.take(generation(), many) == 32
    assert capsys.readouterr().out.count("give the container fewer canaries") == 1
    assert store.take(generation(), many) == 0
    phases = {f"phase-{number}-{'x' * 200}": 0.1 for number in range(100)}
    assert len(encode(sample(1, phases=phases, tags=("stalled",)))) < 200
    assert decode([encode(sample(1, phases=phases))]) == [sample(1, phases={})]


def test_a_report_that_cannot_be_kept_costs_only_itself(store: Store) -> None:
    """PostgreSQL keeps no NUL, no text has half a surrogate pair, and no integer more than 64 bits."""
    reports = [
        StartReport(generation(container="a"), of_probe(1, 2)),
        StartReport(generation(container="zero\0"), of_probe(1, 2)),
        StartReport(generation(container="image", image="\ud800"), of_probe(1, 2)),
        StartReport(generation(container="half\ud800"), []),
        StartReport(generation(container="c"), of_probe(1, 2, 2**70)),
        StartReport(generation(container="unknown"), of_probe(1), is_found=True),
        StartReport(generation(container="d"), of_probe(1, 2)),
    ]
    with capture_logs() as logs:
        taken = intake.take(store, reports)
    kept = {"a", "d"} | ({"zero\0"} if store.fleet is None else set())
    assert taken == {STORED: 2 * len(kept), STORE_ERRORS: 6 - len(kept), LEFT_OUT: 1}
    assert {start.container for start in starts_of(store, SEARCH)} == kept
    assert count(store) == 2 * len(kept)
    refused = {log["container"]: log["exc_info"] for log in logs if log["event"] == "runs not stored"}
    assert len(refused) == taken[STORE_ERRORS] and not any(refused.values()), "no fault of ours"
    assert STORED not in intake.take(store, reports), "each once"
    check_counts(store)


# Once ------------------------------------------------------------------------------------------------------------


DELIVERIES = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 40), max_size=20), st.booleans()), max_size=30
)


@given(DELIVERIES)
def test_any_order_of_any_deliveries_is_taken_once(
    in_memory: Opens, deliveries: list[tuple[str, list[int], bool]]
) -> None:
    deliver(in_memory(None), deliveries)


@settings(max_examples=8)
@given(DELIVERIES)
def test_any_order_of_any_deliveries_is_taken_once_by_postgresql(
    in_postgres: Opens, deliveries: list[tuple[str, list[int], bool]]
) -> None:
    deliver(in_postgres(None), deliveries)


def deliver(store: Store, deliveries: list[tuple[str, list[int], bool]]) -> None:
    expected: dict[str, set[int]] = {"a": set(), "b": set()}
    for boot, sequences, again in deliveries:
        new = set(sequences) - expected[boot]
        expected[boot] |= new
        runs = [failure(sequence) if sequence % 7 == 0 else sample(sequence) for sequence in sequences]
        assert store.take(generation(boot), runs) == len(new)
        if again:
            assert store.take(generation(boot), reversed(runs)) == 0
    for boot, sequences_taken in expected.items():
        assert [s.sequence for s in kept(store, boot)] == sorted(sequences_taken)
    assert count(store) == sum(map(len, expected.values()))


class Interrupted(Exception):
    """The process ends, or an error comes, before a transaction does."""


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_a_probe_delivers_is_taken_once_through_thinning_restarts_and_failures(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a ring does: from any earlier place on, so that a client that lost its cursor gets all of it again."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    with ExitStack() as opened:
        live(data, path, opened)


def live(data: st.DataObject, path: Path, opened: ExitStack) -> None:
    store = open_store(path, SMALL)
    opened.callback(store.close)
    reached = 0
    now = T
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["take", "take", "take", "abort", "thin", "reopen"]))
        begin = data.draw(st.integers(max(0, reached - 300), reached))
        end = data.draw(st.integers(begin, begin + 200))
        runs = [failure(n) if n % 50 == 0 else sample(n) for n in range(begin + 1, end + 1)]
        if action == "take":
            assert store.take(generation(), runs) == max(0, end - reached)
            reached = max(reached, end)
        elif action == "abort":
            with suppress(Interrupted), store.session.transaction():
                store.take(generation("other"), [])
                store.take(generation(), runs)
                raise Interrupted
        elif action == "thin":
            now += 900
            store.thin(now)
        else:
            store.close()
            store = open_store(path, SMALL)
            opened.callback(store.close)
        succeeded = sum(1 for n in range(1, reached + 1) if n % 50)
        found = kept(store)
        assert sum(s.runs for s in found if not s.failed) == succeeded
        assert [s.sequence for s in found] == sorted({s.sequence for s in found})
        assert sum(s.failed for s in found) == min(reached // 50, SMALL.failed)
        assert count(store) == len(found)
        assert store.taken(SEARCH, "resnet18").get(("search-1", "boot"), 0) == succeeded
        check_counts(store)


# Thinning --------------------------------------------------------------------------------------------------------


def test_a_block_is_the_median_of_its_runs() -> None:
    runs = [
        sample(
            1,
            median=0.010,
            phases={"compute": 0.009},
            controls={"spin": 1.0},
            sm_clock=1.4e9,
            tags=("stalled",),
            clock_reason="hw_thermal",
        ),
        sample(
            2,
            median=0.012,
            phases={"compute": 0.010, "queue": 0.2},
            tags=("gc",),
            output_error=1e-7,
            clock_reason="sw_thermal",
        ),
        sample(
            3, median=0.050, phases={"compute": 0.040}, sm_clock=1.2e9, tags=("stalled",), output_error=1e-3
        ),
        sample(4, median=0.011, phases={}, repeats=9, clock_reason="sw_thermal"),
    ]
    assert merge(runs) == Sample(
        4, "resnet18", T + 10, "ok", pytest.approx(0.0115), 9, {"compute": 0.010, "queue": 0.2}, {"spin": 1.0},  # type: ignore[arg-type]
        1.3e9, ("stalled",), 1e-3, 4, clock_reason="sw_thermal",
    )  # fmt: skip
    of_blocks = merge([merge(runs), merge(runs[:3]), merge(runs[1:2])])
    assert of_blocks.runs == 8
    assert of_blocks.tags == ("stalled",)


def test_a_block_is_of_the_runs_that_count() -> None:
    """The judge leaves out those beside a sweep: a block must be able to stand for the others."""
    beside = [sample(n, median=0.030, tags=("beside_canary",)) for n in (1, 2, 3)]
    steady = [sample(n, median=0.010, tags=("stalled",)) for n in (4, 5)]
    block = merge([*beside, *steady])
    assert (block.median, block.tags, block.runs, block.sequence) == (0.010, ("stalled",), 5, 5)
    assert block.started_at == beside[0].started_at
    assert merge(beside).tags == ("beside_canary",)


def simulate(
    store: Store, runs: range, boot_id: str = "boot", seconds: float = 10.0, **given: object
) -> None:
    """Runs as they come, and thinning every quarter of an hour."""
    step = max(1, int(900 / seconds))
    for begin in range(runs.start, runs.stop, step):
        end = min(begin + step, runs.stop)
        store.take(
            generation(boot_id, **given),
            [sample(n, started_at=T + n * seconds) for n in range(begin, end)],
        )
        store.thin(T + end * seconds)


def test_weeks_of_one_image(in_memory: Opens) -> None:
    """By the defaults, at a run in 10 s."""
    file, keep = in_memory(None), Retention()
    day = int(DAY / 10)
    sizes = []
    for number in range(21):
        simulate(file, range(number * day, (number + 1) * day))
        found = kept(file)
        end = (number + 1) * day
        assert found[: keep.opening] == [sample(n) for n in range(keep.opening)], "the looks can be replayed"
        assert found[-keep.raw :] == [sample(n) for n in range(end - keep.raw, end)]
        assert sum(s.runs for s in found) == end, (
            "a median stands for all of its runs, and none is counted twice"
        )
        first_day = [s for s in found if s.started_at < T + DAY]
        assert sum(s.runs for s in first_day) == day and max(s.runs for s in first_day) <= BLOCK
        assert [s.started_at for s in found] == sorted(s.started_at for s in found)
        sizes.append(len(found))
        assert len(found) == count(file)
    check_counts(file)
    last_week = [s for s in kept(file) if s.started_at >= T + 15 * DAY]
    assert max(s.runs for s in last_week) == BLOCK, "a week in blocks"
    assert sizes[0] < 2_100 and max(sizes) < 8_000
    assert sizes[20] - sizes[19] < 30, "one row an hour"
    for block in kept(file):
        if block.runs == BLOCK:
            last = block.sequence
            assert block.median == median(sample(n).median or 0 for n in range(last - BLOCK + 1, last + 1))


def test_the_runs_of_all_looks_are_kept(store: Store) -> None:
    latest = LIVE.decide.looks[-1]
    simulate(store, range(10_000))
    assert kept(store)[:latest] == samples(latest)


def test_each_model_of_one_image_keeps_its_newest_runs(opened: Opens) -> None:
    """New weights are compared with runs of the old ones, and those are not thinned out by their successor's."""
    store = opened(SMALL)
    runs = SMALL.opening + 4 * SMALL.raw
    for number, model in enumerate(("file:1", "file:2")):
        begun = T + number * DAY / 24
        start = generation(model, started_at=begun, environment={"model:resnet18": model})
        store.take(start, [sample(i, started_at=begun + 10 * i) for i in range(runs)])
        store.thin(begun + 10 * runs)
    for _, found in store.generations(SEARCH, "resnet18"):
        assert [s.sequence for s in found[-SMALL.raw :]] == [*range(runs - SMALL.raw, runs)]
        assert {s.runs for s in found[-SMALL.raw :]} == {1}


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_canary_keeps_its_history_whatever_weights_another_one_gets(
    in_memory: Opens, replicas: int
) -> None:
    """Also where they are drawn anew at each start: that many models are bounded as starts of one image are."""
    store = in_memory(SMALL)
    runs = SMALL.opening + 2 * SMALL.raw + SMALL.slack
    now = T
    for number in range(40):
        for replica in range(replicas):
            environment = {"model:resnet18": "file:1", "model:other": f"file:{number}-{replica}"}
            given = generation(
                f"b{number}", container=f"c-{replica}", started_at=now, environment=environment
            )
            store.take(given, [sample(i, started_at=now + 10 * i) for i in range(runs)])
        now += DAY
        store.thin(now)
    found = [(g.boot_id, s) for g, s in store.generations(SEARCH, "resnet18") if g.container == "c-0"]
    assert found[0][0] == "b0" and found[-1][0] == "b39"
    assert sum(s.runs for s in found[0][1]) >= SMALL.raw, (
        "how the image began is what a drift is measured against"
    )
    assert len(found) >= SMALL.images
    check_counts(store)
    assert count(store) <= replicas * (
        SMALL.images * (runs + SMALL.first // BLOCK)
        + SMALL.first // BLOCK
        + SMALL.raw + SMALL.slack + SMALL.blocks + SMALL.hours + 2 * HOUR + SMALL.starts
    )  # fmt: skip


def test_years_are_bounded(in_memory: Opens) -> None:
    """Hours before the last 90 days go, the first day does not."""
    store = in_memory(SMALL)
    rows = []
    for block in range(60):
        simulate(store, range(block * 1000, (block + 1) * 1000))
        rows.append(count(store))
    found = kept(store)
    assert max(rows[20:]) - min(rows[20:]) <= SMALL.slack + 90 + HOUR
    assert (
        sum(s.runs for s in found if s.sequence < SMALL.first + SMALL.opening) == SMALL.first + SMALL.opening
    )
    assert sum(s.runs == HOUR * BLOCK for s in found) == SMALL.hours
    assert count(store) == len(found)


def test_what_was_merged_is_not_new_also_where_the_opening_was_merged_last(opened: Opens) -> None:
    store = opened(SMALL)
    for boot in ("old", *"abc"):
        simulate(store, range(1, 100), boot, seconds=1.0)
    store.take(generation("old"), [])
    store.thin(T)
    assert all(run.runs > 1 for run in kept(store, "old")), "its opening, too"
    assert store.take(generation("old"), samples(1, 100)) == 0
    check_counts(store)


def test_failed_runs_do_not_push_out_good_ones(store: Store) -> None:
    simulate(store, range(2_000))
    good = [s for s in kept(store) if s.runs == 1]
    store.take(generation(), [failure(n) for n in range(2_000, 12_000)])
    store.thin(T + 200_000)
    found = kept(store)
    assert [s for s in found if s.runs == 1 and not s.failed] == good
    assert [s.sequence for s in found if s.failed] == list(range(12_000 - Retention().failed, 12_000))
    assert store.take(generation(), [failure(n) for n in range(2_000, 12_000)]) == 0, "dropped is not new"


def test_blocks_do_not_span_starts_and_each_of_the_last_ones_keeps_its_opening(store: Store) -> None:
    keep = Retention()
    lengths = [700, 1_500, 290, 5, 40, 700, 800, 2_000, 650, 300, 1_100]
    for number, length in enumerate(lengths):
        simulate(store, range(1, length + 1), f"boot-{number}", started_at=T + number)
    found = store.generations(SEARCH, "resnet18")
    assert [g.boot_id for g, _ in found] == [f"boot-{number}" for number in range(len(lengths))]
    for (_, several), length in zip(found, lengths, strict=True):
        assert sum(s.runs for s in several) == length
    for (_, several), length in [*zip(found, lengths, strict=True)][-keep.opening_starts :]:
        opening = min(length, keep.opening)
        assert [s.sequence for s in several][:opening] == list(range(1, opening + 1))
    assert sum(s.runs == 1 for _, several in found for s in several) < keep.opening_starts * keep.opening + (
        keep.raw + keep.slack + BLOCK
    )
    assert all(s.runs > 1 for s in found[0][1])
    check_counts(store)


def test_a_crash_loop_is_bounded_and_keeps_how_it_began(store: Store) -> None:
    """Starts without runs, as of a server that ends before its first one, take the place of none that has some."""
    for number in range(200):
        store.take(generation(f"boot-{number}", started_at=T + number), samples(1, 4))
        store.take(generation(f"empty-{number}", started_at=T + number), [])
    store.thin(T)
    boots = [g.boot_id for g in starts_of(store, SEARCH)]
    kept = [*range(8), *range(144, 200)]
    assert boots == [f"{kind}-{number}" for number in kept for kind in ("boot", "empty")]
    assert store.newest_starts(SEARCH) == {"search-1": starts_of(store, SEARCH)[-1]}
    store.take(generation("boot-200", started_at=T + 200), [])
    store.thin(T + 900)
    assert store.fleet or len(starts_of(store, SEARCH)) == 2 * len(kept), "swept each quarter of an hour"
    assert len(store.generations(SEARCH, "resnet18")) == Retention().starts == len(kept)
    check_counts(store)


STARTS = (
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700)), min_size=1, max_size=10),
    st.sampled_from([1.0, 10.0, 300.0]),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, -4e9, 3e8, 86_399.0]), min_size=10, max_size=10),
)


@settings(max_examples=40, deadline=None)
@example([(2, 2), (2, 1), (2, 1)], 1.0, [0.0] * 10)
@given(*STARTS)
def test_whatever_a_container_goes_through(
    in_memory: Opens, starts: list[tuple[int, int]], seconds: float, steps: list[float]
) -> None:
    go_through(in_memory(SMALL), starts, seconds, steps)


@settings(max_examples=6, deadline=None)
@given(*STARTS)
def test_whatever_a_container_goes_through_in_postgresql(
    in_postgres: Opens, starts: list[tuple[int, int]], seconds: float, steps: list[float]
) -> None:
    go_through(in_postgres(SMALL), starts, seconds, steps)


def go_through(store: Store, starts: list[tuple[int, int]], seconds: float, steps: list[float]) -> None:
    """Any upgrades, rollbacks and restarts at any pace, with clocks that are set: what must stay, stays."""
    clock = T
    history: list[tuple[str, list[Sample]]] = []
    for number, (image, length) in enumerate(starts):
        clock += steps[number]
        runs = [sample(n, started_at=clock + n * seconds) for n in range(1, length + 1)]
        given = generation(f"boot-{number}", image_id=f"sha256:{image}", started_at=clock)
        store.take(given, [])
        for begin in range(0, length, 90):
            store.take(given, runs[begin : begin + 90])
            store.thin(clock + (begin + 90) * seconds)
        store.take(given, runs)
        clock += length * seconds
        history.append((f"sha256:{image}", runs))
    store.thin(clock)
    check_counts(store)
    found = {g.boot_id: several for g, several in store.generations(SEARCH, "resnet18")}
    # The starts of a container are in the order in which they were seen, whatever the clock showed.
    assert [*found] == [boot for boot in (f"boot-{n}" for n in range(len(starts))) if boot in found]
    for of_image in {key for key, _ in history}:
        own = [(number, runs) for number, (key, runs) in enumerate(history) if key == of_image]
        if len(own) > SMALL.starts:
            continue
        every = [run for _, runs in own for run in runs]
        stored = [s for number, _ in own for s in found.get(f"boot-{number}", [])]
        assert all(run in stored for run in every[-SMALL.raw :])
        early = SMALL.first - BLOCK * len(own)
        assert sum(s.runs for s in stored if s.runs <= BLOCK) >= min(len(every), max(0, early))
        with_runs = [number for number, runs in own if runs]
        for number in with_runs[-SMALL.opening_starts :]:
            assert found[f"boot-{number}"][: SMALL.opening] == history[number][1][: SMALL.opening]
    assert count(store) <= 3 * (SMALL.raw + SMALL.slack + SMALL.first // BLOCK + 2 * SMALL.opening + 90) + (
        SMALL.blocks + SMALL.hours + 2 * HOUR + 2 * len(starts)
    )


# Clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, T - 20 * DAY, T + 10 * 365 * DAY, 8e9, 5.0])
def test_a_clock_that_jumps_costs_nothing(wrong: float, store: Store) -> None:
    for image in range(4):
        simulate(store, range(1, 1_000), f"boot-{image}", image_id=f"sha256:{image}", started_at=T + image)
    before = [(g, several) for g, several in store.generations(SEARCH, "resnet18")]
    for now in (wrong, T + 10_000, wrong, wrong + 1, T + 10_000):
        store.thin(now)
    assert store.generations(SEARCH, "resnet18") == before
    store.take(
        generation("boot-3", image_id="sha256:3"),
        [sample(n, started_at=wrong + n) for n in range(1_000, 3_000)],
    )
    store.thin(wrong)
    after = store.generations(SEARCH, "resnet18")
    assert after[:3] == before[:3]
    assert sum(s.runs for s in after[3][1]) == 2_999
    assert sum(s.runs for s in after[3][1] if s.runs <= BLOCK) == 2_999, "still of the first 8,640 runs"


def test_a_host_that_boots_in_1970_keeps_its_order(store: Store) -> None:
    times = [T, 30.0, T + 500, 40.0, T + 400]
    for number, started_at in enumerate(times):
        given = generation(f"boot-{number}", started_at=started_at, image_id=f"sha256:{number}")
        store.take(given, samples(1, 5))
    assert [g.started_at for g in starts_of(store, SEARCH)] == times
    assert [g.started_at for g, _ in store.generations(SEARCH, "resnet18")] == times


def test_a_clock_that_is_set_back_leaves_a_start_after_what_ran_before_it(store: Store) -> None:
    store.take(generation("old", container="a", started_at=T), samples(1, 50))
    store.take(generation("old", container="b", started_at=T + 60), samples(1, 50))
    store.take(generation("new", container="a", started_at=T - DAY), samples(1, 5))
    assert [(g.container, g.boot_id) for g in starts_of(store, SEARCH)] == [
        ("a", "old"),
        ("b", "old"),
        ("a", "new"),
    ]


def test_containers_are_ordered_by_when_they_started_not_by_when_they_were_found(store: Store) -> None:
    for name, started_at in (("b", T + 50), ("a", T), ("c", T + 20)):
        store.take(generation(container=name, started_at=started_at), [])
    assert [g.container for g in starts_of(store, SEARCH)] == ["a", "c", "b"]


def test_time_counts_while_an_exporter_watches(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    now = T
    store = open_store(path)
    for number in range(4):
        store.take(generation(f"boot-{number}", image_id=f"sha256:{number}"), samples(1, 5))
    for _ in range(80):
        now += DAY
        store.thin(now)
        store.close()
        store = open_store(path)
    assert len(starts_of(store, SEARCH)) == 4
    for _ in range(20):
        store.take(generation("boot-1", image_id="sha256:1"), [])  # runs again, or still
        now += DAY
        store.thin(now)
    assert [g.boot_id for g in starts_of(store, SEARCH)] == ["boot-1", "boot-3"], (
        "90 days; the newest two stay"
    )
    for _ in range(100):
        for name in "abc":
            store.take(generation(name, container=name, image_id=name), [])
        now += DAY
        store.thin(now)
    assert [g.boot_id for g in starts_of(store, SEARCH)] == [*"abc"], "seen again and again"
    store.close()


# Images and containers that have had their time ------------------------------------------------------------------


class StartRecord(NamedTuple):
    """A row of queries.records()."""

    id: int
    container: str
    image_key: str
    seen: float
    namespace: str = ""
    service: str = "s"
    canaries: int = 1


def starts(*several: tuple[str, str, float]) -> list[StartRecord]:
    """Container, image and when it was seen, oldest first."""
    return [StartRecord(number, *one) for number, one in enumerate(several)]


def remaining(several: list[StartRecord], age: float, keep: Retention = SMALL) -> list[str]:
    gone = expired(several, age, keep)
    return [start.image_key for start in several if start.id not in gone]


def test_the_newest_images_stay() -> None:
    days = [(f"c-{n}", f"image-{n}", n * DAY) for n in range(10)]
    assert remaining(starts(*days), 9 * DAY) == ["image-7", "image-8", "image-9"]
    assert remaining(starts(*days), 30 * DAY) == ["image-7", "image-8", "image-9"]
    assert remaining(starts(*days), 400 * DAY) == ["image-8", "image-9"], (
        "the current and the previous for ever"
    )


def test_images_that_run_stay_however_many() -> None:
    running = [(f"c-{n}", f"image-{n}", 100 * DAY) for n in range(10)]
    assert len(remaining(starts(*running), 100 * DAY)) == 10
    replaced = [("c", f"image-{n}", 100 * DAY) for n in range(10)]
    assert remaining(starts(*replaced), 100 * DAY) == ["image-7", "image-8", "image-9"], "in one container"


def test_a_rollback_makes_the_old_image_the_current_one() -> None:
    several = starts(("c", "a", 1 * DAY), ("c", "b", 2 * DAY), ("c", "x", 3 * DAY), ("c", "a", 4 * DAY))
    assert remaining(several, 400 * DAY) == ["a", "x", "a"]


def test_containers_that_were_not_seen_for_longest_are_forgotten() -> None:
    several = starts(*((f"c-{n}", "image", n * DAY) for n in range(6)))
    gone = expired(several, 50 * DAY, SMALL)
    assert sorted(gone) == [0, 1, 2]
    assert expired(starts(*((f"c-{n}", "image", 50 * DAY) for n in range(6))), 50 * DAY, SMALL) == []


def test_a_container_is_dropped_with_all_that_is_its_own(in_memory: Opens) -> None:
    store = in_memory(SMALL)
    now = T
    for number in range(8):
        name = f"c-{number}"
        store.take(generation(service=name, container=name, environment={"n": name}), samples(1, 50))
        store.save(ServiceKey("", name), "resnet18", "state", now, b"{}")
        for _ in range(3):
            store.thin(now := now + DAY)
    names = ["c-5", "c-6", "c-7"]
    assert [service.name for service, _ in store.canaries()] == names
    kept = [f"c-{n}" for n in range(8) if store.history(ServiceKey("", f"c-{n}"), "resnet18", "state")]
    assert kept == names
    check_counts(store)
    assert (
        store.take(generation(service="c-7", container="c-7", environment={"n": "c-7"}), samples(1, 50)) == 0
    )


# Documents -------------------------------------------------------------------------------------------------------


def test_documents(location: str) -> None:
    service = ServiceKey("", "s")
    with closing(open_store(location)) as store:
        assert store.history(service, "c", "verdict") == []
        if store.fleet is not None:
            store.fleet.hold({service})
        for number in range(250):
            at = T - number  # the order is that of saving, whatever the clock says
            store.save(service, "c", "verdict", at, b"%d" % number)
        store.save(service, "other", "state", T, b"x")
    with closing(open_store(location)) as store:
        history = store.history(service, "c", "verdict")
        assert len(history) == 100 and history[-1] == Document(T - 249, b"249") and history[0].body == b"150"
        assert store.history(service, "other", "state") == [Document(T, b"x")]


def test_the_documents_of_a_canary_go_with_its_last_run(opened: Opens) -> None:
    """A probe may invent names for months: its service stays, and the store must not grow for them."""
    store, now = opened(SMALL), T
    for number in range(12):
        canary = f"invented-{number}"
        start = generation(f"boot-{number:02}", started_at=now)
        store.take(start, [msgspec.structs.replace(one, canary=canary) for one in samples(1, 5)])
        store.save(SEARCH, canary, "state", now, b"{}")
        for _ in range(3):
            store.thin(now := now + DAY)
    left = {canary for _, canary in store.canaries()}
    assert 1 < len(left) <= SMALL.starts
    documents = {f"invented-{n}" for n in range(12) if store.history(SEARCH, f"invented-{n}", "state")}
    assert documents == left


# Transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_is_kept_as_a_whole_or_not_at_all(store: Store) -> None:
    with store.session.transaction():
        for number in range(5):
            assert store.take(generation(container=f"c-{number}"), samples(1, 4)) == 3
    assert count(store) == 15
    with suppress(Interrupted), store.session.transaction():
        store.take(generation(container="c-0"), samples(1, 8))
        store.take(generation(container="new"), samples(1, 8))
        store.save(SEARCH, "resnet18", "state", T, b"")
        raise Interrupted
    assert count(store) == 15
    assert store.history(SEARCH, "resnet18", "state") == []
    assert store.take(generation(container="c-0"), samples(1, 8)) == 4
    assert store.take(generation(container="new"), samples(1, 8)) == 7
    check_counts(store)


# One name in two namespaces --------------------------------------------------------------------------------------


def test_two_namespaces_share_nothing(opened: Opens) -> None:
    prod, test = ServiceKey("prod", "search"), ServiceKey("test", "search")
    store = opened(SMALL)
    if store.fleet is not None:
        store.fleet.hold({SEARCH, prod, test})
    for seconds, service in enumerate((SEARCH, prod, test)):
        # A probe may claim another's boot id.
        start = generation(namespace=service.namespace, image=f"search:{seconds}", image_digest="sha256:d")
        assert store.take(start, samples(1, 4 + seconds)) == 3 + seconds
        store.save(service, "resnet18", "verdict", T, service.namespace.encode())
    assert store.canaries() == [(service, "resnet18") for service in (SEARCH, prod, test)]
    assert store.canaries([prod]) == [(prod, "resnet18")]
    assert {run.service for run in store.last_runs("")} == {SEARCH, prod, test}
    for runs, service in enumerate((SEARCH, prod, test), 3):
        [(start, found)] = store.generations(service, "resnet18")
        assert (start.key, len(found), start.image) == (service, runs, f"search:{runs - 3}")
        assert store.taken(service, "resnet18") == {("search-1", "boot"): runs}
        assert starts_of(store, service) == [start] == [store.start_of(service, "search-1", "boot")]
        [document] = store.history(service, "resnet18", "verdict")
        assert document.body.decode() == service.namespace
    store.take(generation(namespace="prod"), samples(4, 400))
    store.thin(T)
    assert store.taken(test, "resnet18") == {("search-1", "boot"): 5}
    check_counts(store)


# Rows that a failing disk made unreadable ------------------------------------------------------------------------


def test_what_cannot_be_read_is_left_out_and_said(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.take(generation(), samples(1, 3_000))
    store.take(generation("other", started_at=T + 1), samples(1, 5))
    spoilt = ", ".join(map(str, random.Random(5).sample(range(1, 3_000), 500)))
    longest = "SELECT series FROM sample GROUP BY series ORDER BY count(*) DESC LIMIT 1"
    query(
        store,
        f"UPDATE sample SET body = :body WHERE sequence IN ({spoilt}) AND series = ({longest})",
        body=b"\x93\xff",
    )
    query(store, "UPDATE start SET body = :body WHERE boot_id = 'other'", body=b"\xc1")
    assert len(kept(store)) == 2_499
    assert [g.boot_id for g in starts_of(store, SEARCH)] == ["boot"]
    said = capsys.readouterr().out
    assert "runs=500" in said and "a stored start cannot be read" in said
    store.thin(T)
    assert sum(s.runs for s in kept(store)) == 2_499
    check_counts(store)
    store.take(generation("other", started_at=T + 1), samples(1, 5))


def test_what_ran_on_a_host_and_when(store: Store) -> None:
    """Not what neither Docker nor Kubernetes found, nor what ran on another host."""
    for name, host, image in (("a", "one", "sha256:1"), ("b", "two", "sha256:1"), ("static", "one", "")):
        start = generation(service=name, container=name, host=host, image_id=image)
        store.take(start, samples(1, 4))
        store.take(start, samples(2, 3))
    assert store.last_runs("one") == [LastRun(ServiceKey("", "a"), "a", "resnet18", T + 30)]
    assert store.last_runs("") == []
