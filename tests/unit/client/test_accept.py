from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infercanary.client.accept import accept, read
from infercanary.client.fetch import REPORT_BYTES, PollError
from infercanary.contract.profile import Profile, ProfileRow
from infercanary.contract.report import (
    LADDER,
    LATENCY,
    PHASE,
    Family,
    HistogramValue,
    Kind,
    Point,
    Report,
    Run,
    encode,
)
from infercanary.exporter.expose import write

RESERVED = {"infercanary_up", "infercanary_runs_lost"}
RUN = Run(7, "resnet18", 1.0, 1.0, "ok", (0.01, 0.02))
EMPTY = (0,) * (len(LADDER) + 1)


def report(*families: Family, **changes: object) -> Report:
    return msgspec.structs.replace(Report(1, "boot", 0.0, "c", 0, families, {}, ()), **changes)


def gauge(name: str = "infercanary_x", about: str = "X.", labels: tuple[str, ...] = ()) -> Family:
    return Family(name, "gauge", about, labels, (Point(("a",) * len(labels), 1.0),))


def one(kind: Kind, value: float | HistogramValue, name: str = "infercanary_x") -> Family:
    return Family(f"{name}_total" if kind == "counter" else name, kind, "X.", (), (Point((), value),))


def points(*labels: str) -> Family:
    return Family("infercanary_x", "gauge", "X.", ("a",), tuple(Point((label,), 1.0) for label in labels))


NAMES: dict[tuple[str, Kind], str] = {
    (
        "unsound",
        "gauge",
    ): "up infercanary_Ünicode infercanary_x_total infercanary_x_bucket infercanary_x_created",
    ("unsound", "counter"): "infercanary_x_sum",
    ("reserved", "gauge"): "infercanary_up infercanary_runs_lost",
    ("reserved", "counter"): "infercanary_up",
    ("conflict", "gauge"): f"{LATENCY.name} infercanary_runs",
    ("conflict", "counter"): "infercanary_run_median_seconds",
}
UNSOUND = [
    gauge("infercanary_x\n"),
    gauge("infercanary_" + "x" * 300),
    Family("infercanary_x", "counter", "X.", (), ()),
    *(gauge(about=about) for about in ("", "two\nlines", "x" * 1025)),
    *(
        gauge(labels=(*labels.split(),))
        for labels in ["service", "le", "__name__", "Upper", "a a", "a b c d e f g h i j k"]
    ),
    Family("infercanary_x", "gauge", "X.", ("a",), (Point((), 1.0),)),
    *(points(label) for label in ("x" * 257, "é" * 129, "\u202e", "\ud800")),
    points("a", "a"),
    *(one("gauge", value) for value in (math.nan, math.inf, HistogramValue(EMPTY, 0.0))),
    one("counter", -1.0),
    one("histogram", 1.0),
    *(
        one("histogram", HistogramValue(counts, 0.0))
        for counts in ((), EMPTY[1:], (-1, *EMPTY[1:]), (2**53, 1, *EMPTY[2:]))
    ),
    one("histogram", HistogramValue(EMPTY, -1.0)),
]


@pytest.mark.parametrize(
    ("reason", "family"),
    [
        *(
            (reason, one(kind, 1.0, name))
            for (reason, kind), names in NAMES.items()
            for name in names.split()
        ),
        ("conflict", Family(PHASE.name, "histogram", "X.", ("canary",), ())),
        *(("unsound", family) for family in UNSOUND),
    ],
)
def test_a_bad_family_is_left_out_and_counted_and_the_good_one_stays(reason: str, family: Family) -> None:
    good = gauge("infercanary_good")
    accepted, rejected = accept(report(family, good), RESERVED)
    assert (accepted.families, rejected) == ((good,), {reason: 1})


def test_the_second_of_a_name_is_left_out_also_where_only_openmetrics_sees_the_clash() -> None:
    first, same, clash = gauge(), gauge(), one("counter", 1.0)
    accepted, rejected = accept(report(first, same, clash), RESERVED)
    assert accepted.families == (first,)
    assert rejected == {"duplicate": 2}


def test_families_and_samples_are_bounded_and_a_histogram_counts_by_its_lines() -> None:
    families = [gauge(f"infercanary_x{n}") for n in range(202)]
    accepted, rejected = accept(report(*families), RESERVED)
    assert (accepted.families, rejected) == ((*families[:200],), {"too_many": 2})
    latency = LATENCY.family({("resnet18",): HistogramValue(EMPTY, 0.0)})
    full = points(*map(str, range(5_000 - write(latency, {}).text.count(b"\n"))))
    assert accept(report(full, latency), RESERVED)[1] == {}
    assert accept(report(full, gauge("infercanary_y"), latency), RESERVED)[1] == {"too_many": 1}


BAD_RUNS = yaml.safe_load(r"""
- {canary: "\e[2J"}
- {sequence: -1}
- {clock_reason: "\e[2J"}
- {latencies: [-1]}
- {started_at: .nan}
- {started_at: -1}
- {scheduled_at: 1.0e+300}
- {latencies: [1.7e+308, 1.7e+308]}
- {phases: {compute: 1.0e+300}}
- {off_cpu: {lock: .nan}}
- {controls: {cpu: 1.0e+7}}
- {measures: {host_memory: 1.0e+300}}
- {waited: 1.0e+300}
- {sm_clock: 1.0e+300}
- {output_error: .inf}
""")
TOO_LONG = [
    {"canary": "x" * 300}, {"sequence": 10**400}, {"boot_id": "x" * 65}, {"tags": [f"t{n}" for n in range(33)]},
    {"latencies": [1e-3] * 10_001},
]  # fmt: skip


