"""The judge's store: each run once, thinned with age, for repeated deliveries and wrong clocks."""

import random
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pytest
import recorded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stores import (
    CANARY,
    DAY,
    SEARCH,
    SMALL,
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

from infercanary.contract.profile import Profile
from infercanary.contract.report import Run
from infercanary.exporter.judging import intake
from infercanary.exporter.judging.queue import StartReport
from infercanary.exporter.judging.store_metrics import LEFT_OUT, STORE_ERRORS, STORED
from infercanary.judge.model import ServiceKey, merge
from infercanary.judge.origin import Origin
from infercanary.judge.policy import LIVE
from infercanary.judge.profiles import pack, unpacked
from infercanary.store.base import Document, LastRun
from infercanary.store.reading import to_judge
from infercanary.store.records import MAX_BYTES, decode, encode
from infercanary.store.retention import BLOCK, HOUR, Retention, expired
from infercanary.store.store import open_store
from tests.scenarios import cases

KEEP = Retention()


def boots(store, **limits):
    return [start.boot_id for start, _ in store.generations(SEARCH, CANARY, **limits)]


def simulate(store, runs, boot_id="boot", step=90, **given):
    for begin in range(runs.start, runs.stop, step):
        end = min(begin + step, runs.stop)
        store.take(generation(boot_id, **given), samples(begin, end))
        store.thin(T + 10 * end)


# Stored and read data ------------------------------------------------------------------------------------------


def test_stored_runs_are_read_by_the_next_process(location):
    given = generation(
        image_digest="sha256:d", outputs={CANARY: (0.1, -2.5e-7)}, cold_start={CANARY: {"load": 1.5}},
        origin=Origin("9f8e7d6c5b4a", "https://github.com/acme/search", "1.5"), ended_at=T + 60.0,
    )  # fmt: skip
    whole = sample(
        7, median=0.0101, runs=9, phases={"compute": 0.009, "launch": 0.001}, controls={"cpu_spin": 0.002},
        sm_clock=1.41e9, tags=("stalled", "throttled"), output_error=1e-7,
    )  # fmt: skip
    failed, other = failure(8), sample(9, canary="bert")
    with closing(open_store(location)) as store:
        assert store.take(given, [failed, whole, other]) == 3
    with closing(open_store(location)) as store:
        assert store.generations(SEARCH, CANARY) == [(given, [whole, failed])]
        assert store.generations(SEARCH, "bert") == [(given, [other])]
        assert starts_of(store) == [given] == [store.start_of(SEARCH, "search-1", "boot")]
        assert starts_of(store)[0] is starts_of(store)[0]  # equal bytes are decoded once
        assert store.start_of(SEARCH, "search-1", "other") is None
        assert store.canaries() == [(SEARCH, "bert"), (SEARCH, CANARY)]
        assert store.taken(SEARCH, CANARY) == {("search-1", "boot"): 1}
        assert store.session.size_bytes or store.fleet
        assert store.take(given, [failed, whole, other]) == 0


def test_facts_about_a_start_may_change_except_its_time(store):
    store.take(generation(), samples(1, 2))
    later = generation(started_at=T - 500, image="search:latest", environment={"torch": "2.14.0"})
    assert store.take(later, samples(1, 3)) == 1
    assert starts_of(store) == [msgspec.structs.replace(later, started_at=T)]


@cases(
    [
        ({"container": "b"}, "1"),
        ({"since": T + 400}, "45"),
        ({"container": "a", "since": T + 100}, "2345"),
        ({"most_bytes": 100_000}, "012345"),
        ({"most_bytes": 7_500}, "45"),
        ({"most_bytes": 1_000}, "5"),  # the last start is always read
    ],
)
def test_starts_of_a_container_since_a_moment_that_fit(limits, found, store):
    for number, container in enumerate("abaaaa"):
        start = generation(
            f"{number}", container=container, started_at=T + 100 * number, environment={"large": "x" * 3_000}
        )
        store.take(start, samples(1, 3))
    assert boots(store, **limits) == [*found]


def test_the_data_that_a_judgement_reads_is_limited(store):
    """Starts share the limit equally. If a start exceeds its share, only its first and last runs are read."""
    large = {f"phase-{number}": 0.1 for number in range(150)}
    store.take(
        generation("a"), [sample(number, phases=large if number > 100 else {}) for number in range(1, 1_001)]
    )
    store.take(generation("b", started_at=T + 1), samples(1, 21))
    [(_, some), (_, whole)] = store.generations(SEARCH, CANARY, most_bytes=100_000)
    assert 25_000 < sum(map(len, map(encode, some))) < 50_000 + 2 * MAX_BYTES
    assert len(whole) == 20
    numbers = [run.sequence for run in some]
    first = next(place for place, number in enumerate(numbers) if number != place + 1)
    assert first > 100
    assert numbers[first:] == [*range(1_001 - len(numbers) + first, 1_001)]


RUNNING, GONE = 1e9, 1e5
"""Times of a container's last run."""
SOME = [0, 1, *range(24, 80)]
"""The first and the latest of 80 starts."""


@cases(
    [
        (20, 20, 8, RUNNING, [*range(20)]),
        (80, 80, 2, GONE, SOME),
        (80, 80, 2, RUNNING, SOME),  # too few runs
        (80, 80, 8, GONE, SOME),
        (80, 80, 8, RUNNING, [*range(80)]),
        (3, 120, 5, RUNNING, [0, 1, *range(96, 120)]),  # each container restarts
    ],
)
def test_a_judgement_reads_few_starts_of_containers_that_come_and_go_or_restart(
    containers, starts, runs, at, read
):
    """For each image, the judgement reads starts of running containers, and the first and latest starts of the
    others.
    """

    def row(number, container, image):
        return SimpleNamespace(
            id=number, container=container, image_key=image, taken=runs, last_at=RUNNING if number < 0 else at
        )

    rows = [row(-1, -1, "old"), *(row(n, n % containers, "new") for n in range(starts))]
    assert [each.id for each in to_judge(rows)] == [-1, *read]


def test_a_probe_that_invents_canaries_and_phases_costs_little(store):
    many = [sample(number, canary=f"canary-{number}") for number in range(100)]
    with capture_logs() as logs:
        assert store.take(generation(), many) == 32
    assert [log["refused"] for log in logs] == [68]
    assert store.take(generation(), many) == 0
    large = sample(1, phases={f"phase-{number}-{'x' * 200}": 0.1 for number in range(100)}, tags=("stalled",))
    assert len(encode(large)) < 200
    assert decode([encode(large)]) == [sample(1, phases={})]


def test_a_report_that_cannot_be_kept_costs_only_itself(store):
    """PostgreSQL rejects NUL, and both databases reject half a surrogate pair and integers of more than 64 bits."""
    reports = []
    for container, image, sequences in (
        ("a", "", (1, 2)),
        ("zero\0", "", (1, 2)),
        ("image", "\ud800", (1, 2)),
        ("half\ud800", "", ()),
        ("c", "", (1, 2, 2**70)),
        ("unknown", "", (1,)),
        ("d", "", (1, 2)),
    ):
        runs = [Run(n, CANARY, T, T + n, "ok", (0.01,)) for n in sequences]
        start = generation(container=container, image=image)
        reports.append(StartReport(start, runs, is_found=container == "unknown"))
    with capture_logs() as logs:
        taken = intake.take(store, reports)
    kept = {"a", "d"} | ({"zero\0"} if store.fleet is None else set())
    assert taken == {STORED: 2 * len(kept), STORE_ERRORS: 6 - len(kept), LEFT_OUT: 1}
    assert {start.container for start in starts_of(store)} == kept
    refused = {log["container"]: log["exc_info"] for log in logs if log["event"] == "runs not stored"}
    # the log does not call a refused report a bug
    assert len(refused) == taken[STORE_ERRORS] and not any(refused.values())
    assert STORED not in intake.take(store, reports)  # each report is stored once
    check_counts(store)


def test_last_runs_on_a_host(store):
    for name, host, image in (("a", "one", "sha256:1"), ("b", "two", "sha256:1"), ("static", "one", "")):
        start = generation(service=name, container=name, host=host, image_id=image)
        store.take(start, samples(1, 4))
        store.take(start, samples(2, 3))
    assert store.last_runs("one") == [LastRun(ServiceKey("", "a"), "a", CANARY, T + 30)]
    assert store.last_runs("") == []


def test_unreadable_runs_are_left_out_and_logged(in_memory):
    """The rows look like those of a failing disk. A merge of rows omits them as well."""
    store = in_memory(None)
    store.take(generation(), samples(1, 3_000))
    spoilt = ", ".join(map(str, random.Random(5).sample(range(1, 3_000), 500)))
    query(store, f"UPDATE sample SET body = :body WHERE sequence IN ({spoilt})", body=b"\x93\xff")
    with capture_logs() as logs:
        assert len(kept(store)) == 2_499
    assert [log["runs"] for log in logs] == [500]
    store.thin(T)
    assert sum(run.runs for run in kept(store)) == 2_499
    check_counts(store)


# Each run once ---------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """The process ends, or an error occurs, before a transaction ends."""


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_runs_are_stored_once_through_thinning_restarts_and_failures(data, tmp_path_factory):
    """A client without a cursor gets all runs again, because it may read a probe's buffer from any earlier position."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    store = open_store(path, SMALL)
    reached, now = 0, T
    for action in data.draw(
        st.lists(st.sampled_from(["take", "take", "abort", "thin", "reopen"]), max_size=25)
    ):
        begin = data.draw(st.integers(max(0, reached - 300), reached))
        end = data.draw(st.integers(begin, begin + 200))
        runs = [sample(number) if number % 5 else failure(number) for number in range(begin + 1, end + 1)]
        if action == "take":
            assert store.take(generation(), runs) == max(0, end - reached)
            reached = max(reached, end)
        elif action == "abort":
            with suppress(Interrupted), store.session.transaction():
                store.take(generation("other"), [])
                store.take(generation(), runs)
                store.save(SEARCH, CANARY, "state", T, b"")
                raise Interrupted
        elif action == "thin":
            store.thin(now := now + 900)
        else:
            store.close()
            store = open_store(path, SMALL)
        found = kept(store)
        ran = [run for run in found if not run.failed]
        assert [run.sequence for run in found] == sorted({run.sequence for run in found})
        assert min(reached // 5, SMALL.failed) <= len(found) - len(ran) <= reached // 5
        assert (
            sum(run.runs for run in ran)
            == reached - reached // 5
            == sum(store.taken(SEARCH, CANARY).values())
        )
        assert count(store) == len(found)
        assert store.history(SEARCH, CANARY, "state") == []
        check_counts(store)
    store.take(generation(), [])
    store.thin(now)
    assert sum(run.failed for run in kept(store)) == min(reached // 5, SMALL.failed)
    store.close()


# Thinning --------------------------------------------------------------------------------------------------------


def test_a_block_is_the_median_of_its_runs():
    runs = [
        sample(1, median=0.010, runs=9, controls={"spin": 1.0}, sm_clock=1.4e9, tags=("stalled",)),
        sample(2, median=0.012, phases={"compute": 0.010, "queue": 0.2}, tags=("gc",), output_error=1e-7,
               clock_reason="b"),
        sample(3, median=0.050, phases={"compute": 0.040}, sm_clock=1.2e9, tags=("stalled",), output_error=1e-3),
        sample(4, median=0.011, clock_reason="b", phases={}),
    ]  # fmt: skip
    block = sample(
        4, started_at=T + 10, median=pytest.approx(0.0115), runs=12, phases={"compute": 0.010, "queue": 0.2},
        controls={"spin": 1.0}, sm_clock=1.3e9, tags=("stalled",), output_error=1e-3, clock_reason="b",
    )  # fmt: skip
    assert merge(runs) == block
    of_blocks = merge([merge(runs), merge(runs[:3]), merge(runs[1:2])])
    assert of_blocks.runs == 24
    assert of_blocks.tags == ("stalled",)
    # The judge excludes runs during a sweep, so a block must use its other runs, if it has any.
    beside = samples(1, 4, median=0.030, tags=("beside_canary",))
    block = merge([*beside, *samples(4, 6, median=0.010, tags=("stalled",))])
    assert (block.median, block.tags, block.runs, block.sequence) == (0.010, ("stalled",), 5, 5)
    assert block.started_at == beside[0].started_at
    assert merge(beside).tags == ("beside_canary",)


def test_weeks_of_one_image(in_memory):
    store, day, sizes = in_memory(None), int(DAY / 10), []
    for number in range(11):
        simulate(store, range(number * day, (number + 1) * day), step=720)
        found, end = kept(store), (number + 1) * day
        assert found[: KEEP.opening] == samples(KEEP.opening)  # the looks can be replayed
        assert found[-KEEP.raw :] == samples(end - KEEP.raw, end)
        assert sum(run.runs for run in found) == end  # a run is counted twice
        first_day = [run.runs for run in found if run.started_at < T + DAY]
        assert sum(first_day) == day
        assert max(first_day) <= BLOCK
        sizes.append(len(found))
    assert KEEP.opening >= LIVE.decide.looks[-1]
    # the store keeps blocks for a week
    assert max(run.runs for run in found if run.started_at >= T + 5 * DAY) == BLOCK
    assert sizes[0] < 2_100 and max(sizes) < 8_000 and sizes[10] - sizes[9] < 30  # one row for each hour
    check_counts(store)


def test_a_canary_keeps_its_history_whatever_weights_another_one_gets(in_memory):
    """The other canary may get new random weights at each start."""
    store, now = in_memory(SMALL), T
    length = SMALL.opening + 2 * SMALL.raw + SMALL.slack
    for number in range(40):
        environment = {f"model:{CANARY}": "file:1", "model:other": f"file:{number}"}
        start = generation(f"b{number}", started_at=now, environment=environment)
        store.take(start, [sample(run, started_at=now + 10 * run) for run in range(length)])
        store.thin(now := now + DAY)
    starts = [(start.boot_id, runs) for start, runs in store.generations(SEARCH, CANARY)]
    assert len(starts) >= SMALL.images
    assert (starts[0][0], starts[-1][0]) == ("b0", "b39")
    # the first runs stay, as the baseline of a drift
    assert sum(run.runs for run in starts[0][1]) >= SMALL.raw
    check_counts(store)


def test_years_are_bounded(in_memory):
    """The store drops hours before the last 90 days, but keeps the first day."""
    store, first = in_memory(SMALL), SMALL.first + SMALL.opening
    simulate(store, range(20_000), step=500)
    half = count(store)
    simulate(store, range(20_000, 40_000), step=500)
    assert abs(count(store) - half) <= SMALL.slack + 90 + HOUR
    found = kept(store)
    assert sum(run.runs for run in found if run.sequence < first) == first
    hours = sum(run.runs == HOUR * BLOCK for run in found)
    assert SMALL.hours <= hours <= SMALL.hours + 2  # only rows since the last thinning may exceed the limit


def test_the_opening_of_an_older_start_is_merged_once_newer_ones_fill_the_window(in_memory):
    store = in_memory(SMALL)
    for boot in ("old", *"abc"):
        simulate(store, range(1, 100), boot)
    store.take(generation("old"), [])
    store.thin(T)
    assert all(run.runs > 1 for run in kept(store, "old"))
    assert store.take(generation("old"), samples(1, 100)) == 0


def test_a_crash_loop_is_bounded_and_keeps_how_it_began(store):
    """A server that ends before its first run causes starts without runs, which must not displace a start with runs."""
    for number in range(200):
        store.take(generation(f"boot-{number}", started_at=T + number), samples(1, 4))
        store.take(generation(f"empty-{number}", started_at=T + number), [])
    store.thin(T)
    stay = [*range(8), *range(144, 200)]
    assert [start.boot_id for start in starts_of(store)] == [
        f"{kind}-{number}" for number in stay for kind in ("boot", "empty")
    ]
    assert store.newest_starts(SEARCH) == {"search-1": starts_of(store)[-1]}
    assert len(boots(store)) == KEEP.starts == len(stay)
    check_counts(store)


@settings(max_examples=25, deadline=None)
@example([(2, 2), (2, 1), (2, 1)], 1.0, [0.0] * 10)
@example([*[(1, 1)] * 6, (2, 36)], 1.0, [0.0] * 10)
@example([(model, 301) for model in range(1, 37)], 1.0, [0.0] * 10)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700)), min_size=1, max_size=10),
    st.sampled_from([1.0, 10.0, 300.0]),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, -4e9, 3e8, 86_399.0]), min_size=10, max_size=10),
)
def test_whatever_a_container_goes_through(in_memory, starts, seconds, steps):
    store, clock = in_memory(SMALL), T
    history = []
    for number, (image, length) in enumerate(starts):
        clock += steps[number % 10]
        runs = [sample(n, started_at=clock + n * seconds) for n in range(1, length + 1)]
        # Images 1 and 2 are two models of one image, because new weights are compared with runs of the old
        # weights.
        models = {f"model:{CANARY}": f"file:{image}"}
        start = generation(
            f"{number}", image_id=f"sha256:{min(image, 1)}", environment=models, started_at=clock
        )
        store.take(start, [])
        for begin in range(0, length, 90):
            store.take(start, runs[begin : begin + 90])
            store.thin(clock + (begin + 90) * seconds)
        assert store.take(start, runs) == 0
        clock += length * seconds
        history.append((image, runs))
    store.thin(clock)
    assert store.take(start, runs) == 0  # merged runs are not stored again
    check_counts(store)
    window = SMALL.opening * SMALL.opening_starts + SMALL.raw + SMALL.slack + SMALL.first // BLOCK
    assert count(store) <= (SMALL.images + 1) * window + SMALL.blocks + HOUR + SMALL.hours
    found = {int(start.boot_id): runs for start, runs in store.generations(SEARCH, CANARY)}
    assert [*found] == sorted(found)  # starts are in the order of reports, for any clock
    for of_image in {image for image, _ in history}:
        own = [(number, runs) for number, (image, runs) in enumerate(history) if image == of_image]
        if sum(min(image, 1) == min(of_image, 1) for image, _ in history) > SMALL.starts:
            continue  # the limit of starts is for the image, not for its models
        every = [run for _, runs in own for run in runs]
        stored = [run for number, _ in own for run in found.get(number, [])]
        assert all(run in stored for run in every[-SMALL.raw :])
        for number in [number for number, runs in own if runs][-SMALL.opening_starts :]:
            assert found[number][: SMALL.opening] == history[number][1][: SMALL.opening]


# Clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_costs_nothing(in_memory):
    store = in_memory(KEEP)
    for image in range(4):
        simulate(store, range(1, 1_000), f"{image}", image_id=f"sha256:{image}", started_at=T + image)
    before = store.generations(SEARCH, CANARY)
    for wrong in (0.0, T - 20 * DAY, T + 10 * 365 * DAY):
        for now in (wrong, T + 10_000, wrong, wrong + 1, T + 10_000):
            store.thin(now)
    assert store.generations(SEARCH, CANARY) == before


def test_starts_are_in_order_of_their_begin_and_of_one_container_as_they_came(store):
    """After a clock is set back, the start still comes after the container's earlier runs."""
    order = [("a", "old", T), ("c", "old", T + 20), ("b", "old", T + 60), ("a", "new", 30.0)]
    for container, boot, at in (order[2], *order[:2], order[3]):
        store.take(generation(boot, container=container, started_at=at), samples(1, 50))
    assert [(start.container, start.boot_id, start.started_at) for start in starts_of(store)] == order
    assert [start for start, _ in store.generations(SEARCH, CANARY)] == starts_of(store)


def test_time_counts_while_an_exporter_watches(tmp_path):
    path, now = tmp_path / "store.db", T
    store = open_store(path)
    for number in range(4):
        store.take(generation(f"{number}", image_id=f"sha256:{number}"), samples(1, 5))
    for _ in range(80):
        store.thin(now := now + DAY)
        store.close()
        store = open_store(path)
    assert len(starts_of(store)) == 4
    for _ in range(20):
        store.take(generation("1", image_id="sha256:1"), [])  # the image runs again
        store.thin(now := now + DAY)
    # older images are dropped after 90 days; the newest two stay
    assert [start.boot_id for start in starts_of(store)] == ["1", "3"]
    store.close()


# Images, containers, documents and namespaces --------------------------------------------------------------------


class StartRecord(NamedTuple):
    id: int
    container: str
    image_key: str
    seen: float
    namespace: str = ""
    service: str = "s"
    canaries: int = 1


def days(form, count, step=1, first=0):
    """Return container, image and day last seen, oldest first; the number replaces each `#`."""
    container, image = form.split()
    return [
        (container.replace("#", str(n)), image.replace("#", str(n)), first + step * n) for n in range(count)
    ]


@cases(
    [
        (days("c# i#", 10), 9, [7, 8, 9]),
        (days("c# i#", 10), 30, [7, 8, 9]),
        (days("c# i#", 10), 400, [8, 9]),  # the current and the previous image stay for ever
        (days("c# i#", 10, 0, 100), 100, [*range(10)]),  # running images stay, even if there are many
        (days("c i#", 10, 0, 100), 100, [7, 8, 9]),  # images in one container
        ([("c", "a", 1), ("c", "b", 2), ("c", "x", 3), ("c", "a", 4)], 400, [0, 2, 3]),  # a rollback
        # containers that were not seen for the longest time are dropped first
        (days("c# i", 6), 50, [3, 4, 5]),
        (days("c# i", 6, 0, 50), 50, [*range(6)]),
    ],
)
def test_images_and_containers_have_their_time(seen, age, stay):
    starts = [StartRecord(n, container, image, day * DAY) for n, (container, image, day) in enumerate(seen)]
    assert sorted({*range(len(starts))} - {*expired(starts, age * DAY, SMALL)}) == stay


def test_a_container_is_dropped_with_all_that_is_its_own(in_memory):
    store, now = in_memory(SMALL), T
    starts = [generation(service=f"c-{n}", container=f"c-{n}", environment={"n": f"{n}"}) for n in range(8)]
    for start in starts:
        store.take(start, samples(1, 50))
        store.save(start.key, CANARY, "state", now, b"{}")
        for _ in range(3):
            store.thin(now := now + DAY)
    assert [service for service, _ in store.canaries()] == [start.key for start in starts[5:]]
    assert [len(store.history(start.key, CANARY, "state")) for start in starts] == [0] * 5 + [1] * 3
    check_counts(store)
    assert store.take(starts[7], samples(1, 50)) == 0


def test_documents(location):
    with closing(open_store(location)) as store:
        assert store.history(SEARCH, "c", "verdict") == []
        if store.fleet is not None:
            store.fleet.hold({SEARCH})
        for number in range(250):  # the order of saving, not of the clock
            store.save(SEARCH, "c", "verdict", T - number, b"%d" % number)
        store.save(SEARCH, "other", "state", T, b"x")
    with closing(open_store(location)) as store:
        saved = [Document(T - number, b"%d" % number) for number in range(150, 250)]
        assert store.history(SEARCH, "c", "verdict") == saved
        assert store.history(SEARCH, "other", "state") == [Document(T, b"x")]


def test_the_first_and_the_last_profiles_of_a_start_stay(store):
    """Profiles may come later, or a restarted exporter may report none."""
    for sequence, times in enumerate([[1], [1, 2], [], [3], [4, 5, 6, 7]]):
        profiles = [Profile(at, "torch", "ok", (0.1,), (0.1,), (0.0,), ()) for at in times]
        packed = {CANARY: (*map(pack, profiles),)} if times else {}
        store.take(generation(profiles=packed), [sample(sequence)])
    [(start, _)] = store.generations(SEARCH, CANARY)
    assert [profile.taken_at for profile in unpacked(start.profiles[CANARY])] == [1, 2, 4, 5, 6, 7]


def test_a_record_of_a_stack_has_what_its_store_had(tmp_path):
    location, known = str(tmp_path / "store.db"), recorded.starts("neighbour_gone")
    with closing(open_store(location)) as store:
        for start in [start for starts in known.values() for start in starts]:
            store.take(start.generation, start.samples)
    assert recorded.parsed(b"".join(recorded.lines(location, CANARY))) == known


def test_two_namespaces_share_nothing(opened):
    prod, test = ServiceKey("prod", "search"), ServiceKey("test", "search")
    services = (SEARCH, prod, test)
    store = opened(SMALL)
    if store.fleet is not None:
        store.fleet.hold({*services})
    for runs, service in enumerate(services, 3):
        # A probe may report the boot id of another probe.
        start = generation(namespace=service.namespace, image=f"search:{runs}", image_digest="sha256:d")
        assert store.take(start, samples(1, 1 + runs)) == runs
        store.save(service, CANARY, "verdict", T, service.namespace.encode())
    assert store.canaries() == [(service, CANARY) for service in services]
    assert store.canaries([prod]) == [(prod, CANARY)]
    assert {run.service for run in store.last_runs("")} == {*services}
    store.take(generation(namespace="prod"), samples(4, 400))
    store.thin(T)
    check_counts(store)
    for service, runs in ((SEARCH, 3), (test, 5)):
        [(start, found)] = store.generations(service, CANARY)
        assert (start.key, len(found), start.image) == (service, runs, f"search:{runs}")
        assert store.taken(service, CANARY) == {("search-1", "boot"): runs}
        assert starts_of(store, service) == [start] == [store.start_of(service, "search-1", "boot")]
        assert store.history(service, CANARY, "verdict") == [Document(T, service.namespace.encode())]
