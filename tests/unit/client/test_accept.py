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
    Family,
    HistogramValue,
    Point,
    Report,
    Run,
    encode,
)
from infercanary.exporter.expose import write
from tests.scenarios import cases

RESERVED = {"infercanary_up", "infercanary_runs_lost"}
RUN = Run(7, "resnet18", 1.0, 1.0, "ok", (0.01, 0.02))
EMPTY = (0,) * (len(LADDER) + 1)


def report(*families, **changes):
    return msgspec.structs.replace(Report(1, "boot", 0.0, "c", 0, families, {}, ()), **changes)


def family(name="infercanary_x", kind="gauge", value=1.0, **fields):
    given = {"name": name, "kind": kind, "help": "X.", "labels": (), "points": (Point((), value),)}
    return msgspec.convert(given | fields, Family)


BAD_FAMILIES = yaml.safe_load(r"""
- [unsound, {name: up}]
- [unsound, {name: infercanary_Ünicode}]
- [unsound, {name: infercanary_x_total}]
- [unsound, {name: infercanary_x_bucket}]
- [unsound, {name: infercanary_x_created}]
- [unsound, {name: infercanary_x_sum_total, kind: counter}]
- [unsound, {name: infercanary_x, kind: counter}]
- [unsound, {name: "infercanary_x\n"}]
- [unsound, {help: ""}]
- [unsound, {help: "two\nlines"}]
- [unsound, {labels: [service], points: [[[a], 1]]}]
- [unsound, {labels: [le], points: [[[a], 1]]}]
- [unsound, {labels: [__name__], points: [[[a], 1]]}]
- [unsound, {labels: [Upper], points: [[[a], 1]]}]
- [unsound, {labels: [a, a], points: [[[a, a], 1]]}]
- [unsound, {labels: [a, b, c, d, e, f, g, h, i, j, k], points: [[[a, a, a, a, a, a, a, a, a, a, a], 1]]}]
- [unsound, {labels: [a], points: [[[], 1]]}]
- [unsound, {labels: [a], points: [[["\u202e"], 1]]}]
- [unsound, {labels: [a], points: [[[a], 1], [[a], 1]]}]
- [reserved, {name: infercanary_up}]
- [reserved, {name: infercanary_runs_lost}]
- [reserved, {name: infercanary_up_total, kind: counter}]
- [conflict, {name: infercanary_latency_seconds}]
- [conflict, {name: infercanary_runs}]
- [conflict, {name: infercanary_run_median_seconds_total, kind: counter}]
- [conflict, {name: infercanary_phase_seconds, kind: histogram, labels: [canary], points: []}]
""")
LONG: list[dict[str, Any]] = [
    {"name": "infercanary_" + "x" * 300}, {"help": "x" * 1025},
    *({"labels": ["a"], "points": [[[label], 1]]} for label in ("x" * 257, "é" * 129, "\ud800")),
]  # fmt: skip
BAD_VALUES = [
    *(("gauge", value) for value in (math.nan, math.inf, HistogramValue(EMPTY, 0.0))),
    ("counter", -1.0),
    ("histogram", 1.0),
    ("histogram", HistogramValue(EMPTY, -1.0)),
    *(
        ("histogram", HistogramValue(counts, 0.0))
        for counts in ((), EMPTY[1:], (-1, *EMPTY[1:]), (2**53, 1, *EMPTY[2:]))
    ),
]


@cases(
    [
        *((reason, family(**given)) for reason, given in BAD_FAMILIES),
        *(("unsound", family(**given)) for given in LONG),
        *(
            ("unsound", family("infercanary_x" + "_total" * (kind == "counter"), kind, value))
            for kind, value in BAD_VALUES
        ),
    ],
)
def test_a_bad_family_is_left_out_and_counted_and_the_good_one_stays(reason, bad):
    good = family("infercanary_good")
    accepted, rejected = accept(report(bad, good), RESERVED)
    assert (accepted.families, rejected) == ((good,), {reason: 1})


def test_the_second_of_a_name_is_left_out_also_where_only_openmetrics_sees_the_clash():
    first, same, clash = family(), family(), family("infercanary_x_total", "counter")
    accepted, rejected = accept(report(first, same, clash), RESERVED)
    assert (accepted.families, rejected) == ((first,), {"duplicate": 2})