@pytest.mark.parametrize("change", [*BAD_RUNS, *TOO_LONG])
def test_a_bad_run_is_left_out(change: dict[str, object]) -> None:
    tuples = {name: (*value,) if isinstance(value, list) else value for name, value in change.items()}
    bad = msgspec.structs.replace(RUN, **tuples)
    accepted, rejected = accept(report(runs=(bad, RUN)), RESERVED)
    assert (accepted.runs, rejected) == ((RUN,), {"run": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"wall": (float("inf"),)},
        {"rows": (ProfileRow("operator", "aten::mm", "cpu", "", 1.0, (0.1,), order=2**70),)},
    ],
)
def test_of_a_run_with_a_bad_profile_the_run_is_kept(change: dict[str, object]) -> None:
    sound = Profile(1.0, "torch", "ok", (0.2,), (0.1,), (0.1,), ())
    bad = msgspec.structs.replace(sound, **change)
    runs = tuple(msgspec.structs.replace(RUN, profile=profile) for profile in (sound, bad))
    accepted, rejected = accept(report(runs=runs), RESERVED)
    assert accepted.runs == (runs[0], RUN)
    assert rejected == {"profile": 1}


BAD_REPORTS = yaml.safe_load(r"""
- {lost_runs: -1}
- {lost_runs: 9007199254740993}
- {started_at: -1}
- {started_at: 8589934593}
- {boot_id: "\0"}
- {boot_id: "x\n"}
- {cursor: "a\r\nb"}
- {cursor: é}
""")


@pytest.mark.parametrize("change", [*BAD_REPORTS, {"boot_id": "x" * 65}, {"cursor": "c" * 513}])
def test_a_report_with_a_bad_field_of_its_own_is_none(change: dict[str, object]) -> None:
    assert read(encode(report()))[0] == report()
    with pytest.raises(PollError, match="is not a report") as raised:
        read(encode(report(**change)))
    assert raised.value.reason == "malformed"


def test_a_report_of_too_many_parts_is_not_decoded() -> None:
    with pytest.raises(PollError, match="parts") as raised:
        read(b"[" + b"1," * (REPORT_BYTES // 20 + 1) + b"1]")
    assert raised.value.reason == "too_large"


def test_why_a_run_failed_is_cut() -> None:
    failed = msgspec.structs.replace(RUN, outcome="raised", latencies=(), detail="\U0001f600" * 1_000_000)
    accepted, _ = accept(report(runs=(failed,)), RESERVED)
    assert [run.detail for run in accepted.runs] == ["\U0001f600" * 500]


@pytest.mark.parametrize(
    ("field", "good", "bad", "reason", "count"),
    [
        ("runs", (RUN,) * 10_000, (RUN,) * 2, "run", 2),
        ("environment", {f"component {n}": "1.0" for n in range(200)}, {"a": "1"}, "environment", 1),
        ("environment", {"a": "x"}, {"flags": "x" * 5000}, "environment", 1),
        ("environment", {}, {f"{n}": "x" * 4_000 for n in range(100)}, "environment", 100),
        ("outputs", {f"{n}": (1.0,) * 32 for n in range(32)}, {"a": (1.0,), "b": (1.0,)}, "output", 2),
        ("outputs", {}, {"b": (1.0,) * 33, "\x1b": (1.0,), "c": (1e19,), "d": (math.nan,)}, "output", 4),
    ],
)
def test_a_reports_parts_are_bounded(field: str, good: Any, bad: Any, reason: str, count: int) -> None:
    both = good + bad if field == "runs" else good | bad
    accepted, rejected = accept(report(**{field: both}), RESERVED)
    assert getattr(accepted, field) == good and rejected == {reason: count}


text = st.text(max_size=8)
value = st.floats() | st.builds(HistogramValue, st.lists(st.integers(), max_size=90).map(tuple), st.floats())
names = st.sampled_from(["infercanary_x", "infercanary_x_total", "infercanary_y", LATENCY.name]) | text
anything = st.builds(
    Family,
    names,
    st.sampled_from(["counter", "gauge", "histogram"]),
    st.just("Help.") | text,
    st.lists(st.sampled_from(["a", "b", "le"]) | text, max_size=3).map(tuple),
    st.lists(st.builds(Point, st.lists(text, max_size=3).map(tuple), value), max_size=3).map(tuple),
)


@given(st.lists(anything, max_size=6))
def test_whatever_is_accepted_can_be_written(families: list[Family]) -> None:
    accepted, rejected = accept(report(*families), RESERVED)
    assert len(accepted.families) + rejected.total() == len(families)
    for family in accepted.families:
        lines = write(family, {"service": "s", "container": "c"}).text.decode().split("\n")
        assert len(lines) == 1 + sum(
            len(LADDER) + 3 if isinstance(point.value, HistogramValue) else 1 for point in family.points
        )
