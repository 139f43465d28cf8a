from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from infercanary.judge.causes import Attribution
from infercanary.judge.model import Generation, Pair, Sample, Start
from infercanary.judge.origin import Origin
from infercanary.judge.result import Change, Result
from infercanary.judge.shift import Shift
from infercanary.judge.verdict import Judge

judge, trials = Judge().verdict, Judge().trials

HOUR = 3600.0


def start(
    container: str,
    image: str,
    at: float,
    seconds: float = 0.020,
    runs: int = 192,
    *,
    control: float = 0.0004,
    environment: dict[str, str] | None = None,
    service: str = "classify",
    output: tuple[float, ...] = (1.0, 2.0),
    cold_start: dict[str, float] | None = None,
    tags: tuple[str, ...] = (),
    clock: float | None = None,
    noise: float = 0.005,
    every: float = 10.0,
) -> Start:
    """One start with ``runs`` runs; its noise differs from any other's."""
    rng = random.Random(f"{container} {image} {at} {seconds}")
    generation = Generation(
        service=service, container=container, boot_id=f"{container}-{at}", image="resnet:latest", image_id=image,
        image_digest="", started_at=at, environment=environment or {"torch": "2.7.0"}, outputs={"c": output},
        cold_start={"c": cold_start or {"load": 2.0}},
    )  # fmt: skip
    samples = []
    for i in range(runs):
        median = seconds * rng.lognormvariate(0, noise)
        samples.append(
            Sample(
                sequence=i, canary="c", started_at=at + 30 + every * i, outcome="ok", median=median, repeats=10,
                phases={"compute": 0.9 * median, "h2d": 0.1 * median},
                controls={"cpu_spin": control * rng.lognormvariate(0, noise)}, sm_clock=clock, tags=tags,
                output_error=0.0,
            )
        )  # fmt: skip
    return Start(generation, samples)


def changed(one: Start, **values: object) -> Start:
    """``one`` with these values in each of its runs; what is callable takes the run."""
    return Start(
        one.generation,
        [replace(s, **{name: x(s) if callable(x) else x for name, x in values.items()}) for s in one.samples],
    )


def old_and_new(starts: Iterable[Start], old: dict[str, object], new: dict[str, object]) -> list[Start]:
    """With these values in the runs of either image."""
    return [changed(s, **(new if s.generation.image_id == "new" else old)) for s in starts]


def history(*images: str, containers: Iterable[str] = ("a", "b"), **last: object) -> list[Start]:
    """Each image an hour after the one before; ``last`` is said of the last image's starts."""
    return [
        start(name, image, HOUR * index + i, **(last if index == len(images) - 1 else {}))  # type: ignore[arg-type]
        for index, image in enumerate(images)
        for i, name in enumerate(containers)
    ]


FOUR = ("old",) * 4
"""Hours of the old image, before the new one."""


def judgement_of(starts: list[Start], siblings: list[Start] | None = None) -> Result:
    return judge(starts, siblings or [], "c")


@pytest.mark.parametrize(
    ("share", "every", "called"), [(0.0, 1, True), (0.5, 1, True), (0.8, 1, False), (0.8, 3, True)]
)
def test_a_start_is_slower_where_waiting_for_a_cpu_does_not_explain_it(
    share: float, every: int, called: bool
) -> None:
    new = [start(name, "new", HOUR, cold_start={"load": 9.0}) for name in ("a", "b")]
    waited = [
        changed(one, waited=lambda s: 0.0 if s.sequence % every else share * (s.median or 0.0)) for one in new
    ]
    found = judgement_of([*history("old"), *waited]).causes.cold_start
    assert found == ({"load": (2.0, 9.0)} if called else {})


def test_a_start_is_slower_where_a_second_one_says_it() -> None:
    """The first one of a new image reads its files from the disk, and what was upgraded with it starts beside it."""
    old = history("old", containers="a", cold_start={"load": 2.0})
    new = [start("a", "new", HOUR + i * 600, cold_start={"load": 9.0}) for i in range(2)]
    assert judgement_of([*old, new[0]]).causes.cold_start == {}
    assert judgement_of([*old, *new]).causes.cold_start == {"load": (2.0, 9.0)}
    assert judgement_of([*old, *(one.first(1) for one in new)]).causes.cold_start, "it needs no look"
    quick = start("a", "new", HOUR + 600, cold_start={"load": 2.1})
    assert judgement_of([*old, new[0], quick]).causes.cold_start == {}


