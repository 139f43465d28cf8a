"""What the judge needs of a store is there days later: it replays its looks at each restart."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stores import CANARY, DAY, SEARCH, SMALL, Opens, T, check_counts, count, generation, sample

from infercanary.judge.model import Sample, Start
from infercanary.judge.verdict import Judge
from infercanary.store.retention import BLOCK, HOUR
from infercanary.store.store import Store

HOURS = DAY / 24


def runs(begin: float, end: float, slower_at: float, seed: str) -> Iterator[Sample]:
    """Yield a run in 10 s, by 10 % slower from a moment on."""
    rng = random.Random(seed)
    for number in range(int((end - begin) / 10)):
        at = begin + 10 * number
        median = 0.02 * (1.1 if at >= slower_at else 1.0) * rng.lognormvariate(0, 0.01)
        yield sample(number + 1, started_at=T + at, median=median, phases={})


def take(
    store: Store, container: str, boot: str, image: str, begin: float, end: float, slower_at: float
) -> None:
    """Take the runs of a start, thinned as often as needed."""
    start = generation(boot, container=container, image_id=image, started_at=T + begin)
    store.take(start, runs(begin, end, slower_at, boot))
    for _ in range(3):  # into blocks, hours, and beyond
        store.take(start, [])
        store.thin(T + end)


@pytest.mark.parametrize("later", [1 * HOURS, 12 * HOURS, 4 * DAY])
def test_replicas_that_stay_show_what_the_host_did_also_days_after_an_upgrade(
    in_memory: Opens, later: float
) -> None:
    """The host slows down at the moment of the upgrade; later a replica restarts, and the judge looks again."""
    store, upgrade = in_memory(None), 2 * DAY
    again, end = upgrade + later, upgrade + later + HOURS / 2
    take(store, "a", "a-1", "old", 0, upgrade, upgrade)
    for name in "bc":
        take(store, name, f"{name}-1", "old", 0, end, upgrade)
    take(store, "d", "d-1", "old", 0, again, upgrade)
    take(store, "a", "a-2", "new", upgrade, end, upgrade)
    take(store, "d", "d-2", "old", again, end, upgrade)
    read = store.generations(SEARCH, CANARY, most_bytes=32 << 20)
    found = Judge().verdict([Start.of(start, samples) for start, samples in read], [], CANARY)
    assert found.concurrent == 3
    assert found.concurrent_shift == pytest.approx(0.1, abs=0.01)
    assert found.shift == pytest.approx(0.0, abs=0.01)


MANY_STARTS = msgspec.structs.replace(SMALL, starts=40)


@settings(max_examples=40, deadline=None)
@example([(0, 0, 60, False)] * 20)
@example([(0, model, 300, False) for model in range(36)])
@example([(0, 0, 60, False), *((1, model, 60, False) for model in range(6))])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 700), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_the_size_is_bounded_and_each_image_keeps_its_newest_runs_whatever_comes(
    in_memory: Opens, starts: list[tuple[int, int, int, bool]]
) -> None:
    """Images, models of them, runs of a start, and whether they fail."""
    store = in_memory(MANY_STARTS)
    for number, (image, model, length, fails) in enumerate(starts):
        begun = T + 1e4 * number
        start = generation(
            f"boot-{number}",
            image_id=f"{image}",
            started_at=begun,
            environment={f"model:{CANARY}": f"{model}"},
        )
        outcome = {"outcome": "raised", "median": None} if fails else {}
        store.take(start, [sample(n, started_at=begun + 10 * n, **outcome) for n in range(1, length + 1)])
        for _ in range(3):
            store.take(start, [])
            store.thin(begun + 1e4)
    models = len({key[:2] for key in starts})
    shared = len({image for image, *_ in starts}) if models > MANY_STARTS.images else 0
    of_window = (
        MANY_STARTS.opening * MANY_STARTS.opening_starts
        + MANY_STARTS.raw
        + MANY_STARTS.slack
        + MANY_STARTS.first // BLOCK
    )
    of_all = MANY_STARTS.blocks + HOUR + MANY_STARTS.hours + MANY_STARTS.failed
    assert count(store) <= (min(models, MANY_STARTS.images) + shared) * of_window + of_all
    check_counts(store)
    read = {start.boot_id: several for start, several in store.generations(SEARCH, CANARY)}
    last = {
        image: (number, length)
        for number, (image, _, length, fails) in enumerate(starts)
        if length and not fails
    }
    for number, length in last.values():
        newest = [*range(max(1, length - MANY_STARTS.raw + 1), length + 1)]
        assert [s.sequence for s in read[f"boot-{number}"] if s.runs == 1][-len(newest) :] == newest
