"""Two stacks recorded on two cores on 2026-11-27, judged at once and look by look.

neighbour_gone: a busy neighbour left, and two minutes later a model became twice as slow, at its CPU limit.
The neighbour's effect on earlier runs widened the interval to -13 to +178 %, and no alert fired. Earlier runs
had a measured CPU wait; runs of the slow model had none, because its quota throttled most of them. Since
then, a probe reports the wait if there was almost none (`infercanary.probe.tags`).

second_rollout: a slow image was rolled back beside a busy neighbour, and rolled out again without the
neighbour. The old replica stayed at 43 to 46 ms, the new replica at 104 to 110 ms. The neighbour's earlier
effect on the old replica widened the interval to -6.8 to +460 %, and the alert resolved.
"""

from itertools import pairwise

import pytest
import recorded

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.upgrade import select
from infercanary.judge.verdict import Judge
from tests.factories import changed
from tests.scenarios import cases

CANARY = "resnet18"


def judge(starts, siblings=()):
    return Judge().verdict(starts, siblings, CANARY)


def as_reported_since(made):
    def is_little(s):
        return s.waited is None and s.off_cpu[QUEUED] <= 0.03 * (s.median or 0.0)

    return changed(
        made,
        waited=lambda s: 0.0 if is_little(s) else s.waited,
        crowded=lambda s: 0.0 if is_little(s) else s.crowded,
    )


def test_a_neighbours_noise_hid_a_slow_model():
    stack = recorded.starts("neighbour_gone")
    *before, last = stack["classify"]
    found = judge([*before, last.first(28)], stack["moderate"])
    assert found.state == "inconclusive"
    assert not found.is_unwaited
    since = {name: [*map(as_reported_since, starts)] for name, starts in stack.items()}
    *before, last = since["classify"]
    for runs in (5, 12, 28):
        found = judge([*before, last.first(runs)], since["moderate"])
        assert found.state == "regressed"
        assert found.is_unwaited
        assert found.causes.cause == "image"
        assert 0.3 < found.low < 1.0 < found.high  # the forward pass runs twice


@cases(["classify", "moderate"])
def test_a_start_beside_five_others_is_no_slow_start(service):
    """The exporter's settings were in the image, so a rebuild started it with all other containers on two cores."""
    stack = recorded.starts("neighbour_gone")
    until = stack["classify"][1].samples[-1].started_at
    rebuilt = [
        s for s in stack[service] if s.generation.started_at < until and "slow" not in s.generation.image
    ]
    assert len(rebuilt) == 2
    assert judge(rebuilt).causes.cold_start == {}


def test_a_second_rollout_is_called_and_its_size_is_known():
    starts = recorded.starts("second_rollout")
    found = judge(starts["classify"], starts["moderate"])
    assert found.state == "regressed"
    assert found.low > 0.25
    assert found.shift == pytest.approx(107 / 45.5 - 1, abs=0.2)
    assert found.newest_at - found.upgraded_at == pytest.approx(1170, abs=5)
    assert found.changed == "image"
    assert found.candidate_image.startswith("infercanary-example:slow")


@cases([("neighbour_gone", 20), ("second_rollout", 10)])
def test_neither_a_call_nor_its_cause_flips(stack, calls):
    services = recorded.starts(stack)
    starts = [*map(as_reported_since, services["classify"])]
    upgrade = select(starts).upgrade
    boots, found = {s.boot for s in upgrade.after}, []
    for runs in range(1, max(len(s.samples) for s in upgrade.after) + 1):
        now = [s.first(runs) if s.boot in boots else s for s in starts]
        until = max(run.started_at for s in now if s.boot in boots for run in s.samples)
        found.append(judge(now, [s.until(until + 1e-6) for s in services["moderate"]]))
    states = [each.state for each in found]
    named = [
        each.causes.cause for each in found if each.state == "regressed" and each.causes.cause != "unknown"
    ]
    assert states.count("regressed") >= calls
    assert {"improved", "equivalent"}.isdisjoint(states)
    assert [pair for pair in pairwise(named) if pair[0] != pair[1]] == []
    assert {*named} <= {"image"}