@pytest.mark.parametrize(
    ("beside", "quota", "tags", "cause"),
    [
        (1.0, ("1", "1"), ("cgroup_throttled",), "image"),
        (1.0, ("1", "1"), (), "both"),  # it did not reach its quota
        (1.0, ("1", "0.5"), ("cgroup_throttled",), "both"),  # somebody lowered it
        (None, ("1", "1"), ("cgroup_throttled",), "unknown"),  # nobody on the host says that it is quiet
        (1.6, ("1", "1"), ("cgroup_throttled",), "both"),  # the host is slower
    ],
)
def test_a_control_that_waits_for_the_quota_that_the_image_used_up_is_no_host(
    beside: float | None, quota: tuple[str, str], tags: tuple[str, ...], cause: str
) -> None:
    """A model twice as slow, on a limit of one CPU: its controls took 49 % longer, and everybody else as long."""
    facts = [{"torch": "2.7.0", "cpu_quota": cores} for cores in quota]
    old = [start(name, "old", i, environment=facts[0]) for i, name in enumerate("ab")]
    new = [
        start(name, "new", HOUR + i, 0.040, control=0.0006, tags=tags, environment=facts[1])
        for i, name in enumerate("ab")
    ]
    siblings = [
        from_then_on(start(name, "same", 0, service=name, runs=600), HOUR, beside or 1.0) for name in "st"
    ]
    found = judgement_of([*old, *new], siblings if beside else [])
    assert found.state == "regressed" and found.causes.cause == cause
    assert found.causes.controls["cpu_spin"] == pytest.approx(0.5, abs=0.02), "it is shown in any case"


def ended(start: Start, *times: float) -> Start:
    """``start``, which the kernel ended for memory at these times."""
    return Start(replace(start.generation, memory_kills=times), start.samples)


@pytest.mark.parametrize(
    ("old", "new"), [((), (9.0, 10.0)), ((1.0,), (8.0, 9.0, 10.0)), ((1.0, 2.0), (9.0, 10.0)), ((1.0,), ())]
)
def test_servers_that_the_kernel_ended_for_memory(old: tuple[float, ...], new: tuple[float, ...]) -> None:
    first, second, third, fourth = history("old", "new")
    # The first start of the new image ended, and is not live any more; the next one notes the same end once more.
    again = start("a", "new", 2 * HOUR)
    starts = [ended(first, *old), second, ended(third, *new), fourth, ended(again, *new[:1])]
    found = judgement_of(starts)
    assert found.causes.memory_kills == (len(old), len(new))
    settling = judgement_of([*starts[:2], ended(start("a", "new", HOUR, runs=1), *new)])
    assert settling.state == "settling" and settling.causes.memory_kills == (len(old), len(new))


@pytest.mark.parametrize("images", [(), ("old",), ("old", "old", "old")])
def test_without_an_upgrade_there_is_no_baseline(images: tuple[str, ...]) -> None:
    found = judgement_of(history(*images))
    assert found.state == "no_baseline" and found.upgraded_at is None


def test_the_same_latency_is_equivalent() -> None:
    found = judgement_of(history("old", "old", "old", "new"))
    assert found.state == "equivalent"
    assert found.shift == pytest.approx(0, abs=0.01)
    assert found.low is not None and found.high is not None and -0.03 < found.low < found.high < 0.03


@pytest.mark.parametrize(("factor", "state"), [(1.12, "regressed"), (0.9, "improved")])
def test_a_change_is_called_with_its_size_and_its_cause(factor: float, state: str) -> None:
    environment = {"torch": "2.13.0", "torch_intra_op_threads": "1", "numpy": "2.0"}
    found = judgement_of(history(*FOUR, "new", seconds=0.02 * factor, environment=environment))
    assert found.state == state
    assert found.shift == pytest.approx(factor - 1, abs=0.01)
    assert found.causes.cause == "image"
    assert found.causes.controls == {}
    assert [change.component for change in found.causes.changes][:2] == ["torch", "torch_intra_op_threads"]
    assert list(found.causes.phases) == ["compute"]
    assert found.baseline == pytest.approx(0.020, rel=0.01)
    assert found.current == pytest.approx(0.020 * factor, rel=0.01)
    assert found.causes.has_controls


@pytest.mark.parametrize(
    ("runs_of_new", "state", "levels"),
    [
        (None, "no_baseline", (None, 0.020, 0.0004)),
        (2, "settling", (None, None, 0.0004)),
        (192, "regressed", (0.020, 0.030, 0.0004)),
    ],
)
def test_the_level_before_is_the_old_images_or_the_only_ones(
    runs_of_new: int | None, state: str, levels: tuple[float | None, ...]
) -> None:
    new = [] if runs_of_new is None else [start("a", "new", 3 * HOUR, 0.030, runs_of_new, control=0.0005)]
    found = judgement_of([*history("old", "old", "old", containers="a"), *new])
    shown = (found.baseline, found.current, *found.controls.values())
    assert found.state == state and [*found.controls] == ["cpu_spin"]
    assert shown == tuple(level and pytest.approx(level, rel=0.01) for level in levels)


