"""A new image or a new model is an upgrade. Other settings of a canary are no upgrade, and end the comparison."""

import msgspec
import pytest

from infercanary.exporter.judging.findings import judge_canary
from infercanary.exporter.rollout import is_named
from infercanary.judge.causes import Attribution
from infercanary.judge.identity import identified, image_name, redrawn
from infercanary.judge.model import Pair
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import Change, Doubts
from infercanary.judge.shift import Shift
from infercanary.judge.upgrade import live_starts, select
from infercanary.judge.verdict import Judge
from tests import factories
from tests.factories import HOUR, judge
from tests.scenarios import cases

trials = Judge().trials

FORMS = {"r": "registry", "d": "docker", "c": "config"}


def start(text, at=0.0, seconds=0.020, environment=None):
    """Return a start from ``container:image/model/settings/output*runs!``; later parts are optional; ``!`` ends
    the start.

    Image ``app:1@r7`` is app:1 with registry digest 7 (c: digest of the config; d: digest from Docker).
    ``~2`` is an unknown image with torch 2. Runs are 10 s apart, and each start has its own noise.
    """
    text, ended, _ = text.partition("!")
    text, _, count = text.partition("*")
    name, model, settings, output, *_ = f"{text}///".split("/")
    container, _, image = name.partition(":")
    reference, _, digest = image.replace("%", "/").partition("@")
    version = image[1:] if image[:1] == "~" else "1"
    known = {"torch": version, **(environment or {})}
    known |= {"model:c": model} if model else {}
    known |= {"settings:c": settings, "settings:other": settings[::-1]} if settings else {}
    runs, form = int(count or 120), FORMS.get(digest[:1], "")
    identity = "" if image[:1] == "~" else f"sha256:{digest[1:]}" if digest else image
    is_served = form in ("registry", "docker")
    made = factories.start(
        container, "" if is_served else identity, at, seconds, runs, image_digest=identity if is_served else "",
        image_form=form, environment=known, ended_at=at + 35 + 10 * runs if ended else 0.0,
        outputs={} if output == "-" else {"c": tuple(map(float, (output or "1.5,2.5").split(",")))},
    )  # fmt: skip
    return made.reporting(image=reference if digest else "")


def history(text, seconds=0.020):
    """Return groups of starts (``|``), an hour apart. The last group has the latency ``seconds``."""
    groups = [group.split() for group in text.split("|")]
    return [
        start(each, HOUR * hour + second, seconds if hour == len(groups) - 1 else 0.020)
        for hour, group in enumerate(groups)
        for second, each in enumerate(group)
    ]


