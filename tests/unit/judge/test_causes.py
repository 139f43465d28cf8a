"""Causes that cannot be wrong early, and parts that add up, of starts with controls, siblings and replicas beside."""

from __future__ import annotations

import math

import msgspec
import pytest

from infercanary.judge.causes import Attribution
from infercanary.judge.model import Pair, Start
from infercanary.judge.result import Result
from infercanary.judge.shift import Shift
from tests.unit.judge.test_stages import HOUR, from_then_on, history, judgement_of, start

NEW = 4 * HOUR  # when the new image begins; five of its runs take ten seconds


def until(start: Start, end: float) -> Start:
    return Start(start.generation, [sample for sample in start.samples if sample.started_at <= end])


def upgraded(beside: list[Start], stays: list[Start], end: float = NEW + 45) -> Result:
    old = history(*["old"] * 4, containers="a", runs=192)
    new = start("a", "new", NEW, 0.023, runs=5, every=2.0)
    return judgement_of([*old, *(until(s, end) for s in stays), new], [until(s, end) for s in beside])


def siblings(every: float, factor: float, noise: float = 0.005) -> list[Start]:
    runs = int(8000 / every)
    return [
        from_then_on(
            start(name, "x", NEW - 4000, 0.05, runs, service=name, every=every, noise=noise), NEW, factor
        )
        for name in "st"
    ]


def replicas(every: float, ended_at: float = 0.0) -> list[Start]:
    stays = start("stays", "old", NEW - 4000, 0.02, int(8000 / every), every=every)
    return [Start(msgspec.structs.replace(stays.generation, ended_at=ended_at), stays.samples)]