def test_a_verdict_says_where_both_images_came_from() -> None:
    source = "https://github.com/acme/search"
    origins = {"old": Origin("1a2b3c4d5e6f", source), "new": Origin("9f8e7d6c5b4a", source)}
    starts = history(*FOUR, "new", seconds=0.0224)
    labelled = [
        Start(replace(s.generation, origin=origins[s.generation.image_id]), s.samples) for s in starts
    ]
    found, plain = judgement_of(labelled), judgement_of(starts)
    assert tuple(found.origins) == (origins["old"], origins["new"])
    unlabelled = replace(found, origins=plain.origins)
    assert unlabelled == plain, "they decide nothing"


def test_what_the_controls_share_is_the_hosts() -> None:
    found = judgement_of(history(*FOUR, "new", seconds=0.023, control=0.00046))
    assert found.state == "regressed"
    assert found.causes.cause == "host"
    assert found.causes.controls == {"cpu_spin": pytest.approx(0.15, abs=0.01)}
    assert found.causes.image is not None and abs(found.causes.image.shift) < 0.01


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "CPython 3.11.7, glibc-2.36"),
        ("CPython 3.11.7, glibc-2.36", ""),
        ("CPython 3.11.7", "CPython 3.12.1"),
    ],
)
def test_controls_of_machine_code_are_never_compared_with_those_of_python(before: str, after: str) -> None:
    """An upgrade flipped seccomp, or brought another Python: the controls are then other work under the same name."""

    def of(made_of: str) -> dict[str, str]:
        return {"controls_made_of": made_of} if made_of else {}

    def judged(made_of: str) -> Result:
        old = [start("a", "old", HOUR * i, environment=of(before)) for i in range(4)]
        new = start("a", "new", 5 * HOUR, 0.0225, control=0.00048, environment=of(made_of))
        return judgement_of([*old, new])

    same, flipped = judged(before), judged(after)
    assert same.causes.cause == "host" and same.causes.controls == {"cpu_spin": pytest.approx(0.2, abs=0.01)}
    assert same.controls == {"cpu_spin": pytest.approx(0.0004, rel=0.01)}
    assert flipped.state == same.state == "regressed"
    assert (flipped.causes.cause, flipped.causes.has_controls, flipped.causes.controls) == (
        "unknown",
        False,
        {},
    )
    assert flipped.controls == {}, "there is no level to draw the new ones against"


def test_a_shift_of_both_is_split() -> None:
    found = judgement_of(history(*FOUR, "new", seconds=0.020 * 1.1 * 1.15, control=0.0004 * 1.1))
    assert found.causes.cause == "both"
    assert found.causes.host is not None and found.causes.image is not None
    assert found.causes.host.shift == pytest.approx(0.10, abs=0.02)
    assert found.causes.image.shift == pytest.approx(0.15, abs=0.02)


def test_who_may_have_added_nothing_is_not_blamed() -> None:
    """Starts differ by 6 %: of 42 % more, of which a control shows 29 %, the rest may be nothing."""
    levels = (0.0186, 0.0214, 0.0207, 0.0190)
    before = [start("a", "old", HOUR * i, seconds) for i, seconds in enumerate(levels)]
    found = judgement_of([*before, start("a", "new", 5 * HOUR, 0.0284, control=0.000515)])
    assert found.state == "regressed"
    assert found.causes.image is not None and found.causes.image.shift > 0.08 and found.causes.image.low < 0
    assert found.causes.cause == "unknown"
    assert found.causes.host is not None and found.causes.host.low > 0


def test_siblings_tell_of_the_host_where_controls_are_blind() -> None:
    starts = history(*FOUR, "new", seconds=0.023)
    at = starts[-1].generation.started_at
    calm = [start(name, name, at - 4000, 0.05, runs=700, service=name) for name in "xy"]
    slower = [from_then_on(sibling, at, 1.15) for sibling in calm]
    ended = calm[0].first(350)
    assert judgement_of(starts, [ended]).causes.cause == "image"
    alone = judgement_of(starts, slower[:1])
    assert alone.causes.cause == "unknown", "one that lies, or changed by itself, cannot carry the blame"
    found = judgement_of(starts, slower).causes
    assert found.cause == "host"
    assert found.siblings is not None and found.siblings.shift == pytest.approx(0.15, abs=0.02)