def test_families_and_samples_are_bounded_and_a_histogram_counts_by_its_lines():
    families = [family(f"infercanary_x{n}") for n in range(202)]
    accepted, rejected = accept(report(*families), RESERVED)
    assert (accepted.families, rejected) == ((*families[:200],), {"too_many": 2})
    latency = LATENCY.family({("resnet18",): HistogramValue(EMPTY, 0.0)})
    lines = 5_000 - write(latency, {}).text.count(b"\n")
    full = family(labels=["a"], points=[[[f"{n}"], 1] for n in range(lines)])
    assert accept(report(full, latency), RESERVED)[1] == {}
    assert accept(report(full, family("infercanary_y"), latency), RESERVED)[1] == {"too_many": 1}


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
def test_a_bad_run_is_left_out(change):
    tuples = {name: (*value,) if isinstance(value, list) else value for name, value in change.items()}
    accepted, rejected = accept(report(runs=(msgspec.structs.replace(RUN, **tuples), RUN)), RESERVED)
    assert (accepted.runs, rejected) == ((RUN,), {"run": 1})


def test_a_run_without_its_bad_profile_is_kept_and_a_long_reason_is_cut():
    sound = Profile(1.0, "torch", "ok", (0.2,), (0.1,), (0.1,), ())
    rows = (ProfileRow("operator", "aten::mm", "cpu", "", 1.0, (0.1,), order=2**70),)
    profiles = [
        sound,
        msgspec.structs.replace(sound, wall=(math.inf,)),
        msgspec.structs.replace(sound, rows=rows),
    ]
    runs = [msgspec.structs.replace(RUN, profile=profile) for profile in profiles]
    failed = msgspec.structs.replace(RUN, outcome="raised", detail="\U0001f600" * 1_000_000)
    accepted, rejected = accept(report(runs=(*runs, failed)), RESERVED)
    assert accepted.runs == (runs[0], RUN, RUN, msgspec.structs.replace(failed, detail="\U0001f600" * 500))
    assert rejected == {"profile": 2}


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
def test_a_report_with_a_bad_field_of_its_own_is_none(change):
    assert read(encode(report()))[0] == report()
    with pytest.raises(PollError, match="is not a report") as raised:
        read(encode(report(**change)))
    assert raised.value.reason == "malformed"


@cases(
    [
        (b"[" + b"1," * (REPORT_BYTES // 20 + 1) + b"1]", "too_large", "commas"),
        (b'{"x":' + b"[" * 100_000, "malformed", "maximum recursion depth"),
        (
            encode(report(environment={"a": "2.13"})).replace(b"2.13", b"2\xff"),
            "malformed",
            "is not UTF-8",
        ),
        (b"<html>", "malformed", "report"),
        (b"[]", "malformed", "report"),
        (b'{"schema_version": "1"}', "malformed", "report"),
        (b'{"schema_version": 2, "all": "new"}', "schema", "schema"),
    ],
)
def test_a_body_that_is_no_report(body, reason, detail):
    with pytest.raises(PollError, match=detail) as raised:
        read(body)
    assert raised.value.reason == reason


@cases(
    [
        ("runs", (RUN,) * 10_000, (RUN,) * 2, "run", 2),
        ("environment", {f"component {n}": "1.0" for n in range(200)}, {"a": "1"}, "environment", 1),
        ("environment", {"a": "x"}, {"flags": "x" * 5000}, "environment", 1),
        ("environment", {}, {f"{n}": "x" * 4_000 for n in range(100)}, "environment", 100),
        ("outputs", {f"{n}": (1.0,) * 32 for n in range(32)}, {"a": (1.0,), "b": (1.0,)}, "output", 2),
        ("outputs", {}, {"b": (1.0,) * 33, "\x1b": (1.0,), "c": (1e19,), "d": (math.nan,)}, "output", 4),
    ],
)
def test_a_reports_parts_are_bounded(field, good, bad, reason, count):
    both = good + bad if field == "runs" else good | bad
    accepted, rejected = accept(report(**{field: both}), RESERVED)
    assert getattr(accepted, field) == good
    assert rejected == {reason: count}


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
def test_whatever_is_accepted_can_be_written(families):
    accepted, rejected = accept(report(*families), RESERVED)
    assert len(accepted.families) + rejected.total() == len(families)
    for family in accepted.families:
        lines = write(family, {"service": "s", "container": "c"}).text.decode().split("\n")
        histograms = sum(isinstance(point.value, HistogramValue) for point in family.points)
        assert len(lines) == 1 + len(family.points) + histograms * (len(LADDER) + 2)
