"""One judgement walks through six stages, each in a module of its own, and never goes back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import infercanary.judge
from infercanary.judge.model import Judgement, Start
from infercanary.judge.stages import judge
from tests.unit.judge.test_golden import World, rolled_back

HERE = str(Path(infercanary.judge.__file__).parent)
STAGES = ["upgrade", "align", "estimate", "decide", "causes", "sentence"]
VALUES = {"model", "policy", "shift"}
"""What stages hand to each other, and the numbers that decide."""
USED = {
    "upgrade": {"identity", "images"},
    "align": {"host"},
    "estimate": {
        *("align", "restarts", "host", "evidence", "crowding"),
        *("statistics", "pooling", "persistence", "ranks", "resolution", "sequential"),
    },
    "causes": {
        *("operators", "profiles", "differences", "evidence", "crowding", "bottleneck"),
        *("statistics", "pooling", "persistence", "ranks", "resolution"),
    },
    "sentence": {"upgrade", "images", "operator_words"},
}
"""Modules whose functions a stage calls besides its own; the estimate aligns anew what it adjusted."""


def module_of(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return path.stem if str(path.parent) == HERE and path.stem not in VALUES else None


def traced(call: Callable[[], Judgement]) -> tuple[Judgement, list[tuple[str, str]]]:
    """The result, and for each call of a function of the judge: the stage on whose behalf, and the module."""
    seen: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (module := module_of(frame)) in (None, "stages"):
            return
        stage, at = module, frame.f_back
        while at is not None and module_of(at) != "stages":
            stage, at = module_of(at) or stage, at.f_back
        if at is not None:
            seen.append((stage or "", module or ""))

    sys.setprofile(profile)
    try:
        return call(), seen
    finally:
        sys.setprofile(None)


def test_the_modules_are_entered_in_the_order_of_the_stages_each_once() -> None:
    """Also where the host's variation is taken out: those numbers are ready when it is decided on them."""
    world = World(3, wander=0.004, restart_sd=0.002)
    starts = [world.start("r", "old", 3600.0 * hour, 100) for hour in range(1, 7)]
    starts.append(world.start("r", "new", 7 * 3600.0, 100, slower=0.06))
    siblings = [world.start(f"s{i}", "same", 3600.0, 2_260, service=f"s{i}") for i in range(3)]
    cases: list[tuple[list[Start], list[Start]]] = [(starts, siblings), (rolled_back()[1], [])]
    for own, beside in cases:
        judgement, seen = traced(lambda: judge(own, beside, "canary"))  # noqa: B023 (called now)
        assert judgement.state != "no_baseline"
        assert [stage for stage, _ in groupby(stage for stage, _ in seen)] == STAGES
        for stage in STAGES:
            assert {module for each, module in seen if each == stage} <= {stage} | USED.get(stage, set())
        assert judgement.siblings == len(beside)
        assert (("estimate", "host") in seen) == bool(beside)


def test_without_an_upgrade_each_stage_still_takes_and_gives_its_value() -> None:
    world = World(1)
    one: Sequence[Start] = [world.start("r", "old", 3600.0, 50)]
    judgement, seen = traced(lambda: judge(one, [], "canary"))
    assert judgement.state == "no_baseline" and judgement.runs == 48
    assert [stage for stage, _ in groupby(stage for stage, _ in seen)] == STAGES