def from_then_on(sibling: Start, at: float, factor: float) -> Start:
    return changed(sibling, median=lambda s: (s.median or 0) * (factor if s.started_at >= at else 1.0))


def test_a_sibling_that_changed_by_itself_is_outvoted_however_quiet_it_is() -> None:
    starts = history(*FOUR, "new", seconds=0.023)
    at = starts[-1].generation.started_at
    loud = [start(n, n, at - 4000, 0.05, runs=700, service=n, noise=0.02) for n in "tuvwx"]
    quiet = start("y", "y", at - 4000, 0.05, runs=700, service="y", noise=0.003)
    alone = judgement_of(starts, [*loud, from_then_on(quiet, at, 1.15)]).causes
    assert alone.cause == "image" and alone.siblings is not None
    assert alone.siblings.shift == pytest.approx(0, abs=0.01)
    everyone = judgement_of(starts, [from_then_on(each, at, 1.15) for each in (*loud, quiet)]).causes
    assert everyone.cause == "host"
    # Of two that disagree neither is believed, and the controls decide.
    assert judgement_of(starts, [loud[0], from_then_on(quiet, at, 1.15)]).causes.cause == "image"


@pytest.mark.parametrize(
    ("meanwhile", "later", "cause"), [(1.15, 1.0, "host"), (1.0, 1.15, "image")], ids=["gone", "came"]
)
def test_what_siblings_feel_long_after_the_runs_that_are_judged_says_nothing(
    meanwhile: float, later: float, cause: str
) -> None:
    """A neighbour that came with the upgrade and went; and one that came days later."""
    starts = history(*FOUR, "new", seconds=0.023)
    at, end = starts[-1].generation.started_at, starts[-1].samples[-1].started_at
    sibling = start("x", "x", at - 4000, 0.05, runs=4000, service="other")
    felt = from_then_on(from_then_on(sibling, at, meanwhile), end + HOUR, later / meanwhile)
    for samples in (felt.samples, felt.samples[:800]):
        both = [Start(replace(felt.generation, service=name), samples) for name in "xy"]
        assert judgement_of(starts, both).causes.cause == cause


def test_controls_that_did_not_run_are_not_flat() -> None:
    starts = [changed(one, controls={}) for one in history(*FOUR, "new", seconds=0.023)]
    sibling = start("x", "x", starts[-1].generation.started_at - 4000, 0.05, runs=700, service="other")
    found = judgement_of(starts, [sibling])
    assert found.causes.cause == "image" and not found.causes.has_controls


@pytest.mark.parametrize(
    ("seconds", "names", "state"),
    [(0.02, "a", "inconclusive"), (0.03, "ab", "inconclusive"), (0.05, "ab", "regressed")],
)
def test_times_that_are_all_the_same_are_judged(seconds: float, names: str, state: str) -> None:
    """By the step of the clock: 0.02 s may be anything up to 0.03 s."""
    starts = [start(name, "old", HOUR * i) for i, name in enumerate("ababab")]
    starts += [start(name, "new", 9 * HOUR + i, seconds) for i, name in enumerate(names)]
    same = {"controls": {"cpu_spin": 0.001}}
    found = judgement_of(old_and_new(starts, {**same, "median": 0.02}, {**same, "median": seconds}))
    assert found.state == state and (found.low is not None and found.low > -1e-9) == (seconds > 0.02)
    assert found.only == (0.02 if seconds == 0.02 else None)
    assert state != "regressed" or found.causes.cause == "image"


def test_few_runs_are_settling_and_a_large_change_is_called_at_the_first_looks() -> None:
    def state(runs: int) -> str:
        return judgement_of(history(*FOUR, "new", seconds=0.026, runs=runs)).state

    assert state(3) == state(4) == "settling"
    assert state(5) == state(24) == "regressed"
    few = judgement_of(history("old", "old", "new", runs=4))
    assert (few.looks.next, few.runs) == (5, 4), "of each replica"


def stopped(runs: int = 60, every: float = 10.0, last_at: float | None = None) -> list[Start]:
    """A rollout to a slower image that was stopped half way: one replica of two had it, for so many runs."""
    bad = start("b", "bad", 2 * HOUR, 0.026, runs, every=every)
    went_on = start("a", "good", HOUR, runs=int(2 * HOUR / every), every=every)
    old = [start("a", "old", 0, every=every), start("b", "old", 1, every=every)]
    last = last_at and replace(bad.samples[-1], started_at=last_at)
    return [*old, went_on, Start(bad.generation, bad.samples, last or None)]


