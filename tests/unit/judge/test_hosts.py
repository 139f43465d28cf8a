"""Replicas on several hosts: the judge compares hardware by class."""

import pytest

from infercanary.judge.align import Alignment
from infercanary.judge.policy import LIVE
from tests.factories import judge, start
from tests.scenarios import cases, typed

CLASSES = {
    "L4": {"cpu_model": "Xeon", "torch_cuda_device": "L4", "torch_device": "cuda:0"},
    "A100": {"cpu_model": "Xeon", "torch_cuda_device": "A100", "torch_device": "cuda:0"},
    "unknown": {},
    "fallback": {"cpu_model": "Xeon", "torch_device": "cpu"},
}
"""Classes with other components than only a CPU model."""


def starts(image, at, pods, hosts=True):
    """Return a start for each class and latency in ms, on separate hosts; without hosts, all are of one container."""
    found = []
    for number, (kind, _, ms) in enumerate(pod.partition(":") for pod in pods.split()):
        name, load = f"{image}-{number}", 9.0 if kind == "Graviton" else 2.0
        found.append(
            start(
                name if hosts else "a", image, at + number, float(ms or 20) / 1e3, 40, control=0,
                host=f"host of {name}" if hosts else "", cold_start={"c": {"load": load}},
                environment=dict(CLASSES.get(kind, {"cpu_model": kind})),
            )
        )  # fmt: skip
    return found


TWO = "Xeon:20 Xeon:20 Xeon:20 EPYC:10 EPYC:10 EPYC:10"


ROLLOUTS = f"""
{TWO}       | EPYC:15 EPYC:15 EPYC:15     | 0.5  | 6
{TWO}       | EPYC:10 EPYC:10             | 0.0  | 5  # faster hardware is not an improvement
{TWO}       | EPYC:10 Xeon:20             | 0.0  | 8  # slower hardware is not a regression
{TWO}       | Graviton:5 Graviton:5 Graviton:5 | ~ | ~  # a class without runs of the old image is left out
{TWO}       | Graviton:5 Xeon:30 Xeon:30  | 0.5  | 5
L4:20 L4:20 | A100:10 A100:10             | ~    | ~
L4:20 L4:20 | fallback:500 fallback:500   | 24.0 | 4  # an image that fell back to the CPU is compared with a GPU
"""


@cases(typed(ROLLOUTS))
def test_a_rollout_is_judged_within_each_class(old, new, shift, hosts):
    found = judge([*starts("one", 0, old), *starts("two", 1000, new)])
    assert found.causes.cold_start == {}
    if shift is None:
        assert found.state == "no_baseline"
        assert found.hosts
    else:
        assert found.shift == pytest.approx(shift, rel=0.05, abs=0.02)
        assert (found.state == "regressed") == (shift > 0)
        assert found.hosts == hosts


def test_one_host_is_not_split_by_what_it_is_made_of():
    found = judge([*starts("one", 0, TWO, hosts=False), *starts("two", 1000, "EPYC:10", hosts=False)])
    assert found.state not in ("no_baseline", "settling")
    assert found.hosts == 0


@cases(
    [("Xeon unknown", ["Xeon", ""]), ("unknown Xeon", ["", "Xeon"]), ("Graviton unknown", [""])],
)
def test_a_start_of_unknown_hardware_does_not_count_the_baseline_twice(new, compared):
    (pair,) = Alignment(LIVE.pool).pairs(starts("one", 0, "Xeon"), starts("two", 1000, new))
    assert [each.hardware[0] for each in pair.after] == compared