# Starts => kind of change, then starts before and after, and earlier starts of the new image; or the hour of
# changed settings.
UPGRADES = """
# New weights, a new image, both.
a:one/m1 | a:one/m1 | a:one/m2 => model 01>2
a:one/m1 | a:two/m1 => image 0>1
a:one/m1 | a:two/m2 => both 0>1
a:one/m1 | a:one/m2 | a:one/m1 => model 1>2 0  # a rollback
# A missing value is not a change, and later starts do not change a start's identity.
a:one | a:one/m1/s1 | a:one/m1/s1 =>
a:one/m1/s1 | a:one | a:one/m1/s1 =>
a:one/m1/s1 | b:one =>
a:one/m1/s1 | a:one | a:one/m2/s1 => model 01>2
a:one/m1 | a:two | a:two/m2 => both 0>12
a:one | a:two/m1/s1 => image 0>1  # the first probe with digests
a:one/m1 | a:one/m1*0 =>
# Without an image, the environment identifies the start, but not the canary's own settings.
a:~1 | a:~2 => image 0>1
a:~1 | a:~1/m1/s1 | a:~1/m2/s1 => model 01>2
# Weights from a seed differ in their last bits on another CPU.
a:one/weights-1.l | a:one/weights-2.l//1.500001,2.5 | a:one/weights-2.l//1.500001,2.5 =>
a:one/weights-1.l | a:two/weights-2.l => image 0>1
a:one/weights-1.l | a:one/weights-2.l//1.6,2.5 => model 0>1
a:one/weights-1.l | a:one/weights-2.l//- => model 0>1
a:one/weights-1.l | a:one/weights-2.other => model 0>1
a:one/file-1 | a:one/file-2 => model 0>1
# New weights may also give classes and zeros as outputs.
a:one/weights-1.l//3,7 | a:one/weights-2.l//3,7 => model 0>1
a:one/weights-1.l//0,0 | a:one/weights-2.l//0,0 => model 0>1
# Other settings are not an upgrade, and earlier runs are not compared.
a:one/m/s1 | a:one/m/s2 => edited=1
a:one/m/s1 | a:two/m/s2 => edited=1
a:one/m/s1 | a:one/m/s2 | a:two/m/s2 => image 1>2 edited=1
a:one/m/s1 | a:one/m/s2 | a:two/m/s1 => image 0>2  # put back
a:one/m/s1 | a:one/m/s2 | a:one/m/s1 =>
a:one | a:two/m/s1 | a:two/m/s2 => edited=2  # an older probe's runs do not come back
a:one/m/s1 b:one/m/s2 | a:two/m/s1 b:two/m/s2 => image 01>23  # each replica has its own
b:one/m/s1*450 a:one/m/s1 | a:two/m/s2 => image 0>2
a:one/m/s1 | b:two/m/s1 => image 0>1  # pods
a:one/m/s1 | b:two/m/s2 => edited=1
a:one/m/s1 | b:one/m/s3*40 | | | | a:one/m/s1 =>  # b is gone, and had its own
# Replicas: upgraded one by one, under new names, and more of them.
a:one b:one c:one | a:two b:one c:two => image 0124>35
a:one b:one | c:two d:two => image 01>23
a:one b:one | c:two d:two | | | | e:one => image 23>4 01
a:one | b:two a:two | c:two => image 0>123
a:one b:one c:one | d:one | e:one =>
a:one b:one*480 | a:two b:one => image 013>2
# A stopped rollout; an image that never ran; a replica that tried another image.
a:one b:one | a:two*900 | b:bad*60 => image 01>2
a:one b:one | a:bad*7 b:bad*0 | a:two b:two => image 01>45
a:one b:one | a:bad*7 b:bad*0 | a:one b:one =>
a:one b:one c:one | a:two b:two | a:new b:new c:new => image 34>567
a:one b:one c:one | a:bad | a:two b:two => image 012>45
a:one*3 | a:two*1 => image 0>1  # nothing was before the first
a:one*500 | c:two d:one => image 02>1  # one more of the old image
# Pods that are known to have ended.
a:one | b:two! =>
a:one*700! | b:two*365! | c:one => image 1>2 0  # at once
a:one b:one*480 | a:one =>
a:one*800! | b:two*20! | | c:one =>  # compared with the one that ran last
a:one*900 | b:two*540 | c:three => image 1>2  # and with the newest that runs
a:one*365! | b:two*30! | b:one => image 1>2 0
a:one*900 | b:two*20! =>
a:one*365! | b:two*40! => image 0>1  # all are gone: the verdict stays
a:one b:one | a:two*330 b:two*300 | b:bad*0! => image 01>23  # a replica that is gone
"""
ROWS = [row for line in UPGRADES.splitlines() if (row := line.partition("#")[0].strip())]


@pytest.mark.parametrize("row", ROWS)
def test_the_last_upgrade(row):
    text, _, expected = row.partition("=>")
    words, _, edited = expected.partition("edited=")
    starts = history(text)
    found = select(starts)
    places = {start.boot: str(place) for place, start in enumerate(starts)}
    if found.upgrade is None:
        assert not words.strip()
    else:
        before, after, own = ("".join(places[start.boot] for start in side) for side in (found.upgrade[1:]))
        assert f"{found.upgrade.changed} {before}>{after} {own}".split() == words.split()
        assert {places[start.boot] for start in found.live} <= {*after}
        assert {start.boot for start in found.live} <= {start.boot for start in live_starts(starts)}
        stays = [start.generation.container for start in found.upgrade.stays]
        assert len(stays) == len({*stays})
        assert found.upgrade.at == starts[int(after[0])].generation.started_at
    assert [*found.live] == sorted(found.live, key=lambda start: start.generation.started_at)
    assert found.settings_changed_at == (HOUR * int(edited) if edited else None)
    assert [s.identity for s in identified(identified(starts))] == [s.identity for s in identified(starts)]