def test_a_rollout_that_was_stopped_half_way_is_no_upgrade_any_more() -> None:
    found = judgement_of(stopped())
    assert (found.upgraded_at, found.candidate_image) == (HOUR, "resnet:latest (good)")
    assert judgement_of(stopped(runs=360)).state == "regressed", "it still runs"
    [*_, good, bad] = stopped()
    assert judgement_of([good, bad]).state == "no_baseline"
    assert judgement_of([good, bad]).candidate_image == "resnet:latest (good)"
    assert judgement_of([good, bad]).rolled_back_image == "resnet:latest (bad)"
    assert judgement_of([good]).rolled_back_image == ""
    runs = [judgement_of(each).runs for each in ([good], [good, bad])]
    assert runs[0] == runs[1] > 0, "what was rolled back is no part of the next baseline"


def test_an_image_that_fails_or_is_slow_to_run_is_not_rolled_back() -> None:
    assert judgement_of(stopped(last_at=3 * HOUR - 5)).upgraded_at == 2 * HOUR, "its runs fail since then"
    assert judgement_of(stopped(runs=2, every=900.0)).upgraded_at == 2 * HOUR, (
        "half an hour are two of its runs"
    )
    assert judgement_of(stopped(runs=2, every=300.0)).upgraded_at == HOUR


@pytest.mark.parametrize("runs", [0, 3, 7])
def test_an_image_that_never_got_so_far_is_passed_over(runs: int) -> None:
    """It crashed, or failed each run, and the next one is its fix: compared with what ran before."""
    old = history("old", "old", "old", "old")
    broken = [start(name, "broken", 5 * HOUR + i, runs=runs) for i, name in enumerate("ab")]
    assert judgement_of([*old, *broken]).upgraded_at == 5 * HOUR and judgement_of([*old, *broken]).state == (
        "settling" if runs < 5 else "equivalent"
    )
    repaired = [start(name, "repaired", 6 * HOUR + i, 0.026) for i, name in enumerate("ab")]
    found = judgement_of([*old, *broken, *repaired])
    assert (found.state, found.baseline_image) == ("regressed", "resnet:latest (old)")
    assert (
        judgement_of(
            [*old, *broken, *(start(name, "old", 6 * HOUR + i) for i, name in enumerate("ab"))]
        ).upgraded_at
        is None
    )
    assert judgement_of([*broken, *repaired]).state == "no_baseline", "nothing is known of any other"


@pytest.mark.parametrize("order", ["ab", "ba", "abc", "bca"])
def test_a_replica_that_tried_another_image_is_compared_with_what_the_others_ran(order: str) -> None:
    old = [start(name, "old", HOUR * i + n) for i in range(3) for n, name in enumerate("abc")]
    tried = start("a", "bad", 4 * HOUR, 0.026)
    fixed = [start(name, "fixed", 5 * HOUR + n, 0.023) for n, name in enumerate(order)]
    found = judgement_of([*old, tried, *fixed])
    assert (found.state, found.baseline_image) == ("regressed", "resnet:latest (old)")
    assert found.shift == pytest.approx(0.15, abs=0.01)
    assert found.upgraded_at == 5 * HOUR
    alone = judgement_of([*old, tried, start("a", "fixed", 5 * HOUR, 0.023)])
    assert alone.baseline_image == "resnet:latest (bad)", "until others follow"


def test_replicas_that_are_added_with_an_upgrade_share_the_baseline_that_there_is() -> None:
    old, new = start("a", "old", 0), [start(name, "new", HOUR + i, 0.021) for i, name in enumerate("abc")]
    renamed = [Start(replace(s.generation, container=f"{s.generation.container}2"), s.samples) for s in new]
    added, replaced = judgement_of([old, *new]), judgement_of([old, *renamed])
    assert (added.shift, added.low, added.high) == (replaced.shift, replaced.low, replaced.high)


def test_a_rollback_is_compared_with_the_images_own_history_too() -> None:
    starts = [
        s
        for i, image in enumerate(["old", "old", "old"])
        for s in history(image, containers=(f"{'ab'[i % 2]}",))
    ]
    starts = [
        start("a", "old", 0),
        start("b", "old", 1),
        start("a", "old", HOUR),
        start("b", "old", HOUR + 1),
    ]
    starts += [start("a", "bad", 2 * HOUR, 0.026), start("b", "bad", 2 * HOUR + 1, 0.026)]
    starts += [start("a", "old", 3 * HOUR), start("b", "old", 3 * HOUR + 1)]
    found = judgement_of(starts)
    assert found.rollback and found.state == "improved"
    assert found.own is not None and found.own.shift == pytest.approx(0, abs=0.01)


