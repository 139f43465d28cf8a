"""What is remembered of a report for alerts' conditions: only what these can read."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import infercanary.probe
from infercanary.contract.report import Family, Metric, Point
from infercanary.exporter.conditions import Known, conditions
from infercanary.exporter.signals import REPORTED, Signals
from infercanary.judge.policy import LIVE


def declared() -> dict[str, Metric]:
    """All metrics of probes."""
    found: dict[str, Metric] = {}
    for module in pkgutil.walk_packages(infercanary.probe.__path__, "infercanary.probe."):
        if not module.name.endswith("__main__"):
            each = vars(importlib.import_module(module.name)).values()
            found |= {metric.name: metric for metric in each if isinstance(metric, Metric)}
    return found


def test_the_labels_that_conditions_read_are_those_that_probes_give() -> None:
    metrics = declared()
    assert {name: frozenset(metrics[name].labels) for name in REPORTED} == REPORTED


@pytest.mark.parametrize("name", sorted(REPORTED))
def test_a_known_name_with_other_labels_stops_no_condition(name: str) -> None:
    reported, own = Signals(REPORTED), Signals({})
    for at in range(3):
        family = Family(name, "gauge", "", ("odd",), (Point(("x",), float(at + 1)),))
        reported.take([family], 61.0 * at)
    found = conditions(Known(reported, own, LIVE, 0.0))
    if REPORTED[name]:
        assert found == [] and not list(reported.rows(name))
