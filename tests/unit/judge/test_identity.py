"""An upgrade is a new image or a new model; other settings of a canary are neither, and end what can be compared."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence

import msgspec
import pytest

from infercanary.exporter.judging.findings import NOTHING
from infercanary.judge.causes import explain
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, Pair, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import Result
from infercanary.judge.sentence import listed, sentence
from infercanary.judge.shift import Shift
from infercanary.judge.trials import trials
from infercanary.judge.upgrade import image_name, last_upgrade
from infercanary.judge.verdict import Judge

judge = Judge().verdict

HOUR = 3600.0


def start(
    at: float, model: str = "", settings: str = "", *, image: str = "sha256:one", container: str = "a",
    seconds: float = 0.020, runs: int = 120, environment: dict[str, str] | None = None,
    output: tuple[float, ...] = (1.5, 2.5),
) -> Start:  # fmt: skip
    """Each with noise of its own; of an image of no name the environment is what is known."""
    rng = random.Random(f"{container} {at} {seconds}")
    known = {"torch": "2.7.0", **(environment or {})}
    known |= {"model:c": model} if model else {}
    known |= (
        {"settings:c": settings, "settings:other": settings[::-1], "model:other": model} if settings else {}
    )
    generation = Generation(
        service="s", container=container, boot_id=f"{container}-{at}", started_at=at, image_id=image, environment=known,
        outputs={"c": output} if output else {},
    )  # fmt: skip
    samples = [
        Sample(
            sequence=i, canary="c", started_at=at + 30 + 10 * i, outcome="ok",
            median=seconds * rng.lognormvariate(0, 0.005), controls={"cpu_spin": 0.001 * rng.lognormvariate(0, 0.005)},
        )
        for i in range(runs)
    ]  # fmt: skip
    return Start.of(generation, samples)


def judged(*starts: Start) -> tuple[Result, str]:
    found = judge(starts, [], "c")
    return found, sentence(found)


def test_new_weights_in_the_same_image_are_an_upgrade_with_its_own_words() -> None:
    starts = [start(i * HOUR, "file:1") for i in range(3)] + [start(3 * HOUR, "file:2", seconds=0.026)]
    found, words = judged(*starts)
    assert (found.state, found.changed, found.causes.cause) == ("regressed", "model", "image")
    assert found.baseline_image == found.candidate_image
    assert words.startswith("regressed +") and " since the new model in the same image: model; " in words
    assert "model file:1 → file:2" in words and "new image" not in words
    settling, said = judged(*starts[:3], start(3 * HOUR, "file:2", runs=3))
    assert settling.state == "settling" and said.startswith("settling: the new model has too few runs yet")


@pytest.mark.parametrize(
    ("model", "output", "is_new"),
    [
        ("weights-sha256:2.layout", (1.500_001, 2.5), False),
        ("weights-sha256:2.layout", (1.6, 2.5), True),
        ("weights-sha256:2.layout", (), True),
        ("weights-sha256:2.other", (1.5, 2.5), True),
        ("file-sha256:2", (1.5, 2.5), True),
    ],
)
def test_weights_that_differ_in_their_last_bits_are_the_same(
    model: str, output: tuple[float, ...], is_new: bool
) -> None:
    """As a factory draws them from one seed, with other instructions of the CPU."""
    old = model.replace("2", "1", 1) if model.startswith("file") else "weights-sha256:1.layout"
    starts = [start(i * HOUR, old) for i in range(3)] + [start(3 * HOUR, model, output=output)]
    found, _ = judged(*starts)
    assert (found.state != "no_baseline") == is_new
    new = [*starts[:3], start(3 * HOUR, model, image="sha256:two", seconds=0.026, output=output)]
    found, words = judged(*new)
    assert (found.changed, "another model" in words) == (("both", True) if is_new else ("image", False))


@pytest.mark.parametrize("output", [(3.0, 7.0), (0.0, 0.0), (1.0,)])
def test_classes_and_zeros_say_nothing_of_the_weights(output: tuple[float, ...]) -> None:
    """New weights may give the same ones."""
    starts = [start(i * HOUR, "weights-sha256:1.layout", output=output) for i in range(3)]
    starts.append(start(3 * HOUR, "weights-sha256:2.layout", seconds=0.026, output=output))
    assert judged(*starts)[0].changed == "model"


def test_weights_that_are_new_at_each_start_are_said_to_be() -> None:
    """Each restart looks like an upgrade then, and nothing is learned of restarts: whoever reads it must know why."""
    said = "each of 4 starts has other weights, as if drawn without a seed"
    starts = [start(i * HOUR, f"weights-sha256:{i}.layout", output=(i + 0.5,)) for i in range(4)]
    assert said in judged(*starts)[1]
    assert (
        said in judged(*starts[:3], start(3 * HOUR, "weights-sha256:3.layout", seconds=0.03, image="two"))[1]
    )
    for known in (starts[:3], [*starts, start(4 * HOUR, "weights-sha256:2.layout")]):
        assert "seed" not in judged(*known)[1]
    files = [start(i * HOUR, f"file-sha256:{i}") for i in range(4)]
    assert "seed" not in judged(*files)[1], "somebody exchanged these"


def test_weights_that_are_new_at_each_start_cost_little() -> None:
    starts = [
        start(HOUR * i, f"weights-sha256:{i}.layout", output=(i + 0.5,), container=f"r{i % 9}", runs=1)
        for i in range(900)
    ]
    begin = time.process_time()
    assert identified(starts) == starts
    assert time.process_time() - begin < 0.5, "not as the square of their number"


def test_a_new_image_with_another_model_names_both() -> None:
    starts = [start(i * HOUR, "file:1") for i in range(3)]
    found, words = judged(*starts, start(3 * HOUR, "file:2", image="sha256:two", seconds=0.026))
    assert (found.state, found.changed) == ("regressed", "both")
    assert " since the new image with another model: image and model; model file:1 → file:2" in words
    same, words = judged(*starts, start(3 * HOUR, "file:1", image="sha256:two", seconds=0.026))
    assert same.changed == "image" and "model" not in words


def test_the_old_weights_again_are_a_rollback() -> None:
    models = ["file:1", "file:1", "file:2", "file:1"]
    found, words = judged(*(start(i * HOUR, model) for i, model in enumerate(models)))
    assert found.changed == "model" and found.rollback and "an image that ran before" in words


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_what_a_start_does_not_say_is_no_change(place: int) -> None:
    """Those of an older probe, of a canary whose server gave no list: no upgrade, and no other settings."""
    starts = [
        start(
            i * HOUR,
            "" if i == place else "file:1",
            "" if i == place else "s1",
            seconds=0.020 + 0.004 * (i == 3),
        )
        for i in range(4)
    ]
    found, words = judged(*starts)
    assert found.state == "no_baseline" and found.upgraded_at is None and "settings" not in words
    assert last_upgrade(starts) is None
    whole = [start(i * HOUR, "file:1", "s1", seconds=0.020 + 0.004 * (i == 3)) for i in range(4)]
    assert restarts_of(identified(starts)) == restarts_of(whole), "they are restarts of one image"
    assert [s.work for s in identified(starts)] == [s.work for s in whole]


def test_what_a_start_was_taken_for_stays_when_others_follow() -> None:
    starts = [start(0.0, "file:1", "s1"), start(HOUR), start(2 * HOUR, "file:2", "s1")]
    assert [s.model for s in identified(starts)] == ["file:1", "file:1", "file:2"]
    upgrade = last_upgrade(starts)
    assert upgrade is not None and upgrade.at == 2 * HOUR


def test_the_first_probe_with_digests_comes_with_an_image_as_any_other() -> None:
    starts = [
        *(start(i * HOUR) for i in range(3)),
        start(3 * HOUR, "file:1", "s1", image="sha256:two", seconds=0.026),
    ]
    found, words = judged(*starts)
    assert (found.state, found.changed) == ("regressed", "image")
    assert "model" not in words and "settings" not in words


def test_a_start_without_runs_that_count_is_no_other_model() -> None:
    failed = start(3 * HOUR, "file:1", runs=0)
    unsettled = Start.of(failed.generation, [Sample(0, "c", 3 * HOUR + 30, "raised", None)])
    starts = [*(start(i * HOUR, "file:1") for i in range(3)), unsettled]
    assert unsettled.samples == [] and last_upgrade(starts) is None


def test_without_dockers_word_the_environment_is_the_image_and_what_is_given_is_not() -> None:
    before = [start(i * HOUR, image="") for i in range(3)]
    after = start(3 * HOUR, "file:1", "s1", image="")
    assert {s.generation.image_key for s in (*before, after)} == {before[0].generation.image_key}
    assert last_upgrade([*before, after]) is None
    upgrade = last_upgrade([*before, after, start(4 * HOUR, "file:2", "s1", image="")])
    assert upgrade is not None and upgrade.changed == "model"


def test_two_images_that_docker_does_not_know_have_two_names() -> None:
    names = {
        image_name(start(0.0, image="", environment={"torch": version}).generation) for version in ("1", "2")
    }
    assert len(names) == 2 and all(re.fullmatch(r"environment [0-9a-f]{12}", name) for name in names)


def test_other_settings_end_what_can_be_compared_and_no_image_is_blamed() -> None:
    before = [start(i * HOUR, "file:1", "s1") for i in range(3)]
    found, words = judged(*before, start(3 * HOUR, "file:1", "s2", seconds=0.060))
    assert found.state == "no_baseline" and found.settings_changed_at == 3 * HOUR
    assert words == (
        "no baseline yet: the canary's settings changed at 1970-01-01 03:00 UTC, and runs before are not comparable"
    )
    for more in ({"image": "sha256:two"}, {"model": "file:2"}):
        given = {"model": "file:1", **more}
        _, words = judged(*before, start(3 * HOUR, settings="s2", seconds=0.060, **given))  # type: ignore[arg-type]
        assert words.endswith("; image or model changed with them, and what that did is not known")


def test_after_other_settings_the_next_upgrade_is_judged_by_them_alone() -> None:
    starts = [start(i * HOUR, "file:1", "s1", seconds=0.010) for i in range(2)]
    starts += [start(i * HOUR, "file:1", "s2") for i in range(2, 5)]
    found, words = judged(*starts, start(5 * HOUR, "file:1", "s2", image="sha256:two"))
    assert found.state in ("equivalent", "inconclusive") and found.upgraded_at == 5 * HOUR
    assert found.baseline_seconds == pytest.approx(0.020, rel=0.02) and "settings" not in words
    back, _ = judged(*starts, start(5 * HOUR, "file:1", "s1", image="sha256:two", seconds=0.010))
    assert back.upgraded_at == 5 * HOUR, "settings that were put back have their own runs again"
    assert back.baseline_seconds == pytest.approx(0.010, rel=0.02)


def test_settings_that_were_put_back_are_no_reason_for_no_baseline() -> None:
    starts = [start(i * HOUR, "file:1", "s2" if i == 2 else "s1") for i in range(4)]
    found, words = judged(*starts)
    assert found.state == "no_baseline" and "settings" not in words
    assert NOTHING.judged("c", starts, [], LIVE).drifts["a", "c"].blocks == 30, "of three starts"


def test_runs_of_an_older_probe_do_not_come_back_when_settings_change() -> None:
    """What it measured by is not known, but it was what came after it, not what is there now."""
    starts = [start(0.0)]
    starts += [
        start(at * HOUR, "file:1", settings, image="sha256:two") for at, settings in ((1, "s1"), (2, "s2"))
    ]
    found, _ = judged(*starts)
    assert found.state == "no_baseline" and found.settings_changed_at == 2 * HOUR


def test_replicas_may_have_settings_of_their_own() -> None:
    starts = [
        start(i * HOUR + 60 * j, "file:1", settings, container=name, seconds=0.010 * (j + 1))
        for i in range(3)
        for j, (name, settings) in enumerate((("a", "s1"), ("b", "s2")))
    ]
    quiet, words = judged(*starts)
    assert quiet.state == "no_baseline" and quiet.settings_changed_at is None and "settings" not in words
    new = [
        start(3 * HOUR, "file:1", "s1", image="sha256:two", seconds=0.013),
        start(3 * HOUR + 60, "file:1", "s2", image="sha256:two", container="b", seconds=0.026),
    ]
    found, _ = judged(*starts, *new)
    assert found.state == "regressed" and found.starts == 8


def test_containers_with_new_names_have_the_baseline_of_those_with_their_settings() -> None:
    gone = [start(i * HOUR, "file:1", "s1", container=f"old-{i}") for i in range(3)]
    same, _ = judged(
        *gone, start(4 * HOUR, "file:1", "s1", image="sha256:two", container="new", seconds=0.026)
    )
    assert same.state in ("regressed", "unconfirmed")
    other, _ = judged(
        *gone, start(4 * HOUR, "file:1", "s2", image="sha256:two", container="new", seconds=0.026)
    )
    assert (other.state, other.settings_changed_at) == ("no_baseline", 4 * HOUR)


def test_a_container_that_is_gone_had_settings_of_its_own() -> None:
    """Nobody edited what the others have."""
    starts = [
        start(0.0, "file:1", "s1"), start(HOUR, "file:1", "s3", container="gone", runs=40),
        start(5 * HOUR, "file:1", "s1"),
    ]  # fmt: skip
    found, words = judged(*starts)
    assert found.state == "no_baseline" and found.settings_changed_at is None and "settings" not in words


def test_neither_a_restart_nor_a_drift_nor_a_trial_lies_across_other_weights_or_settings() -> None:
    starts: Sequence[Start] = [
        start(0.0, "file:1", "s1", runs=200),
        start(HOUR, "file:1", "s2", seconds=0.040, runs=200),
        start(2 * HOUR, "file:2", "s2", seconds=0.060, runs=200),
    ]
    assert restarts_of(starts).df == LIVE.pool.restart_df, "nothing was learned of how much starts differ"
    assert trials(starts) == {}
    found = NOTHING.judged("c", starts, [], LIVE)
    assert found.drifts["a", "c"].blocks == 16
    same = [start(i * HOUR, "file:1", "s1", runs=200) for i in range(3)]
    assert NOTHING.judged("c", same, [], LIVE).drifts["a", "c"].blocks == 48, (
        "starts of the same work are one series"
    )


def given(
    at: float, quota: str, *, image: str = "sha256:one", seconds: float = 0.020, runs: int = 120
) -> Start:
    limits = {"cpu_quota": quota, "env_OMP_NUM_THREADS": quota}
    return start(at, "file:1", "s1", image=image, seconds=seconds, runs=runs, environment=limits)


def test_a_quota_that_was_halved_is_no_upgrade_and_a_drift_names_it() -> None:
    starts = [given(0.0, "4", runs=720), given(30 * HOUR, "2", seconds=0.040, runs=300)]
    found = NOTHING.judged("c", starts, [], LIVE)
    assert found.judgements["c"].state == "no_baseline" and found.judgements["c"].upgraded_at is None
    drift = found.drifts["a", "c"]
    assert drift.shift == pytest.approx(1.0, abs=0.05)
    assert listed(drift.changes) == "CPU quota 4 → 2, env_OMP_NUM_THREADS 4 → 2"
    starts = [
        *(given(i * HOUR, "4") for i in range(3)),
        given(3 * HOUR, "2", image="sha256:two", seconds=0.040),
    ]
    _, words = judged(*starts)
    assert "image; CPU quota 4 → 2, env_OMP_NUM_THREADS 4 → 2" in words, (
        "where an upgrade changed it too, it is named"
    )


def test_what_another_canary_of_the_probe_is_set_to_is_not_named() -> None:
    """A probe has one environment: with another canary's mode the component has both canaries' values."""
    both = {"torch_mode": "compile, eager", "torch_autocast": "bfloat16", "matmul_size": "512"}
    old = {"torch_mode": "eager", "matmul_size": "256"}
    starts = [start(i * HOUR, "file:1", "s1", environment=old) for i in range(3)]
    new = start(
        3 * HOUR, "file:1", "s1", image="sha256:two", seconds=0.030, environment={**both, "numpy": "2"}
    )
    _, words = judged(*starts, new)
    assert ": image; numpy none → 2; " in words
    kept = explain(
        Shift(0.4, 0.01, 9.0), [Pair(starts, [start(4 * HOUR, "file:1", "s2", environment=both)])], "c"
    )
    assert listed(kept.changes).startswith(
        "canary's settings s1 → s2, mode eager → compile, eager, autocast none → "
    )


def test_without_dockers_word_another_canarys_settings_are_no_upgrade() -> None:
    starts = [
        start(i * HOUR, "file:1", "s1", image="", environment={"torch_mode": "eager"}) for i in range(3)
    ]
    both = {"torch_mode": "compile, eager"}
    assert last_upgrade([*starts, start(3 * HOUR, "file:1", "s1", image="", environment=both)]) is None


def test_limits_that_an_older_probe_did_not_report_are_no_change() -> None:
    old = [start(i * HOUR) for i in range(3)]
    now = {"cpu_quota": "2", "numpy": "2"}
    new = start(3 * HOUR, "file:1", "s1", image="sha256:two", seconds=0.030, environment=now)
    _, words = judged(*old, new)
    assert ": image; numpy none → 2; " in words


def test_a_probe_whose_clock_is_no_time_gets_its_words() -> None:
    judgement = Result(state="no_baseline", settings_changed_at=1e300)
    assert sentence(judgement).startswith("no baseline yet: the canary's settings changed, and")
    given = Result(state="no_baseline", settings_changed_at=float("nan"))
    assert sentence(given).startswith("no baseline yet: the canary's settings changed, and")


def test_a_stores_key_keeps_other_work_apart() -> None:
    plain = start(0.0).generation
    assert plain.work_key == plain.image_key, "as in the files of before"
    keys = {start(0.0, m, s).generation.work_key for m in ("file:1", "file:2") for s in ("s1", "s2")}
    assert len(keys) == 4
    limited = msgspec.structs.replace(plain, environment={**plain.environment, "torch": "2.8.0"})
    assert limited.work_key == plain.work_key


def test_what_a_start_does_not_report_is_that_of_the_nearest_that_knows() -> None:
    rng = random.Random(5)
    for _ in range(50):
        starts = [
            start(
                i * HOUR, rng.choice(("", "", "file:1", "file:2")), rng.choice(("", "x")), runs=0,
                image=rng.choice(("sha256:one", "sha256:two")), container=rng.choice("abc"),
            )
            for i in range(30)
        ]  # fmt: skip

        def nearest(place: int, known: Sequence[Start]) -> str:
            own = known[place].generation
            of_image = [i for i, s in enumerate(known) if s.model and s.generation.image_key == own.image_key]
            found = min(
                of_image,
                key=lambda i: (known[i].generation.container != own.container, i > place, abs(i - place)),
                default=None,
            )
            return "" if found is None else known[found].model

        filled = identified(starts)
        expected = [s.model or nearest(place, starts) for place, s in enumerate(starts)]
        assert [s.model for s in filled] == expected


def test_thousands_of_starts_that_report_nothing_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    image_key = Generation.image_key

    def counted(self: Generation) -> str:
        nonlocal asked
        asked += 1
        return image_key.__get__(self)

    starts = [start(i, "file:1" if i % 2 else "", "x" if i % 2 else "", runs=0) for i in range(1000)]
    monkeypatch.setattr(Generation, "image_key", property(counted))
    identified(starts)
    assert asked <= 20 * len(starts), "it was the square of their number: 13 s of the judge for 9,000"