def false_alarms(starts: list[Start]) -> tuple[int, int]:
    found = trials(starts)
    return len(found), sum(trial.called for trial in found.values())


def test_restarts_teach_how_much_they_change() -> None:
    calm = [start("a", "old", HOUR * i, 0.020) for i in range(8)]
    wild = [start("a", "old", HOUR * i, 0.020 * (1.05 if i % 2 else 0.95)) for i in range(8)]
    assert judgement_of(calm).restart.sd < 0.01 < 0.03 < judgement_of(wild).restart.sd
    after = [start("a", "new", 8 * HOUR, 0.0215)]
    assert judgement_of([*wild, *after]).state == "inconclusive"
    assert false_alarms(calm) == (7, 0)
    assert false_alarms(wild)[0] == 7


def test_a_wild_restart_does_not_excuse_itself() -> None:
    calm = [start("a", "old", HOUR * i, 0.020) for i in range(5)]
    wild = start("a", "old", 5 * HOUR, 0.024)
    as_upgrade = Start(replace(wild.generation, image_id="new"), wild.samples)
    assert judgement_of([*calm, as_upgrade]).state == "regressed"
    assert false_alarms([*calm, wild]) == (5, 1), "as it would have been judged at the time"
    # The restart after it is judged by who has seen it: two starts may differ by so much.
    assert false_alarms([*calm, wild, start("a", "old", 6 * HOUR, 0.020)]) == (6, 1)


def test_a_trial_is_made_once_for_each_look() -> None:
    starts = [start("a", "old", HOUR * i, runs=30 if i == 4 else 192) for i in range(5)]
    first = trials(starts)
    assert {key: trial.looks for key, trial in first.items()} == {
        **{("a", f"a-{HOUR * i}"): 9 for i in (1, 2, 3)},
        ("a", f"a-{HOUR * 4}"): 5,
    }
    known = {key: trial._replace(called=True) for key, trial in first.items()}
    assert trials(starts, known) == known, "none of them is made again"
    grown = [*starts[:4], start("a", "old", HOUR * 4, runs=50)]
    again = trials(grown, known)
    newest = "a", f"a-{HOUR * 4}"
    assert again[newest].looks == 7 and not again[newest].called
    assert {key: trial for key, trial in again.items() if key != newest} == {
        key: trial for key, trial in known.items() if key != newest
    }
    assert ("a", f"a-{HOUR}") not in trials(starts[2:], known), "the store no longer has it"
    assert trials(grown, known, 0) == known, "one that has to wait is not forgotten"
    by_twos = trials(starts, {}, 2)
    assert len(by_twos) == 2 and trials(starts, by_twos, 2) == first


@pytest.mark.parametrize("component", ["torch_device", "onnx_device"])
def test_answers_starts_and_devices_are_judged_too(component: str) -> None:
    old = {component: "cuda:0"}
    starts = [start(n, "old", i, environment=old, cold_start={"load": 2.0}) for i, n in enumerate("ab")]
    starts += [
        start(
            n,
            "new",
            HOUR + i,
            0.2,
            environment={component: "cpu"},
            cold_start={"load": 9.0},
            output=(2.0, 1.0),
        )
        for i, n in enumerate("ab")
    ]
    found = judgement_of(starts)
    assert found.causes.cpu_fallback and found.causes.output_changed
    assert found.causes.cold_start == {"load": (2.0, 9.0)}
    assert found.state == "regressed" and Change(component, "cuda:0", "cpu") in found.causes.changes


def test_a_fall_back_to_the_cpu_needs_no_look() -> None:
    """On the CPU runs are rare: twelve of them may take hours."""
    old = start("a", "old", 0, environment={"torch_device": "cpu, cuda:0"}, runs=3)
    new = start("a", "new", HOUR, 0.2, environment={"torch_device": "cpu"}, runs=1)
    found = judgement_of([old, new])
    assert found.state == "no_baseline" and found.causes.cpu_fallback
    settling = judgement_of([start("a", "old", 0, environment={"torch_device": "cuda:0"}), new])
    assert settling.state == "settling" and settling.causes.cpu_fallback
    # Of two replicas one; and one that was judged already, and comes back without its GPU.
    gpu, cpu = {"torch_device": "cuda:0"}, {"torch_device": "cpu"}
    two = [start(name, "old", i, environment=gpu) for i, name in enumerate("ab")]
    two += [start("a", "new", HOUR, 0.2, environment=cpu), start("b", "new", HOUR + 5, environment=gpu)]
    assert judgement_of(two).causes.cpu_fallback
    again = [*two[:2], *(start(name, "new", HOUR + i, environment=gpu) for i, name in enumerate("ab"))]
    assert not judgement_of(again).causes.cpu_fallback
    assert judgement_of([*again, start("a", "new", 2 * HOUR, environment=cpu, runs=1)]).causes.cpu_fallback
    # One canary of two was moved to the CPU on purpose: the other still runs on the GPU.
    moved = start("a", "new", HOUR, environment={"torch_device": "cpu", "onnx_device": "cuda:0"}, runs=1)
    assert not judgement_of([old, moved]).causes.cpu_fallback


