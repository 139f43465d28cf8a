"""After days, the store still has all rows that the judge replays at each restart."""

import random

import pytest
from stores import CANARY, DAY, SEARCH, T, generation, sample

from infercanary.judge.model import Start
from infercanary.judge.verdict import Judge

HOUR_SECONDS = DAY / 24


def runs(begin, end, slower_at, seed):
    """Yield a run every 10 s, slower by 10 % from ``slower_at`` on."""
    rng = random.Random(seed)
    for number in range(int((end - begin) / 10)):
        at = begin + 10 * number
        median = 0.02 * (1.1 if at >= slower_at else 1.0) * rng.lognormvariate(0, 0.01)
        yield sample(number + 1, started_at=T + at, median=median, phases={})


def take(store, container, boot, image, begin, end, slower_at):
    start = generation(boot, container=container, image_id=image, started_at=T + begin)
    store.take(start, runs(begin, end, slower_at, boot))
    for _ in range(3):  # first into blocks, then into hours, then beyond
        store.take(start, [])
        store.thin(T + end)


def test_replicas_that_stay_show_what_the_host_did_also_days_after_an_upgrade(in_memory):
    store, upgrade = in_memory(None), 2 * DAY
    again, end = upgrade + 4 * DAY, upgrade + 4 * DAY + HOUR_SECONDS / 2
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
