"""Measures other than latency: names and properties."""

from infercanary.contract.measures import MEASURES, measure_of, throughput_of
from tests.scenarios import cases


def test_each_is_found_by_its_name():
    assert {name: measure_of(name) for name in MEASURES} == dict(MEASURES)
    assert all(measure.name == name for name, measure in MEASURES.items())


@cases(
    [
        ((8, 1), "throughput at batch 8"),
        ((1, 4), "throughput at batch 1 with 4 requests at a time"),
        ((4096, 64), "throughput at batch 4096 with 64 requests at a time"),
    ],
)
def test_a_load_is_in_its_name(load, words):
    measure = measure_of(throughput_of(*load))
    assert (measure.words, measure.name) == (words, throughput_of(*load))
    assert measure.is_judged
    assert measure.more_is_better


@cases(
    ["", "memory", "throughput@8", "throughput@0x1", "throughput@8x1 ", "throughput@٣x1", "energy@8x1"],
)
def test_a_name_of_a_newer_probe_is_unknown(name):
    assert measure_of(name) is None
