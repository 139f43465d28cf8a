"""Verdict and cause of an upgrade with simulated runs: a table, and cases that need more than a row."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from infercanary.judge.causes import Attribution
from infercanary.judge.crowding import crowding
from infercanary.judge.model import Pair, Start, merge
from infercanary.judge.origin import Origin
from infercanary.judge.result import Change
from infercanary.judge.shift import Shift
from infercanary.judge.verdict import Judge
from tests.factories import HOUR, changed, history, judge, sibling, start
from tests.scenarios import cases, named, typed

trials = Judge().trials

OWN = 0.020  # seconds of the canary's own computation
NEW = 4 * HOUR  # start time of the new image

# Each line: name | old image | new image | factors of siblings | state, cause, and unknown facts in
# parentheses. `seconds` is the whole latency; without it, the latency is `own` plus the CPU wait. `?` is an
# unknown value. The old image's starts are at `levels`. A sibling's factor may have separate noise after a
# slash.
TABLE = """
the same                           | |  | | equivalent unknown
12 % slower                        | | seconds=.0224 | | regressed image
10 % faster                        | | seconds=.018 | | improved image
a control moved by all of it       | | seconds=.023 control=.00046 | | regressed host
a control moved by half of it      | | seconds=.0253 control=.00044 | | regressed both
restarts hide what the rest is     | levels=.93,1.07,1.035,.95 | seconds=.0284 control=.000515 | | regressed unknown
no control ran                     | control=0 | seconds=.023 control=0 | 1 | regressed image
other controls under the same name | python=3.11 | seconds=.0225 control=.00048 python=3.12 | | regressed unknown
the first controls of machine code | | seconds=.0225 control=.00048 python=3.12 | | regressed unknown

siblings felt it                   | | seconds=.023 | 1.15 1.15 | regressed host
one sibling felt it                | | seconds=.023 | 1.15 | regressed unknown
siblings did not run since         | | seconds=.023 | 1 1 runs=200 | regressed image
one of six siblings moved alone    | | seconds=.023 | 1/.02 1/.02 1/.02 1/.02 1/.02 1.15/.003 | regressed image
one of two siblings moved          | | seconds=.023 | 1/.02 1.15/.003 | regressed image
a sibling felt more than a control | | seconds=.025 control=.00044 | 1.2 | regressed host
siblings disagree, no controls     | control=0 | seconds=.028 control=0 | 1.4 1 | regressed unknown
at five runs, none                 | | EARLY | | regressed image
siblings that felt it at five runs | | EARLY | 1.15 1.15 every=2 until=9 | regressed host
flat ones at five runs             | | EARLY | 1 1 every=2 until=9 | regressed image
too few runs of siblings yet       | | EARLY | 1.15 1.15 every=60 until=9 | regressed unknown (siblings)
siblings that vary too much        | | EARLY | 1/.4 1/.4 every=2 until=9 | regressed unknown (siblings)
siblings that ended before         | | EARLY | 1 1 every=60 until=-600 | regressed image

it reached its quota               | quota=1 | THROTTLED quota=1 | 1 1 | regressed image
it did not reach its quota         | quota=1 | seconds=.04 control=.0006 quota=1 | 1 1 | regressed both
somebody lowered the quota         | quota=1 | THROTTLED quota=.5 | 1 1 | regressed both
a quota, and nobody beside it      | quota=1 | THROTTLED quota=1 | | regressed unknown
a quota, and a slower host         | quota=1 | THROTTLED quota=1 | 1.6 1.6 | regressed both

one clock tick                     | noise=0 | seconds=.03 noise=0 | | inconclusive image
more than one clock tick           | noise=0 | seconds=.05 noise=0 | | regressed image
no tick                            | noise=0 | noise=0 | | inconclusive unknown