# Images of one start each | the first start with the same image
DIGESTS = """
app:1@r1 app:1@r2                             | 01   | the tag was moved
app:1@r1 app:2@r1 other/app:1@r1              | 000  | other names of the same content
app:1@r1 app:1@c9 app:1@r1                    | 000  | once pulled, once loaded
app:1@c9 app:1@r1                             | 00   |
app:1@r1 app:1@d2                             | 00   |
app:1@r1 app:1@d1                             | 00   |
app:1@r1 docker.io/library/app:1@c9           | 00   |
app@r1 app:latest@c9                          | 00   |
localhost/app:1@r1 app:1@c9 reg:5000/app:1@c9 | 011  |
app:1@r1 app:2@c9                             | 01   | compared by name
app:1@r1 app:1@c9 app:2@c8 app:2@r2           | 0022 |
app:1@r1 app:1@c9 app:1@r2 app:1@c8           | 0022 | the tag was moved in both forms
app:1@r1 app:1@c9 app:1@r2 app:1@c9           | 0020 | moved, and then back
app:1@c9 app:1@c9 app:1@r1 app:1@c8           | 0003 |
app:1@-1 app:1@-2                             | 01   | Docker knows both digests of an image
"""


@cases(DIGESTS)
def test_one_image_under_two_digests(each, ran, why):
    found = identified([start(f"p{n}:{image}", n) for n, image in enumerate(each.replace("/", "%").split())])
    keys = [one.identity for one in found]
    assert "".join(str(keys.index(key)) for key in keys) == ran, why


# Image of the start | image that somebody asks for | True if both are the same
ASKED = """
app:1                      | docker.io/library/app:1    | yes |
app:1                      | app:2                      | no  |
team/app                   | docker.io/team/app:latest  | yes |
ghcr.io/team/app:1@sha256:5 | ghcr.io/team/app:1        | yes |
ghcr.io/team/app@sha256:5  | ghcr.io/team/app           | no  | started by its digest alone
app:1                      | app:2@sha256:7             | yes | the digest decides
app:1                      | sha256:8                   | no  |
                           | app                        | no  |
localhost:5000/app:1       | localhost:5000/app         | no  |
"""


@cases(ASKED)
def test_an_image_that_somebody_names(image, asked, is_asked, why):
    one = msgspec.structs.replace(start("a:x").generation, image=image, image_id="sha256:7")
    assert is_named(one, asked) is (is_asked == "yes"), why


def test_images_have_names_that_differ():
    names = [image_name(start(f"a:{image}").generation) for image in ("~1", "~2", "app:1@r12345678901234")]
    assert names[0] != names[1]
    assert names[0].startswith("environment ")
    assert names[2] == "app:1 (123456789012)"


# Starts, an hour apart | state | exchanged parts | doubt
EXCHANGED = """
a:one/m1; a:one/m1; a:one/m2             | regressed   | model |
a:one/m1; a:one/m1; a:two/m2             | regressed   | both  |
a:one/m1; a:one/m1; a:two/m1             | regressed   | image |
a:one/m1; a:one/m1; a:one/m2*3           | settling    | model |
a:one/m/s1; a:one/m/s1; a:two/m/s2       | no_baseline | image |
a:one/m/s1; a:one/m/s2; a:one/m/s1       | no_baseline | image |
a:app:1@r1; a:app:1@r1; a:app:2@c9       | regressed   | image | by reference
a:~1; a:~1; a:app:2@c9                   | regressed   | image |
a:app:1@r1; a:app:1@c9; a:app:2@c8       | regressed   | image |
a:one/weights-1.l//1.5; a:one/weights-2.l//2.5; a:one/weights-3.l//3.5; a:two/weights-4.l//4.5 | | both | redrawn
a:one/file-1; a:one/file-2; a:one/file-3; a:two/file-4 | | both |
"""
DOUBTS = {"": Doubts(), "by reference": Doubts(is_by_reference=True), "redrawn": Doubts(redrawn=4)}


@cases(EXCHANGED)
def test_a_verdict_says_what_was_exchanged(text, state, changed, doubt):
    found = judge(history(text.replace(";", "|"), 0.030))
    assert state in ("", found.state)
    assert (found.changed, found.doubts) == (changed, DOUBTS[doubt])
    assert found.settings_changed_at == (2 * HOUR if "a:two/m/s2" in text else None)


