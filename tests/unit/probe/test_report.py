"""The format of a report: bucket bounds, encoding as JSON, and refused reports."""

import importlib
import math
import pkgutil

import msgspec
import pytest

import infercanary.probe
from infercanary.contract.kinds import KINDS
from infercanary.contract.report import (
    LADDER,
    SCHEMA_VERSION,
    Metric,
    Report,
    decode,
    encode,
)
from tests.scenarios import scenarios


def test_ladder_is_geometric_exact_at_each_doubling_and_has_a_short_exact_text():
    """Sums over probes group series by the text of `le`, so it must be exact. People read 0.0001, 0.0002, … 52.4288."""
    assert len(LADDER) == 82
    assert LADDER[0] == 50e-6
    assert 60 < LADDER[-1] < 63
    for k, bound in enumerate(LADDER):
        assert bound == float(f"{bound:.6g}") == pytest.approx(50e-6 * 2 ** (k / 4), rel=1e-5)
        if k % 4 == 0:
            assert bound * 1e6 == pytest.approx(50 * 2 ** (k // 4), rel=1e-15)


def test_values_are_floats_and_one_that_is_not_known_is_a_missing_point():
    """JSON's `true` is not a number: one bool would make the whole report unreadable."""
    metric = Metric("infercanary_x", "gauge", "X.", ("what",))
    family = metric.family(
        {("nan",): math.nan, ("inf",): math.inf, ("low",): -math.inf, ("bool",): True, ("int",): 3}
    )
    assert [(point.labels[0], repr(point.value)) for point in family.points] == [
        ("bool", "1.0"),
        ("int", "3.0"),
    ]
    assert Metric("infercanary_y", "gauge", "Y.").family(math.nan).points == ()
    report = Report(SCHEMA_VERSION, "b", 0.0, "", 0, (family,), {}, ())
    assert decode(encode(report)).families[0] == family


GOOD = encode(Report(SCHEMA_VERSION, "b", 0.0, "", 0, (), {}, ()))


# Parts of a valid report and their replacements; `all` is the whole report.
BROKEN = r"""
all               |
all               | \0junk
all               | null
all               | []
all               | {}
}                 |
{                 | x{
"boot_id":"b"     | "boot_id":7
"lost_runs":0     | "lost_runs":null
"lost_runs":0     | "lost_runs":NaN
"started_at":0.0  | "started_at":1e999
"runs":[]         | "runs":[{"sequence":1}]
"families":[]     | "families":[{"name":"x","kind":"summary","help":"","labels":[],"points":[]}]
"families":[]     | "families":[{"name":"x","kind":"gauge","help":"","labels":[],"points":[[[],true]]}]
"""


@pytest.mark.parametrize(("part", "other"), scenarios(BROKEN))
def test_an_invalid_report_is_refused(part, other):
    body = GOOD.replace(GOOD if part == "all" else part.encode(), other.encode())
    assert body != GOOD
    with pytest.raises(msgspec.DecodeError):
        decode(body)


def test_keys_of_a_later_version_are_passed_over():
    assert decode(GOOD.replace(b'"boot_id"', b'"new":{"a":[1]},"boot_id"')).boot_id == "b"


def test_deep_nesting_is_refused_and_not_a_crash():
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        decode(GOOD.replace(b'"boot_id"', b'"new":' + b"[" * 200_000 + b',"boot_id"'))


def test_the_kinds_that_no_probe_can_change_are_those_that_are_declared():
    modules = [name for _, name, _ in pkgutil.walk_packages(infercanary.probe.__path__, "infercanary.probe.")]
    declared = {
        value.name.removesuffix("_total"): value.kind
        for name in modules
        if not name.endswith("__main__")
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, Metric)
    }
    assert declared == KINDS, "contract/kinds.py is stale: run `make docs`"