others came to the GPU             | | OTHERS | | regressed unknown
others came, siblings stood still  | | OTHERS | 1 1 | regressed unknown
others came, siblings felt half    | | OTHERS | 1.5 1.5 | regressed unknown
others came, siblings felt it      | | OTHERS | 1.9 1.9 | regressed host
others came, and a short wait      | waited=0 | seconds=.041 waited=.001 tags=gpu_busy | | regressed unknown
others left the GPU, faster        | tags=gpu_busy | seconds=.010 | | improved unknown
others left the GPU, slower        | tags=gpu_busy | seconds=.026 | | regressed image
others were there before           | tags=gpu_busy | seconds=.041 tags=gpu_busy | | regressed image

a wait that is gone, part of it    | waited=.0006 seconds=.02 | waited=0 seconds=.018 | | improved both
a wait that is gone, all of it     | waited=.0018 seconds=.02 | waited=0 seconds=.018 | | improved host
a wait that is gone, little of it  | waited=.0002 seconds=.02 | waited=0 seconds=.018 | | improved image
nearly all of it is wait           | waited=.0005 seconds=.02 | waited=.021 seconds=.042 | | regressed host
cold caches may be the rest        | waited=.0005 seconds=.02 | waited=.0145 seconds=.042 | | regressed unknown
half of it is wait                 | waited=.0005 seconds=.02 | waited=.010 seconds=.042 | | regressed both
hardly any wait                    | waited=.0005 seconds=.02 | waited=.001 seconds=.042 | | regressed image
a wait that nobody knows           | waited=? | waited=? seconds=.042 | | regressed image
faster, several threads wait       | UNSPLIT threads=4 | control=.00038 seconds=.014 QUEUED threads=4 | | improved image
slower, several threads wait       | UNSPLIT threads=4 | control=.00042 seconds=.026 QUEUED threads=4 | | regressed host
a wait for nobody knows whom       | UNSPLIT | seconds=.026 QUEUED | | regressed unknown (waiting)
the same, and a control moved      | UNSPLIT | seconds=.026 control=.00052 QUEUED | | regressed host

others had its core                | waited=0 | NEIGHBOUR | | regressed host
others had it, siblings felt none  | waited=0 | NEIGHBOUR | 1 1 | regressed host
a slower host, and a short wait    | waited=0 | own=.026 waited=.001 control=.00054 | | regressed host
others had cores of some threads   | waited=0 threads=4 | NEIGHBOUR threads=4 control=.00044 | | regressed host
nobody knows who had its core      | UNSPLIT | NEIGHBOUR inside=? crowded=? | | regressed unknown (waiting)
a busy server's neighbour          | crowded=.002 inside=2 | crowded=.02 inside=2 | | regressed host
a loop in the container            | waited=0 | LOOP | | regressed image
a loop that controls feel too      | waited=0 | LOOP control=.0006 | 1.1 1.1 | regressed image
a loop beside several threads      | waited=0 threads=4 | LOOP control=.0006 threads=4 | 1 1 | regressed image
more requests of several threads   | waited=0 threads=4 | LOOP received=600 threads=4 | | regressed unknown
many more requests                 | waited=0 | LOOP received=600 | | regressed load
some more requests, idle before    | waited=0 | LOOP received=90 | | regressed unknown (load)
unknown requests                   | waited=0 | LOOP received=? | | regressed unknown (load)
others inside, unknown before      | UNSPLIT threads=4 | LOOP received=600 threads=4 | | regressed unknown (load)
requests in proportion             | SERVER | LOOP received=330 | | regressed load
the same requests with more CPU    | SERVER | LOOP received=102 | | regressed image
nobody asks, as in an experiment   | received=0 | LOOP received=0 | | regressed image
a lock that requests hold | inside=.1 received=100 | own=.026 inside=.3 received=300 | | regressed unknown (load)
a lock for too little              | inside=.1 received=100 | own=.04 inside=.15 received=150 | | regressed image
a tenth more requests              | inside=2 received=100 | own=.026 inside=2.2 received=110 | 1 | regressed image
a loop that is gone                | LOOP | waited=0 | | improved image
half inside, half outside          | waited=0 | crowded=.02 waited=.02 inside=.333 | | regressed both
a loop doubles the wait outside    | HOST_BUSY | own=.004 waited=.016 crowded=.004 inside=.17 | | regressed image
more neighbours                    | HOST_BUSY | own=.004 waited=.020 inside=.012 | | regressed host
a loop and neighbours              | HOST_BUSY | own=.004 waited=.037 crowded=.004 inside=.09 | | regressed both
a slower image, not excluded       | waited=0 | own=.028 waited=.012 | | regressed unknown
a slower image beside a neighbour  | waited=0 | own=.032 waited=.008 | | regressed both
an image behind a larger neighbour | waited=0 levels=.8,1.2,.95,1.05 | own=.025 waited=.04 | | regressed unknown

