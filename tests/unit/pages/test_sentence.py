"""The sentence of a result: a table of scenarios with one golden line each, and its length.

``python tests/unit/pages/test_sentence.py`` writes the golden file anew: read its difference.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.contract.measures import HOST_MEMORY, SPREAD
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import Operators, OperatorShift
from infercanary.judge.origin import Origin
from infercanary.judge.policy import LIVE
from infercanary.judge.result import STATES, Causes, Change, Doubts, Looks, Part, Result
from infercanary.judge.shift import Restarts
from infercanary.pages.sentence import SENTENCE_BYTES, listed, measure_words, progress, sentence

FILE = Path(__file__).parents[2] / "golden" / "sentences.txt"

SLOW: dict[str, Any] = {
    "state": "regressed",
    "shift": 1.78,
    "low": 1.16,
    "high": 2.59,
    "baseline": 0.0575,
    "current": 0.16,
}
FAST: dict[str, Any] = {
    "state": "improved",
    "shift": -0.1,
    "low": -0.12,
    "high": -0.08,
    "baseline": 0.02,
    "current": 0.018,
}
EQUAL: dict[str, Any] = {
    "state": "equivalent",
    "shift": 0.001,
    "low": -0.004,
    "high": 0.006,
    "baseline": 0.02,
    "current": 0.02002,
}
OPEN: dict[str, Any] = {
    "state": "inconclusive",
    "shift": 0.02,
    "low": -0.05,
    "high": 0.1,
    "baseline": 0.02,
    "current": 0.0204,
}
MAYBE: dict[str, Any] = {
    "state": "unconfirmed",
    "shift": 0.041,
    "low": 0.012,
    "high": 0.07,
    "baseline": 0.0575,
    "current": 0.0599,
}
KNOWN = Restarts(0.01, 20.0)
HOST, IMAGE = Part(0.1, 0.08, 0.12), Part(0.15, 0.1, 0.2)
CONV = OperatorShift(
    "aten::conv2d", 0.0098, 0.0312, 0.84, "grew", "mkldnn_convolution → _slow_conv2d_forward"
)
ADDED = OperatorShift("aten::op", 0.0, 0.002, 0.5, "new")
TORCH = Change("torch", "2.7.0", "2.13.0")
CAPABILITY = Change("torch_cpu_capability", "AVX512", "DEFAULT")
VARIABLE = Change("env_ONEDNN_MAX_CPU_ISA", None, "SSE41")
SOURCE = "https://github.com/acme/search"
COMMITS = Origin("1a2b3c4d5e6f" + "0" * 28, SOURCE, "1.4"), Origin("9f8e7d6c5b4a" + "1" * 28, SOURCE, "1.5")


def slow(cause: str = "image", **causes: Any) -> Result:
    return Result(causes=Causes(cause=cause, **causes), **SLOW)  # type: ignore[arg-type]


def of(verdict: dict[str, Any], **fields: Any) -> Result:
    return Result(**{"restart": KNOWN, **verdict, **fields})


SCENARIOS: dict[str, Result] = {
    # States and leads.
    "the issue's example": slow(changes=(CAPABILITY,),
        bottlenecks={"compute": 0.97, "io": 0.03}, phases={"compute": 1.0}, has_controls=True,
    ),
    "improved": of(FAST, causes=Causes(cause="image", changes=(TORCH,), has_controls=True)),
    "equivalent": of(EQUAL, causes=Causes(changes=(TORCH,), has_controls=True)),
    "inconclusive": of(OPEN),
    "unconfirmed": of(MAYBE),
    "unconfirmed, needs starts": of(MAYBE, looks=Looks(192, None, needs_starts=True)),
    "settling": Result(state="settling"),
    "settling, new model": Result(state="settling", changed="model"),
    "settling, both": Result(state="settling", changed="both"),
    "no earlier image": Result(state="no_baseline"),
    "too few runs before": Result(state="no_baseline", upgraded_at=1.0),
    "image rolled back": Result(state="no_baseline", rolled_back_image="search:2", candidate_image="search:1"),
    "model rolled back": Result(state="no_baseline", rolled_back_image="search:1", candidate_image="search:1"),
    "settings changed": Result(state="no_baseline", settings_changed_at=1.78e9),
    "settings changed at no time": Result(state="no_baseline", settings_changed_at=math.nan),
    "coarse clock": of(OPEN, only=0.02),
    "new model": of(SLOW, changed="model", causes=Causes(cause="image", changes=(Change("model", "m1", "m2"),))),
    "both exchanged": of(SLOW, changed="both", causes=Causes(cause="image")),
    "factors": of(SLOW, shift=10.1, low=7.5, high=13.4, current=0.64, causes=Causes(cause="image")),
    "without medians": of(SLOW, baseline=None, causes=Causes(cause="image")),
    "a latency of seconds": of(SLOW, baseline=1.234, current=3.43, causes=Causes(cause="image")),
    "a latency of microseconds": of(SLOW, baseline=12e-6, current=33e-6, causes=Causes(cause="image")),
    # Causes.
    "host": slow("host"),
    "both": slow("both", host=HOST, image=IMAGE),
    "load": slow("load"),
    "unknown": slow("unknown"),
    "unknown, siblings": slow("unknown", unknown_siblings=True),
    "unknown, waiting": slow("unknown", unknown_waiting=True),
    "unknown, load": slow("unknown", unknown_load=True),
    # Alarms.
    "memory kills": slow(memory_kills=(1, 3)),
    "CPU fallback": slow(cpu_fallback=True),
    "CPU fallback without a baseline": Result(state="no_baseline", upgraded_at=1.0, causes=Causes(cpu_fallback=True)),
    "output changed": slow(output_error=0.25),
    "output tokens": of(EQUAL, causes=Causes(output_tokens=(100.0, 200.0))),
    "cold start": slow(cold_start={"load": (2.0, 9.0), "time_to_steady": (5.4, 10.0)}),
    "other weights": of(OPEN, doubts=Doubts(redrawn=4)),
    # Explanations.
    "versions": slow(changes=(TORCH, Change("cpu_quota", "4", "2"), Change("scipy", None, "1.16"), VARIABLE)),
    "more than four components": slow(changes=tuple(Change(f"c{i}", "a", "b") for i in range(6))),
    "shares of resources": slow(
        bottlenecks={"scheduling": 0.6, "compute": 0.35, "io": 0.06, "memory": -0.01},
        phases={"launch": 0.6, "compute": 0.4},
    ),
    "a resource beside the unknown": slow(bottlenecks={"unknown": 0.6, "io": 0.4}, phases={"receive": 0.6}),
    "an unknown resource": slow(bottlenecks={"unknown": 0.9, "io": 0.1}, phases={"wait": 0.9}),
    "phase alone": slow(phases={"compute": 1.0}, has_controls=True),
    "an operator": slow(operators=Operators("explained", (CONV, ADDED), 0.9)),
    "a new operator": slow(operators=Operators("explained", (ADDED,), 0.5)),
    "outside of operators": slow(operators=Operators("outside", (), 0.2)),
    "operators unexplained": slow(operators=Operators("unexplained")),
    "other processes in the container": slow(inside=(0.0, 0.5)),
    "controls": slow("host", controls={"cpu_spin": 0.12, "memory_copy": -0.03}),
    "siblings": slow("host", siblings=HOST),
    "flat siblings": slow(siblings=Part(0.001, 0.0, 0.002)),
    "clock": slow(clock=Part(0.05, 0.04, 0.06)),
    "tags": slow("unknown", tags={"gpu_busy": (0.0, 1.0), "gpu_clock_limited (hw_thermal)": (0.1, 0.9)}),
    # Conditions.
    "restart variance assumed": of(MAYBE, restart=Restarts(0.012, LIVE.pool.restart_df)),
    "restart variance known": of(OPEN),
    "rollback": of(FAST, rollback=True, own=Part(0.003, -0.005, 0.011), causes=Causes(cause="image")),
    "rollback without history": of(FAST, rollback=True, causes=Causes(cause="image")),
    "images by name": of(SLOW, doubts=Doubts(is_by_reference=True), causes=Causes(cause="image")),
    "concurrent baseline": of(EQUAL, concurrent=2, concurrent_shift=0.08),
    "one concurrent replica": of(OPEN, concurrent=1, changed="model"),
    "after subtracting CPU wait": of(SLOW, is_unwaited=True, causes=Causes(cause="image")),
    "contended starts": of(EQUAL, contended=2),
    "hosts": of(EQUAL, hosts=3),
    "commits": of(SLOW, origins=COMMITS, causes=Causes(cause="image")),
    "commits that are not to blame": of(SLOW, origins=COMMITS, causes=Causes(cause="host")),
    "all at once": of(
        SLOW, origins=COMMITS, hosts=3, contended=2, is_unwaited=True, concurrent=2, concurrent_shift=0.08,
        rollback=True,
        doubts=Doubts(is_by_reference=True, redrawn=4),
        causes=Causes(
            cause="image", memory_kills=(0, 2), cpu_fallback=True, output_error=0.25, output_tokens=(100.0, 200.0),
            cold_start={"load": (2.0, 9.0)}, changes=(TORCH, CAPABILITY, VARIABLE), bottlenecks={"compute": 1.0},
            operators=Operators("explained", (CONV,), 0.9), controls={"cpu_spin": 0.12}, siblings=HOST,
            tags={"gpu_busy": (0.0, 1.0)},
        ),
    ),
}  # fmt: skip


def golden() -> str:
    return "".join(f"{name}: {sentence(result)}\n" for name, result in SCENARIOS.items())


def test_the_words() -> None:
    assert golden().splitlines() == FILE.read_text("utf-8").splitlines()
    assert {result.state for result in SCENARIOS.values()} == {*STATES}


def test_progress_is_no_part_of_a_sentence() -> None:
    for verdict, first in (({"state": "settling"}, "collecting: 3 of 5 runs"), (OPEN, "next look at 5 runs")):
        early, late = (Result(runs=runs, looks=Looks(0, 5), **verdict) for runs in (3, 4))
        assert sentence(early) == sentence(late) and progress(early) == first
    assert progress(Result(looks=Looks(5, 8), **SLOW)) == progress(Result(looks=Looks(192), **OPEN)) == ""


WORDS = st.text(max_size=300) | st.sampled_from(
    ["🦜" * 300, "x" * 300, "\u202eabc\n", "{0.rank} {}", "a, " * 90]
)
NUMBERS = st.floats(-1, 1e300) | st.floats(-0.9, 2)
OPERATOR_SHIFTS = st.builds(OperatorShift, WORDS, NUMBERS, NUMBERS, NUMBERS, st.just("grew"), WORDS)
CAUSES = st.builds(
    Causes,
    cause=st.sampled_from(["image", "host", "both", "load", "unknown"]),
    host=st.builds(Part, NUMBERS, NUMBERS, NUMBERS), image=st.builds(Part, NUMBERS, NUMBERS, NUMBERS),
    phases=st.dictionaries(WORDS, NUMBERS, max_size=4), controls=st.dictionaries(WORDS, NUMBERS, max_size=4),
    bottlenecks=st.dictionaries(st.sampled_from(["compute", "memory", "io", "unknown"]), NUMBERS),
    changes=st.lists(st.builds(Change, WORDS | st.just("env_X"), st.none() | WORDS, WORDS), max_size=6).map(tuple),
    tags=st.dictionaries(WORDS, st.tuples(NUMBERS, NUMBERS), max_size=3),
    cold_start=st.dictionaries(WORDS, st.tuples(NUMBERS, NUMBERS), max_size=3),
    output_error=st.none() | NUMBERS, output_tokens=st.none() | st.tuples(NUMBERS, NUMBERS), cpu_fallback=st.booleans(),
    memory_kills=st.tuples(st.integers(0, 9), st.integers(0, 10**9)),
    operators=st.builds(Operators, st.just("explained"), st.tuples(OPERATOR_SHIFTS)),
    inside=st.none() | st.tuples(NUMBERS, NUMBERS), unknown_siblings=st.booleans(),
)  # fmt: skip
SHIFTS = {"shift": NUMBERS, "low": NUMBERS, "high": NUMBERS | st.just(math.inf)}
RESULTS = st.builds(
    Result, state=st.sampled_from(STATES), causes=CAUSES, baseline=st.none() | NUMBERS, current=NUMBERS,
    rolled_back_image=WORDS,
    changed=st.sampled_from(["image", "model", "both"]), doubts=st.builds(Doubts, st.booleans(), st.integers(0, 9)),
    origins=st.tuples(st.builds(Origin, WORDS, WORDS, WORDS), st.builds(Origin, WORDS, WORDS, WORDS)),
    rollback=st.booleans(), hosts=st.integers(0, 9), settings_changed_at=st.none() | NUMBERS, **SHIFTS,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(RESULTS, WORDS, st.lists(WORDS, max_size=2))
def test_whatever_it_says_it_has_300_bytes_and_every_alarm(
    result: Result, subject: str, also: list[str]
) -> None:
    text = sentence(result, subject=subject, also=also)
    assert 0 < len(text.encode()) <= SENTENCE_BYTES and text.isprintable()
    assert text.startswith(("no ", "nothing ") if result.state == "no_baseline" else result.state)
    causes = result.causes
    assert ("killed for memory" in text) or causes.memory_kills[1] <= causes.memory_kills[0]
    assert ("CPU fallback" in text) or not causes.cpu_fallback
    assert ("output changed" in text) or not causes.output_changed
    assert ("output tokens" in text) or causes.output_tokens is None
    assert ("other weights" in text) or not result.doubts.redrawn or result.shift is None


def test_the_least_important_is_left_out_first_and_as_a_whole() -> None:
    changes = tuple(Change(f"component-{i}", "🦜" * 20, "x") for i in range(2))
    said = [
        sentence(slow(changes=changes[:count], has_controls=True, tags={"gpu_busy": (0.0, 1.0)}))
        for count in range(3)
    ]
    assert ["gpu_busy" in text for text in said] == [True, True, False]
    assert all("controls flat" in text and text.count("→ x") == count for count, text in enumerate(said))


@pytest.mark.parametrize(
    ("name", "low", "high", "words"),
    [
        (HOST_MEMORY, 0.28, 0.34, "host memory regressed +31.0 % [+28.0, +34.0]"),
        (SPREAD.name, 0.28, 0.34, "run-to-run spread regressed +31.0 % [+28.0, +34.0]"),
        ("of a newer probe", 0.28, 0.34, "of a newer probe regressed +31.0 % [+28.0, +34.0]"),
        (HOST_MEMORY, -1.0, math.inf, "host memory regressed ×1.31 [×0, ×∞]"),
        (HOST_MEMORY, None, None, "host memory regressed"),
    ],
)
def test_a_measures_words(name: str, low: float | None, high: float | None, words: str) -> None:
    assert measure_words(name, MeasureVerdict("regressed", 0.31, low, high)) == words
    assert words in sentence(of(EQUAL), also=[words])


OPERATORS = "Cast (4 nodes), Concat (12 nodes), Gather (20 nodes), Unique"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], ""),
        ([Change(f"c{i}", "a", "b") for i in range(5)], "c0 a → b, c1 a → b, c2 a → b, c3 a → b, 1 more component"),
        ([VARIABLE, TORCH], "torch 2.7.0 → 2.13.0, env_ONEDNN_MAX_CPU_ISA none → SSE41"),
        ([Change("c", "a, b", "a, d")], "c a, b → a, d"),
        ([Change("c", None, OPERATORS)], "c none → Cast (4 nodes), Concat (12 nodes), Gath…"),
        ([Change("c", OPERATORS, OPERATORS.replace("Unique", "NonZero, Unique"))], "c …, Unique → …, NonZero, Unique"),
    ],
)  # fmt: skip
def test_changes_that_are_listed(changes: list[Change], words: str) -> None:
    assert listed(changes) == words


if __name__ == "__main__":
    FILE.write_text(golden(), "utf-8")