@pytest.mark.parametrize(
    ("tag", "reason", "shown"),
    [
        ("cgroup_throttled", "", "cgroup_throttled"),
        ("gpu_clock_limited", "hw_thermal", "gpu_clock_limited (hw_thermal)"),
    ],
)
def test_tags_that_appeared_are_named(tag: str, reason: str, shown: str) -> None:
    starts = history(*FOUR, "new", seconds=0.026, tags=(tag,))
    found = judgement_of([changed(one, clock_reason=reason) for one in starts])
    assert found.causes.tags == {shown: (0.0, 1.0)}


def beside_of(starts: list[Start], factor: float) -> list[Start]:
    """Two siblings that take ``factor`` times as long since the newest of ``starts`` began."""
    at = starts[-1].generation.started_at
    return [
        from_then_on(start(name, "x", at - 4000, 0.05, runs=700, service=name), at, factor) for name in "st"
    ]


@pytest.mark.parametrize(
    ("beside", "cause"),
    [*((factor, "unknown") for factor in (None, 0.9, 1.0, 1.035, 1.1, 1.5)), (1.9, "host"), (2.0, "host")],
)
def test_a_gpu_that_others_use_now_is_no_fault_of_the_image(beside: float | None, cause: str) -> None:
    """On an H200 a canary took 2.04 times as long beside a process that computes, and `gpu_fma` 1.11 times."""
    starts = history(*FOUR, "new", seconds=0.041, control=0.000444, tags=("gpu_busy",))
    found = judgement_of(starts, beside_of(starts, beside) if beside is not None else [])
    assert (found.state, found.causes.cause) == ("regressed", cause), found.causes
    assert (found.causes.image is None) == (cause == "unknown")
    assert found.causes.tags == {"gpu_busy": (0.0, 1.0)}


def test_waiting_for_a_cpu_explains_no_more_beside_others_on_the_gpu() -> None:
    starts = history(*FOUR, "new", seconds=0.041, tags=("gpu_busy",))
    found = judgement_of(old_and_new(starts, {"waited": 0.0}, {"waited": 0.001}))
    assert (found.state, found.causes.cause) == ("regressed", "unknown"), found.causes


def busy_before(starts: list[Start]) -> list[Start]:
    """Others used the GPU of the old image's starts alone."""
    return old_and_new(starts, {"tags": ("gpu_busy",)}, {})


def test_the_image_is_not_credited_for_a_neighbour_that_left_the_gpu() -> None:
    faster = history(*FOUR, "new", seconds=0.010)
    assert judgement_of(faster).causes.cause == "image"
    found = judgement_of(busy_before(faster))
    assert (found.state, found.causes.cause) == ("improved", "unknown"), found.causes
    assert found.causes.tags == {"gpu_busy": (1.0, 0.0)}
    slower = busy_before(history(*FOUR, "new", seconds=0.026))
    assert judgement_of(slower).causes.cause == "image", "a neighbour that left makes nothing slower"


def test_between_files_and_in_a_drift_others_on_the_gpu_excuse_the_image_too() -> None:
    *old, new = history(*FOUR, "new", seconds=0.041, tags=("gpu_busy",))
    causes = Attribution().explain(Shift(math.log(2.05), 0.01, 20.0), [Pair(old, [new])], "")
    assert (causes.cause, causes.host, causes.image) == ("unknown", None, None)
    quiet = Start(new.generation, [replace(r, tags=()) for r in new.samples])
    assert Attribution().explain(Shift(math.log(2.05), 0.01, 20.0), [Pair(old, [quiet])], "").cause == "image"


def test_a_gpu_that_others_used_before_as_well_is_no_excuse() -> None:
    always = [changed(one, tags=("gpu_busy",)) for one in history(*FOUR, "new", seconds=0.041)]
    assert judgement_of(always).causes.cause == "image"