a sibling that a quota held back   | | seconds=.03 | 1.5 1.5 tags=cgroup_throttled | regressed image
a sibling with others inside       | | seconds=.03 | 1.5 1.5 tags=cpu_wait_inside | regressed image
a sibling at its memory limit      | | seconds=.03 | 1.5 1.5 tags=memory_limit | regressed image
a sibling on other cores           | | seconds=.03 | 1.5 1.5 tags=cpuset_changed | regressed image
a sibling that waits for others    | | seconds=.03 | 1.5 1.5 tags=cpu_wait_outside | regressed host
"""
SHORT = {
    "THROTTLED": "seconds=.04 control=.0006 tags=cgroup_throttled",
    "OTHERS": "seconds=.041 control=.000444 tags=gpu_busy",
    "EARLY": "seconds=.023 runs=5 every=2",
    "LOOP": "crowded=.02 inside=.5 tags=cpu_wait_inside",
    "NEIGHBOUR": "waited=.02 tags=cpu_wait_outside",
    "QUEUED": "waited=.0016 tags=cpu_wait_outside inside=? crowded=?",
    "UNSPLIT": "waited=0 inside=? crowded=?",
    "SERVER": "crowded=.004 inside=.15 received=100",
    "HOST_BUSY": "own=.004 waited=.008 inside=.012",
}
"""Short words of the lines above."""
ENVIRONMENT = {"threads": "torch_intra_op_threads", "quota": "cpu_quota", "python": "controls_made_of"}


def parsed(text):
    """Return the words without `=`, and the other words by name."""
    fields: dict[str, Any] = {}
    text = " ".join(SHORT.get(word, word) for word in text.split())
    for name, _, value in (word.partition("=") for word in text.split() if "=" in word):
        if name in ENVIRONMENT:
            fields["environment"] = {**fields.get("environment", {}), ENVIRONMENT[name]: value}
        else:
            fields[name] = (
                (value,) if name == "tags" else [*map(float, value.split(","))] if "," in value else value
            )
    numbers = {
        name: None if x == "?" else float(x) if isinstance(x, str) else x
        for name, x in fields.items()
        if name != "environment"
    }
    return [word for word in text.split() if "=" not in word], {**fields, **numbers}


WAITING = {"waited": 0.0, "crowded": 0.0, "inside": 0.0, "received": 3.0}


def judged(old_text, new_text, beside_text=""):
    sides = [parsed(text)[1] for text in (old_text, new_text)]
    knows = any(WAITING.keys() & side.keys() for side in sides)
    for side in sides:
        side |= {name: side.get(name, usual) for name, usual in WAITING.items()} if knows else {}
        own, waits = side.pop("own", OWN), (side.get("waited") or 0.0) + (side.get("crowded") or 0.0)
        side.setdefault("seconds", own + waits)
        side.setdefault("control", 0.0004)
        side["runs"] = int(side.get("runs", 60))
    old, new = sides
    levels = old.pop("levels", [1.0] * 4)
    before = [
        start(name, "old", HOUR * n + i, **{**old, "seconds": old["seconds"] * level})
        for n, level in enumerate(levels)
        for i, name in enumerate("a" if old["seconds"] != old["seconds"] * levels[0] else "ab")
    ]
    containers = {s.generation.container for s in before}
    starts = [*before, *(start(name, "new", NEW + i, **new) for i, name in enumerate(sorted(containers)))]
    factors, fields = parsed(beside_text)
    until, tags = fields.pop("until", None), fields.pop("tags", ())
    fields |= {"runs": int(fields["runs"])} if "runs" in fields else {}
    beside = []
    for number, factor, noise in (
        (n, *map(float, f"{word}/.005".split("/")[:2])) for n, word in enumerate(factors)
    ):
        made = sibling(f"x{number}", NEW, factor, noise=noise, **fields)
        made = changed(made, tags=lambda run: tags if run.started_at >= NEW else ())
        beside.append(made if until is None else made.until(NEW + until + 1))
    return judge(starts, beside)


@cases(named(TABLE))
def test_a_verdict_and_its_cause(old, new, beside, expected):
    found = judged(old, new, beside)
    state, cause, *facts = expected.split()
    assert (found.state, found.causes.cause) == (state, cause), found.causes
    assert all(getattr(found.causes, f"unknown_{fact.strip('()')}") for fact in facts)
    assert cause == "unknown" or not found.causes.unknown_siblings


def test_the_size_of_a_change_and_what_came_with_it():
    def made(image, at, seconds, torch):
        one = start(
            "a", image, at, seconds, environment={"torch": torch, "numpy": "2.0"}, clock_reason="hw_thermal"
        )
        one = one.reporting(origin=Origin(image), outputs={"c": (len(image) + 1.0, 2.0)})
        tags = ("gpu_clock_limited",) if image == "new" else ()
        return changed(one, tags=tags, phases=lambda s: {"compute": s.median - 0.002, "h2d": 0.002})

    starts = [*(made("old", HOUR * n, 0.02, "2.7.0") for n in range(4)), made("new", NEW, 0.0224, "2.13.0")]
    found = judge(starts)
    assert found.shift == pytest.approx(0.12, abs=0.01)
    assert [*found.causes.phases] == ["compute"]
    assert found.causes.changes == (Change("torch", "2.7.0", "2.13.0"),)
    assert found.causes.has_controls
    assert not found.causes.output_changed
    assert found.causes.tags == {"gpu_clock_limited (hw_thermal)": (0.0, 1.0)}
    assert found.origins == (Origin("old"), Origin("new"))
    plain = judge([s.reporting(origin=Origin()) for s in starts])
    assert replace(found, origins=plain.origins) == plain, "labels must not affect the verdict"
    other = judge([*starts[:-1], starts[-1].reporting(outputs={"c": (2.0, 1.0)})])
    assert other.causes.output_changed


def test_the_parts_of_a_shift_have_their_sizes():
    causes = judged("", "seconds=.0253 control=.00044").causes
    assert causes.host.shift == pytest.approx(0.10, abs=0.02)
    assert causes.image.shift == pytest.approx(0.15, abs=0.02)
    assert causes.controls == {"cpu_spin": pytest.approx(0.1, abs=0.01)}
    loop = judged("waited=0", "crowded=.02 inside=.5 tags=cpu_wait_inside").causes
    assert loop.inside == (0.0, 0.5)
    flipped = judged("", "seconds=.0225 control=.00048 python=3.12")
    assert not flipped.causes.has_controls and not flipped.controls, (
        "the new controls have no comparable baseline"
    )


@given(
    st.sampled_from([0.7, 1.15, 1.9]), st.floats(0.9, 2.5), st.floats(0.8, 3.0), st.floats(0.0, 0.02), st.booleans()
)  # fmt: skip
def test_parts_add_up_to_the_shift_and_none_exceeds_it(factor, control, felt, waited, crowded):
    """Regression: an operator saw `host +38 %, image +39 %` for a minute."""
    waited, inside = min(waited, 0.01 * factor), 0.5 * crowded
    waiting: dict[str, Any] = {
        "waited": waited * (1 - inside),
        "crowded": waited * inside,
        "inside": 0.05 + inside,
    }
    old = start("a", "old", runs=20, waited=0.0, crowded=0.0, inside=0.05, received=10.0)
    received = 100.0 if crowded else 10.0
    new = start("a", "new", HOUR, 0.02 * factor, 20, control=0.001 * control, received=received, **waiting)
    pair = Pair([start("s", "x", 0.0, 0.05, 20)], [start("s", "x", HOUR, 0.05 * felt, 20)])
    shift = Shift(math.log(factor), 0.01, 20.0)
    causes = Attribution().explain(shift, [Pair([old], [new])], "c", beside=[pair] * 2)
    parts = [math.log1p(part.shift) for part in (causes.host, causes.image, causes.load) if part is not None]
    assert not parts or math.fsum(parts) == pytest.approx(shift.log)
    assert all(-1e-9 <= part / shift.log <= 1 + 1e-9 for part in parts)


@cases([(1.15, 1.0, "host"), (1.0, 1.15, "image")])
def test_slow_siblings_long_after_the_judged_runs_do_not_count(meanwhile, later, cause):
    end = NEW + 600

    def felt(time):
        return 0.05 * (1.0 if time < NEW else meanwhile if time < end + HOUR else later)

    beside = [start("x", "x", NEW - HOUR, felt, 1500, service=name) for name in "xy"]
    assert judge(history(seconds=0.023), beside).causes.cause == cause


def test_the_clock_explains_what_follows_it():
    """If half of the latency depends on the clock, a clock that is 20 % lower explains 12 % and not 25 %."""

    def found(power):
        def following(name, image, at, clock):
            rng = random.Random(f"{name}{at}")
            steady = changed(start(name, image, at), sm_clock=lambda s: clock * rng.uniform(0.95, 1.05))
            return changed(steady, median=lambda s: s.median * (1980e6 / s.sm_clock) ** power)

        old = [following(name, "old", HOUR * n, 1980e6) for n in range(4) for name in "ab"]
        return judge([*old, *(following(n, "new", NEW, 1584e6) for n in "ab")]).causes.clock.shift

    assert found(1.0) == pytest.approx(0.25, abs=0.01)
    assert found(0.5) == pytest.approx(0.118, abs=0.01)


# Without a look ------------------------------------------------------------------------------------------------


LEVELS = """
~  | no_baseline | [~, 0.020]
4  | settling    | [~, ~]
5  | regressed   | [0.020, 0.030]
60 | regressed   | [0.020, 0.030]
"""


@cases(typed(LEVELS))
def test_the_level_before_is_the_old_images_or_the_only_ones(runs, state, levels):
    new = [] if runs is None else [start("a", "new", NEW, 0.030, runs)]
    found = judge([*history("a", runs=60)[:-1], *new])
    assert found.state == state
    assert found.controls == {"cpu_spin": pytest.approx(0.001, rel=0.01)}
    assert (found.baseline, found.current) == tuple(x and pytest.approx(x, rel=0.01) for x in levels)
    assert state != "settling" or (found.looks.next, found.runs) == (5, 4)
    assert judge([]).state == "no_baseline"


# Starts of the old image | starts of the new image | fact | reason. Without `load`, a start loads in 2 s.
FACTS = """
load=2 | load=9                               |      | an image's first start reads its files from the disk
load=2 | load=9 load=9                        | slow |
load=2 | load=9,runs=1 load=9,runs=1          | slow | needs no look
load=2 | load=9 load=2                        |      |
load=9 | load=9 load=9                        |      |
load=2 | load=9,waited=.016 load=9,waited=.016 |     | explained by CPU wait
load=2 | load=9,waited=.010 load=9,waited=.010 | slow |
torch=cuda:0                   | torch=cpu,runs=1              | fallback |
torch=cpu+cuda:0               | torch=cpu                     | fallback |
onnx=cuda:0                    | onnx=cpu                      | fallback |
torch=cuda:0                   | torch=cuda:0                  |          |
torch=cuda:0 torch=cuda:0,of=b | torch=cpu torch=cuda:0,of=b   | fallback | one replica of two
torch=cuda:0                   | torch=cuda:0 torch=cpu,runs=1 | fallback | one replica returns without its GPU
torch=cuda:0                   | torch=cpu,onnx=cuda:0         |          | another canary was moved on purpose
"""


@cases(FACTS)
def test_starts_and_devices_are_judged_without_a_look(old, new, expected, why):
    starts = []
    for image, at, text in (("old", 0.0, old), ("new", HOUR, new)):
        for number, words in enumerate(text.split()):
            given = dict(word.split("=") for word in words.split(","))
            devices = {
                f"{name}_device": given[name].replace("+", ", ")
                for name in given
                if name in ("torch", "onnx")
            }
            cold = {"c": {"load": float(given.get("load", 2))}}
            waited = float(given["waited"]) if "waited" in given else None
            starts.append(
                start(
                    given.get("of", "a"), image, at + 600.0 * number, runs=int(given.get("runs", 60)), waited=waited,
                    cold_start=cold, environment=devices,
                )
            )  # fmt: skip
    causes = judge(starts).causes
    assert causes.cold_start == ({"load": (2.0, 9.0)} if expected == "slow" else {}), why
    assert causes.cpu_fallback == (expected == "fallback"), why


@cases([((), (9.0, 10.0)), ((1.0, 2.0), (9.0, 10.0)), ((1.0,), ())])
def test_servers_that_the_kernel_ended_for_memory(old, new):
    first, second, third, fourth = history(before=1)
    # The first start of the new image was killed. The next start reports the same kill again.
    again = start("a", "new", 2 * HOUR, runs=1).reporting(memory_kills=new[:1])
    starts = [first.reporting(memory_kills=old), second, third.reporting(memory_kills=new), fourth, again]
    assert judge(starts).causes.memory_kills == (len(old), len(new))


def test_merged_runs_keep_what_the_container_took():
    merged = merge(start(runs=9, **dict.fromkeys(WAITING, lambda i: 0.1 * (i % 4))).samples)
    assert [getattr(merged, name) for name in WAITING] == [0.1] * 4
    assert merge(start(runs=3, inside=None).samples).inside is None
    known = start(runs=20, waited=0.0, crowded=0.0, inside=0.0, received=3.0).samples
    assert crowding(known, known[:4], 5) is None
    assert crowding(known, known, 5) == (0.0, 0.0, (0.0, 0.0))


# Compared starts -------------------------------------------------------------------------------------------------


def stopped(runs=60, every=10.0, last_at=None):
    """Return a stopped rollout of a slower image: one of two replicas had this image, for ``runs`` runs."""
    bad = start("b", "bad", 2 * HOUR, 0.026, runs, every=every)
    on = start("a", "good", HOUR, runs=int(2 * HOUR / every), every=every)
    failed = [replace(bad.samples[-1], started_at=last_at, outcome="raised")] if last_at else []
    return [
        start("a", every=every),
        start("b", at=1, every=every),
        on,
        Start.of(bad.generation, [*bad.samples, *failed]),
    ]


# Fields of the stopped rollout | which of its starts | hour of the upgrade | image that was rolled back
STOPPED = """
{}                      | [0, 4] | 1 | bad
{runs: 360}             | [0, 4] | 2 | ""   # still running
{last_at: 10795.0}      | [0, 4] | 2 | ""   # its later runs fail
{runs: 2, every: 900.0} | [0, 4] | 2 | ""   # half an hour has only two of its runs
{runs: 2, every: 300.0} | [0, 4] | 1 | ""
{}                      | [2, 4] | ~ | bad
{}                      | [2, 3] | ~ | ""
"""


@cases(typed(STOPPED))
def test_a_rollout_that_was_stopped_is_no_upgrade_any_more(fields, kept, hour, rolled_back):
    starts = stopped(**fields)[slice(*kept)]
    found = judge(starts)
    assert (found.upgraded_at, found.rolled_back_image) == (hour and HOUR * hour, rolled_back)
    # Starts of the rolled-back image are not in the next baseline.
    assert hour or (found.candidate_image, found.runs) == ("good", len(starts[0].samples))


def test_replicas_under_new_names_share_one_baseline():
    """A level that four replicas share does not average out. This holds for added and for replaced replicas."""

    def upgraded_to(names, olds):
        old = [start(name, at=i, noise=0.02) for i, name in enumerate(olds)]
        new = [
            start("n", "new", HOUR + i, noise=0.02).reporting(container=name) for i, name in enumerate(names)
        ]
        return judge([*old, *new])

    same, anew = upgraded_to("abcd", "abcd"), upgraded_to("wxyz", "abcd")
    widths = [found.high - found.low for found in (same, anew) if found.high and found.low]
    assert widths[1] > 0.9 * widths[0]
    assert anew.starts == 8
    added, replaced = upgraded_to("abc", "a"), upgraded_to("xyz", "a")
    assert (added.shift, added.low, added.high) == (replaced.shift, replaced.low, replaced.high)


def test_a_rollback_is_compared_with_the_images_own_history_too():
    starts = [start("a", "bad" if n == 2 else "old", HOUR * n, 0.026 if n == 2 else 0.02) for n in range(4)]
    found = judge(starts)
    assert found.rollback
    assert found.state == "improved"
    assert found.own.shift == pytest.approx(0, abs=0.01)


# Trials ------------------------------------------------------------------------------------------------------------


def called(starts):
    found = trials(starts)
    return len(found), sum(trial.called for trial in found.values())


def test_a_wild_restart_does_not_excuse_itself():
    calm = [start(at=HOUR * i) for i in range(5)]
    wild = start(at=5 * HOUR, seconds=0.024)
    assert judge([*calm, wild.reporting(image_id="new")]).state == "regressed"
    assert called([*calm, wild]) == (5, 1), "the trial uses only what was known at the time"
    # The next restart is judged with the variance that this restart has shown.
    assert called([*calm, wild, start(at=6 * HOUR)]) == (6, 1)
    always = [start(at=HOUR * i, seconds=0.021 if i % 2 else 0.019) for i in range(8)]
    assert judge(calm).restart.sd < 0.01 < 0.03 < judge(always).restart.sd
    assert judge([*always, start("a", "new", 8 * HOUR, 0.0215)]).state == "inconclusive"


def test_a_trial_is_made_once_for_each_look():
    starts = [start(at=HOUR * i, runs=30 if i == 4 else 192) for i in range(5)]
    first, newest = trials(starts), ("a", f"a-{4 * HOUR}")
    assert [trial.looks for trial in first.values()] == [9, 9, 9, 5]
    assert [*first][-1] == newest
    known = {key: trial._replace(called=True) for key, trial in first.items()}
    assert trials(starts, known) == known, "a trial must not be repeated"
    grown = [*starts[:4], start(at=HOUR * 4, runs=50)]
    assert trials(grown, known) == known | {newest: (7, False)}
    assert ("a", f"a-{HOUR}") not in trials(starts[2:], known), "a start that the store dropped has no trial"
    assert trials(grown, known, 0) == known, "a postponed trial is not forgotten"
    by_twos = trials(starts, {}, 2)
    assert len(by_twos) == 2
    assert trials(starts, by_twos, 2) == first