SCENARIOS: dict[str, tuple[list[Start], list[Start], float, str, bool]] = {
    "no siblings": ([], [], NEW + 45, "image", False),
    "flat siblings": (siblings(2.0, 1.0), [], NEW + 45, "image", False),
    "siblings that feel it": (siblings(2.0, 1.15), [], NEW + 45, "host", False),
    "siblings that run once a minute": (siblings(60.0, 1.15), [], NEW + 45, "unknown", True),
    "flat ones that run once a minute": (siblings(60.0, 1.0), [], NEW + 45, "unknown", True),
    "siblings that vary too much to tell": (siblings(2.0, 1.0, 0.4), [], NEW + 45, "unknown", True),
    "siblings that ended before": (siblings(60.0, 1.0), [], NEW - 600, "image", False),
    "a replica that runs once a minute": ([], replicas(60.0), NEW + 45, "unknown", True),
    "a replica that the new one replaced": ([], replicas(60.0, NEW), NEW + 45, "image", False),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_cause_is_named_before_siblings_are_compared(name: str) -> None:
    """At 5 runs, a neighbour that controls do not feel was the image's; the call itself does not wait."""
    beside, stays, end, cause, is_awaited = SCENARIOS[name]
    found = upgraded(beside, stays, end)
    assert (found.state, found.causes.cause) == ("regressed", cause), found.causes
    assert found.causes.unknown_siblings == is_awaited


@pytest.mark.parametrize(("is_same_period", "cause"), [(False, "host"), (True, "image")])
def test_where_both_images_ran_at_once_a_host_that_became_slower_made_no_shift(
    is_same_period: bool, cause: str
) -> None:
    """Both images felt it, and siblings are compared with what they took before."""
    pair = Pair([start("a", "old", HOUR, runs=40)], [start("b", "new", HOUR, 0.023, 40)])
    before, after = (start("s", "x", at, 0.05 * by, 40, service="s") for at, by in ((0.0, 1.0), (HOUR, 1.15)))
    compared = [pair._replace(is_same_period=is_same_period)]
    shift = Shift(math.log(1.15), 0.01, 20.0)
    causes = Attribution().explain(shift, compared, "c", beside=[Pair([before], [after])] * 2)
    assert (causes.cause, causes.siblings is None) == (cause, is_same_period)


@pytest.mark.parametrize("control", [1.0, 1.04, 1.2, 2.5])
@pytest.mark.parametrize("felt", [0.8, 1.0, 1.15, 3.0])
@pytest.mark.parametrize("waited", [0.0, 0.001, 0.004, 0.02])
@pytest.mark.parametrize("crowded", [0.0, 0.5])
@pytest.mark.parametrize("factor", [0.7, 1.15, 1.9])
def test_parts_add_up_to_the_shift_and_none_exceeds_it(
    control: float, felt: float, waited: float, crowded: float, factor: float
) -> None:
    """An operator met `host +38 %, image +39 %` for a minute."""

    def waiting(made: Start, seconds: float, inside: float) -> Start:
        """Of which that share was for others inside, whom ten times as many requests kept busy."""
        known = {"waited": seconds * (1 - inside), "crowded": seconds * inside, "inside": 0.05 + inside}
        known["received"] = 100.0 if inside else 10.0
        return Start(made.generation, [msgspec.structs.replace(s, **known) for s in made.samples])

    old = waiting(start("a", "old", 0.0, runs=40), 0.0, 0.0)
    new = start("a", "new", HOUR, 0.02 * factor, 40, control=0.0004 * control)
    new = waiting(new, min(waited, 0.01 * factor), crowded)
    before, after = (start("s", "x", at, 0.05 * by, 40, service="s") for at, by in ((0.0, 1.0), (HOUR, felt)))
    shift = Shift(math.log(factor), 0.01, 20.0)
    causes = Attribution().explain(shift, [Pair([old], [new])], "c", beside=[Pair([before], [after])] * 2)
    parts = [math.log1p(part.shift) for part in (causes.host, causes.image, causes.load) if part is not None]
    assert not parts or math.fsum(parts) == pytest.approx(shift.log)
    assert all(-1e-9 <= part / shift.log <= 1 + 1e-9 for part in parts)


Fields = dict[str, object]
SEVERAL = {"torch_intra_op_threads": "4"}
WAITS: tuple[Fields, Fields] = {"waited": 0.0}, {"waited": 0.0016, "tags": ("cpu_wait_outside",)}
CONTESTED: dict[str, tuple[float, float, tuple[float, ...], tuple[Fields, Fields], dict[str, str], str]] = {
    "siblings that disagree, no controls": (1.4, 0.0, (1.4, 1.0), ({}, {}), {}, "unknown"),
    "controls and siblings moved by all of it, more requests": (
        1.3, 1.3, (1.3, 1.3), ({"inside": 0.1, "received": 100.0}, {"inside": 0.2, "received": 200.0}), {}, "host",
    ),
    "nothing else moved, more requests": (
        1.3, 1.0, (), ({"inside": 0.1, "received": 100.0}, {"inside": 0.5, "received": 500.0}), {}, "unknown",
    ),
    "a tenth more requests": (
        1.3, 1.0, (1.0,), ({"inside": 2.0, "received": 100.0}, {"inside": 2.2, "received": 110.0}), {}, "image",
    ),
    "faster, while several threads wait for others": (0.7, 0.95, (), WAITS, SEVERAL, "image"),
    "slower, while several threads wait for others": (1.3, 1.05, (), WAITS, SEVERAL, "host"),
    "a wait of which nobody knows for whom, a control moved by all": (1.3, 1.3, (), WAITS, {}, "host"),
    "the whole of it a wait of which nobody knows for whom, a control moved by all": (
        1.3, 1.3, (), (WAITS[0], {**WAITS[1], "waited": 0.0055}), {}, "host",
    ),
    "a wait of which nobody knows for whom": (1.3, 1.0, (), WAITS, {}, "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTESTED)
def test_who_is_blamed_where_the_evidence_points_two_ways(name: str) -> None:
    """Controls of 0.0 are none."""
    factor, control, felt, fields, environment, cause = CONTESTED[name]

    def made(label: str, at: float, seconds: float, moved: float, own: Fields) -> Start:
        plain = start("a", label, at, seconds, 40, control=0.0004 * moved, environment=environment)
        known: Fields = {"crowded": 0.0, "waited": 0.0, **own} if "received" in own else own
        known = known if control else {**known, "controls": {}}
        return Start(plain.generation, [msgspec.structs.replace(s, **known) for s in plain.samples])

    pair = Pair(
        [made("old", 0.0, 0.02, 1.0, fields[0])], [made("new", HOUR, 0.02 * factor, control, fields[1])]
    )
    beside = [
        Pair(
            [start("s", "x", 0.0, 0.05, 40, service="s")], [start("s", "x", HOUR, 0.05 * by, 40, service="s")]
        )
        for by in felt
    ]
    found = Attribution().explain(Shift(math.log(factor), 0.01, 20.0), [pair], "c", beside=beside)
    assert found.cause == cause, found
