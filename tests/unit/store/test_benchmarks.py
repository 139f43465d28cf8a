"""Recorded benchmarks: each is stored once, found by any digest of its image, and independent of all other tables."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from stores import CANARY, T, generation, query, samples

from infercanary.judge.identity import Digests
from infercanary.judge.model import Start
from infercanary.store import benchmarks
from infercanary.store.benchmarks import Benchmark, compact, read, save
from tests.scenarios import typed

IMAGE = Digests("sha256:c", "sha256:m", "sha256:i")


def benchmark(boot="b", canary=CANARY, **given):
    known: dict[str, Any] = {
        "at": T,
        "digests": IMAGE,
        "baseline": "a",
        "verdict": "equivalent",
        "shift": 0.004,
    }
    start = compact(Start(generation(boot, service="ab", host="ci"), samples(12)))
    return Benchmark(canary=canary, starts=[start], **known | given)


def test_a_benchmark_is_stored_once_and_read_as_it_was(store):
    first, other = benchmark(), benchmark(baseline="other")
    for each in (first, other, first):
        save(store.session, [each])
    later = replace(first, at=T + 1, shift=0.01)
    save(store.session, [later])
    assert read(store.session) == [later, other]
    assert [run.median for run in later.starts[0][1]] == [run.median for run in samples(12)]


FOUND = """
[sha256:c] | resnet18 | true
[sha256:m] | resnet18 | true
[other, sha256:i] | resnet18 | true
[other] | resnet18 | false
[sha256:c] | bert | false
"""


@pytest.mark.parametrize(("digests", "canary", "is_found"), typed(FOUND))
def test_any_digest_of_the_image_finds_it(store, digests, canary, is_found):
    save(store.session, [benchmark(), benchmark("outside", digests=Digests())])
    assert bool(read(store.session, canary, digests)) == is_found


def test_the_latest_of_each_canary_are_kept_whatever_happens_to_production(store, monkeypatch):
    monkeypatch.setattr(benchmarks, "KEPT", 3)
    store.take(generation(), samples(20))
    several = [benchmark(f"b{n}", at=T + n) for n in range(5)]
    save(store.session, [benchmark("other", "bert"), *several])
    store.thin(T)
    query(store, "DELETE FROM start")
    store.thin(T + 1e6)
    assert store.canaries() == []
    assert [each.at - T for each in read(store.session)] == [0, 4, 3, 2]


def test_a_row_that_is_unreadable_costs_no_other(store):
    save(store.session, [benchmark(), benchmark(baseline="other")])
    query(store, "UPDATE benchmark SET body = :body WHERE id = :id", body=b"no", id=benchmark().id)
    assert read(store.session) == [benchmark(baseline="other")]


def test_many_runs_are_merged_to_as_many_as_a_report_needs():
    start = Start(generation(profiles={CANARY: []}), samples(1000))
    kept, runs = compact(start)
    assert (kept.profiles, 8 <= len(runs) <= 16, sum(run.runs for run in runs)) == ({}, True, 1000)
    middle = runs[len(runs) // 2].median
    assert middle is not None
    assert math.isclose(middle, samples(1000)[500].median, rel_tol=0.01)