def test_the_clock_explains_what_follows_it() -> None:
    starts = [start(n, "old", HOUR * i, clock=1980e6) for i, n in enumerate("abab")]
    starts += [start(n, "new", HOUR * 9 + i, 0.025, clock=1584e6) for i, n in enumerate("ab")]
    found = judgement_of(starts)
    assert found.causes.clock is not None and found.causes.clock.shift == pytest.approx(0.25, abs=0.01)


def test_how_far_latency_follows_the_clock_is_seen_within_starts() -> None:
    """Where it follows by half, a clock 20 % lower explains 12 % and not 25 %."""
    rng = random.Random(0)

    def following(container: str, image: str, at: float, clock: float) -> Start:
        steady = changed(start(container, image, at), sm_clock=lambda s: clock * rng.uniform(0.95, 1.05))
        return changed(steady, median=lambda s: s.median * (1980e6 / s.sm_clock) ** 0.5)

    starts = [following(n, "old", HOUR * i, 1980e6) for i, n in enumerate("abab")]
    starts += [following(n, "new", HOUR * 9 + i, 1584e6) for i, n in enumerate("ab")]
    clock = judgement_of(starts).causes.clock
    assert clock is not None and clock.shift == pytest.approx(0.118, abs=0.01)


def test_only_steady_runs_that_ended_well_count() -> None:
    [sample] = start("a", "old", 0, runs=1).samples
    assert sample.is_settled
    assert replace(sample, tags=("cpu_wait_outside",)).is_settled
    wrong: list[dict[str, object]] = [{"outcome": "raised"}, {"median": None}, {"tags": ("warming",)}]
    others = [replace(sample, started_at=50.0 + i, **one) for i, one in enumerate(wrong)]
    assert not any(other.is_settled for other in others)
    whole = Start.of(Generation(service="s", container="a", boot_id="b", started_at=0.0), [sample, *others])
    assert (whole.samples, whole.last) == ([sample], others[-1])


def test_of_a_control_and_siblings_the_larger_is_the_hosts() -> None:
    """A control answers to one resource, a sibling to as many as the canary."""
    starts = history(*FOUR, "new", seconds=0.020 * 1.25, control=0.0004 * 1.10)
    at = starts[-1].generation.started_at
    sibling = start("x", "x", at - 4000, 0.05, runs=700, service="other")
    assert judgement_of(starts).causes.cause == "both"
    found = judgement_of(starts, [from_then_on(sibling, at, 1.20)])
    assert found.causes.host is not None and found.causes.host.shift == pytest.approx(0.20, abs=0.02)
    assert found.causes.cause == "host"


def test_replicas_with_new_names_are_one_baseline_and_not_several() -> None:
    """What four share does not average out over them."""
    old = [start(n, "old", i, noise=0.02) for i, n in enumerate("abcd")]
    same, anew = (
        judgement_of([*old, *(start(n, "new", HOUR + i, noise=0.02) for i, n in enumerate(names))])
        for names in ("abcd", "wxyz")
    )
    widths = [
        found.high - found.low for found in (same, anew) if found.high is not None and found.low is not None
    ]
    assert widths[1] > 0.9 * widths[0]
    assert anew.starts == 8


@pytest.mark.parametrize(
    ("before", "after", "seconds", "cause"),
    [
        # Three or nine tenths of a tenth less, and the whole, were waiting.
        (0.0006, 0.0, 0.018, "both"),
        (0.0018, 0.0, 0.018, "host"),
        (0.0002, 0.0, 0.018, "image"),
        # From 20 to 42 ms. Cold caches may cost as much again: where only both together explain it, the image is not
        # excluded.
        (0.0005, 0.021, 0.042, "host"),
        (0.0005, 0.0145, 0.042, "unknown"),
        (0.0005, 0.010, 0.042, "both"),
        (0.0005, 0.001, 0.042, "image"),
        (0.0005, 0.0, 0.042, "image"),
        (None, None, 0.042, "image"),
    ],
)
def test_waiting_for_cpus_that_others_had_is_the_hosts(
    before: float | None, after: float | None, seconds: float, cause: str
) -> None:
    """With controls that stand still: how much of it was in the run queue tells."""
    known: dict[str, object] = {"crowded": 0.0, "inside": 0.0}
    starts = history(*FOUR, "new", seconds=seconds)
    found = judgement_of(old_and_new(starts, {**known, "waited": before}, {**known, "waited": after}))
    assert (found.state, found.causes.cause) == ("improved" if seconds < 0.02 else "regressed", cause)