def test_last_bits_are_one_model_however_many_trainings_and_kinds_of_cpu_there_were():
    starts = history(
        "|".join(f"a:one/weights-{n}x{cpu}.l//{n}.50000{cpu},2.5" for n in range(8) for cpu in range(5))
    )
    assert [start.model for start in identified(starts)] == [
        f"weights-{n}x0.l" for n in range(8) for _ in range(5)
    ]


def test_only_weights_that_are_new_at_each_start_lack_a_seed():
    starts = history("|".join(f"a:one/weights-{n}.l//{n}.5" for n in range(4)))
    assert redrawn(starts) == 4
    assert not redrawn(starts[:3])
    assert not redrawn([*starts, starts[0]])


def test_neither_a_restart_nor_a_drift_nor_a_trial_lies_across_other_weights_or_settings():
    texts = "a:one/1/s1*200", "a:one/1/s2*200", "a:one/2/s2*200"
    starts = [start(text, HOUR * n, 0.02 * (n + 1)) for n, text in enumerate(texts)]
    same = [start(texts[0], HOUR * n) for n in range(3)]
    assert restarts_of(starts).df == LIVE.pool.restart_df < restarts_of(same).df
    assert trials(starts) == {}
    assert len(trials(same)) == 2
    # a trial of few runs is not worth its cost
    assert trials([*same[:1], start("a:one/1/s1*23", HOUR)]) == {}
    twice = [
        start(f"a:{image}", HOUR * n, 0.02 + 0.02 * (n > 5))
        for n, image in enumerate(["one"] * 6 + ["two"] * 2)
    ]
    assert not trials(twice)[twice[-1].boot].called  # an earlier image is not a baseline
    shifts = [judge_canary("c", None, each, [], LIVE).drifts["a"].shift for each in (starts, same)]
    assert shifts == [None, 0.0]  # starts of the same work are one series, and 48 blocks are enough


def test_a_quota_that_was_halved_is_no_upgrade_and_a_drift_names_it():
    def limited(at, quota, image, runs, seconds):
        limits = {"cpu_quota": quota, "env_OMP_NUM_THREADS": quota}
        return start(f"a:{image}/1/s1*{runs}", at, seconds, limits)

    starts = [limited(0.0, "4", "one", 720, 0.02), limited(30 * HOUR, "2", "one", 300, 0.04)]
    found = judge_canary("c", None, starts, [], LIVE)
    assert found.result.state == "no_baseline"
    assert found.result.upgraded_at is None
    drift = found.drifts["a"]
    assert drift.shift == pytest.approx(1.0, abs=0.05)
    changes = Change("cpu_quota", "4", "2"), Change("env_OMP_NUM_THREADS", "4", "2")
    assert drift.changes == changes


def test_what_another_canary_is_set_to_and_what_an_older_probe_did_not_report_is_no_change():
    """A probe has one environment, whose components have values of all canaries, even another canary's mode."""
    both = {"torch_mode": "compile, eager", "torch_autocast": "bfloat16", "matmul_size": "512"}
    old = {"torch_mode": "eager", "matmul_size": "256"}
    before = [start("a:one/1/s1", i * HOUR, environment=old) for i in range(3)]
    for settings, more in (("s1", both), ("s2", {"cpu_quota": "2"})):
        old_starts = before if settings == "s1" else [start("a:one", i * HOUR) for i in range(3)]
        new = start(f"a:two/1/{settings}", 3 * HOUR, 0.03, {**more, "numpy": "2"})
        assert judge([*old_starts, new]).causes.changes == (Change("numpy", None, "2"),)
    edited = Pair(before, [start("a:one/1/s2", 4 * HOUR, environment=both)])
    changes = Attribution().explain(Shift(0.4, 0.01, 9.0), [edited], "c").changes
    assert changes[:2] == (Change("settings:c", "s1", "s2"), Change("torch_mode", "eager", "compile, eager"))
    unknown = [start("a:~1/1/s1", i * HOUR, environment=old if i < 3 else both) for i in range(4)]
    assert select(unknown).upgrade is None


def test_a_stores_key_keeps_other_work_apart():
    plain = start("a:one").generation
    assert plain.work_key == plain.image_key  # the key equals that in older files
    assert len({start(f"a:one/{m}/{s}").generation.work_key for m in "12" for s in ("s1", "s2")}) == 4
    assert start("a:one", environment={"torch": "2.8.0"}).generation.work_key == plain.work_key
