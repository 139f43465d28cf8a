"""Two cores: a busy neighbour left, and two minutes later a model became twice as slow, at its CPU limit.

Recorded on 2026-11-27. What the neighbour did to the runs before made the interval reach from -13 to +178 %, and no
alert came. Each of these runs had measured its waiting; those of the slow model had not, because its quota held it back
in most of them. Since then a probe knows it where there was next to none (`infercanary.probe.tags`).
"""

from __future__ import annotations

import msgspec
import pytest
import recorded

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.model import Sample, Start
from infercanary.judge.result import Result
from infercanary.judge.verdict import Judge

judge = Judge().verdict


@pytest.fixture
def stack() -> dict[str, list[Start]]:
    return recorded.starts("neighbour_gone")


def as_reported_since(start: Start) -> Start:
    def since(s: Sample) -> Sample:
        assert s.median is not None
        is_little = s.waited is None and s.off_cpu[QUEUED] <= 0.03 * s.median
        return msgspec.structs.replace(s, waited=0.0, crowded=0.0) if is_little else s

    return Start(start.generation, [since(s) for s in start.samples])


def judged(starts: dict[str, list[Start]], runs: int) -> Result:
    *before, last = starts["classify"]
    return judge([*before, last.first(runs)], starts["moderate"], "resnet18")


def test_the_neighbours_noise_hid_it(stack: dict[str, list[Start]]) -> None:
    found = judged(stack, 28)
    assert found.state == "inconclusive" and not found.is_unwaited


@pytest.mark.parametrize("runs", [5, 12, 28])
def test_it_is_called_without_what_its_runs_waited(stack: dict[str, list[Start]], runs: int) -> None:
    found = judged({name: [as_reported_since(s) for s in each] for name, each in stack.items()}, runs)
    assert found.state == "regressed" and found.is_unwaited and found.causes.cause == "image"
    assert found.low is not None and found.high is not None
    assert found.low > 0.3 and found.low < 1.0 < found.high, "the forward pass is run twice"


def test_a_start_beside_five_others_is_no_slow_start(stack: dict[str, list[Start]]) -> None:
    """The settings of the exporter were in the image: an identical rebuild started while all else did, on two cores."""
    for service in ("classify", "moderate"):
        rebuilt = [
            s for s in stack[service] if s.generation.started_at < stack["classify"][1].samples[-1].started_at
        ]
        rebuilt = [s for s in rebuilt if "slow" not in s.generation.image]
        assert len(rebuilt) == 2 and judge(rebuilt, [], "resnet18").causes.cold_start == {}
