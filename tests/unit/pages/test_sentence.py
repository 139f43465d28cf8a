"""The sentence of a result: a table of scenarios with one golden line each, and its length.

``python tests/unit/pages/test_sentence.py`` rewrites the golden file: review its difference.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from infercanary.contract.measures import HOST_MEMORY, SPREAD
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import Operators, OperatorShift
from infercanary.judge.result import STATES, Causes, Change, Looks, Result
from infercanary.pages.sentence import (
    SENTENCE_BYTES,
    benchmark_words,
    listed,
    measure_words,
    progress,
    sentence,
)
from tests.programs import GOLDEN
from tests.scenarios import cases

FOLDER = GOLDEN
FILE = FOLDER / "sentences.txt"


def scenarios():
    """Return the results by name. A name with a leading full stop is a part that other scenarios include."""
    every = yaml.safe_load((FOLDER / "sentences.yaml").read_text())
    return {
        name: msgspec.convert(fields, Result) for name, fields in every.items() if not name.startswith(".")
    }


SCENARIOS = scenarios()
SLOW, OPEN, EQUAL = (SCENARIOS[name] for name in ("both exchanged", "inconclusive", "hosts"))
TORCH, VARIABLE = Change("torch", "2.7.0", "2.13.0"), Change("env_ONEDNN_MAX_CPU_ISA", None, "SSE41")


def golden():
    return "".join(
        f"{name}: {benchmark_words(result) if result.benchmark else sentence(result)}\n"
        for name, result in SCENARIOS.items()
    )


def test_the_words():
    assert golden().splitlines() == FILE.read_text().splitlines()
    assert {result.state for result in SCENARIOS.values()} == {*STATES}


@cases(
    [(Result(state="settling"), "collecting: 3 of 5 runs"), (OPEN, "next look at 5 runs"), (SLOW, "")],
)
def test_progress_is_no_part_of_a_sentence(result, said):
    early, late = (replace(result, runs=runs, looks=Looks(0, 5)) for runs in (3, 4))
    assert sentence(early) == sentence(late)
    assert progress(early) == said
    assert progress(replace(OPEN, looks=Looks(192))) == ""


WORDS = st.text(max_size=300) | st.sampled_from(
    ["🦜" * 300, "x" * 300, "\u202eabc\n", "{0.rank} {}", "a, " * 90]
)
NUMBERS = st.floats(-1, 1e300) | st.floats(-0.9, 2)
LEAVES = {str: WORDS, float: NUMBERS, int: st.integers(0, 9), bool: st.booleans(), type(None): st.none()}


def any_of(kind, **known):
    """Return a strategy for a type. Each field of a struct has a value; ``known`` has strategies of other types."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in LEAVES:
        return LEAVES[kind]
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is None:
        fields = {name: any_of(part) for name, part in get_type_hints(kind).items() if name not in known}
        return st.builds(kind, **fields, **known)
    strategies = [any_of(part) for part in parts if part is not ...]
    if origin is dict:
        return st.dictionaries(*strategies, max_size=4)
    if origin is tuple and ... not in parts:
        return st.tuples(*strategies)
    if origin in (tuple, Sequence):
        return st.lists(*strategies, max_size=6).map(tuple)
    return st.one_of(strategies)


RESULTS = any_of(
    Result,
    causes=any_of(
        Causes,
        memory_kills=st.tuples(st.integers(0, 9), st.integers(0, 10**9)),
        operators=any_of(Operators, shifts=st.tuples(any_of(OperatorShift))),
    ),
    high=NUMBERS | st.just(math.inf),
)


@settings(max_examples=100, deadline=None)
@given(RESULTS, WORDS, st.lists(WORDS, max_size=2))
def test_whatever_it_says_it_has_300_bytes_and_every_alarm(result, subject, also):
    text = sentence(result, subject=subject, also=also)
    assert 0 < len(text.encode()) <= SENTENCE_BYTES
    assert text.isprintable()
    assert text.startswith(("no ", "nothing ") if result.state == "no_baseline" else result.state)
    causes = result.causes
    assert ("killed for memory" in text) or causes.memory_kills[1] <= causes.memory_kills[0]
    assert ("CPU fallback" in text) or not causes.cpu_fallback
    assert ("output changed" in text) or not causes.output_changed
    assert ("output tokens" in text) or causes.output_tokens is None
    assert ("other weights" in text) or not result.doubts.redrawn or result.shift is None


def test_the_least_important_is_left_out_first_and_as_a_whole():
    changes = tuple(Change(f"component-{i}", "🦜" * 20, "x") for i in range(2))
    causes = Causes(cause="image", has_controls=True, tags={"gpu_busy": (0.0, 1.0)})
    said = [
        sentence(replace(SCENARIOS["host"], causes=replace(causes, changes=changes[:count])))
        for count in range(3)
    ]
    assert ["gpu_busy" in text for text in said] == [True, True, False]
    assert all("controls flat" in text and text.count("→ x") == count for count, text in enumerate(said))


@cases(
    [
        (SPREAD.name, 0.28, 0.34, "run-to-run spread regressed +31.0 % [+28.0, +34.0]"),
        ("of a newer probe", 0.28, 0.34, "of a newer probe regressed +31.0 % [+28.0, +34.0]"),
        (HOST_MEMORY, -1.0, math.inf, "host memory regressed ×1.31 [×0, ×∞]"),
        (HOST_MEMORY, None, None, "host memory regressed"),
    ],
)
def test_a_measures_words(name, low, high, words):
    assert measure_words(name, MeasureVerdict("regressed", 0.31, low, high)) == words
    assert words in sentence(EQUAL, also=[words])


OPERATORS = "Cast (4 nodes), Concat (12 nodes), Gather (20 nodes), Unique"


@cases([
        ([], ""),
        ([Change(f"c{i}", "a", "b") for i in range(5)], "c0 a → b, c1 a → b, c2 a → b, c3 a → b, 1 more component"),
        ([VARIABLE, TORCH], "torch 2.7.0 → 2.13.0, env_ONEDNN_MAX_CPU_ISA none → SSE41"),
        ([Change("c", "a, b", "a, d")], "c a, b → a, d"),
        ([Change("c", None, OPERATORS)], "c none → Cast (4 nodes), Concat (12 nodes), Gath…"),
        ([Change("c", OPERATORS, OPERATORS.replace("Unique", "NonZero, Unique"))], "c …, Unique → …, NonZero, Unique"),
    ],
)  # fmt: skip
def test_changes_that_are_listed(changes, words):
    assert listed(changes) == words


if __name__ == "__main__":
    FILE.write_text(golden())
