"""How much starts of one image differ: learned from a service's own restarts and, before any, from other services."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import Prior, learned, restarts_before, restarts_of, taught_by
from infercanary.judge.shift import Restarts
from infercanary.judge.verdict import Judge

judge = Judge().verdict

T = 1_790_000_000.0


def start(
    name: str, at: float, runs: int = 60, image: str = "sha256:1", level: float = 1.0, host: str = ""
) -> Start:
    """One that runs every 10 s from ``at`` on."""
    rng = np.random.default_rng([ord(letter) for letter in f"{name}{at}"])
    generation = Generation(
        service="search", container=name, boot_id=f"{name} {at}", started_at=T + at, image_id=image, host=host,
        environment={"cpu_model": f"CPU of {host}"} if host else {},
    )  # fmt: skip
    noise = 0.02 * level * np.exp(rng.normal(0, 0.002, runs))
    samples = [Sample(n, "c", T + at + 10 * n, "ok", float(seconds), 5) for n, seconds in enumerate(noise)]
    return Start.of(generation, samples)


@pytest.mark.parametrize(
    ("starts", "restarts"),
    [
        # A deployment's pods are deleted, and others take their place, twice.
        ([start(f"pod-{n}{letter}", n * 600) for n in range(3) for letter in "ab"], 4),
        # They are restarted one by one, each before the old one goes.
        ([start("pod-a", 0), start("pod-b", 560), start("pod-c", 1100)], 2),
        # More replicas are wanted; fewer; more again: that took the place of the one that was not wanted.
        ([start("pod-a", 0, 200), start("pod-b", 600, 140)], 0),
        ([start("pod-a", 0, 200), start("pod-b", 600, 40), start("pod-c", 1200, 80)], 1),
        # One place is taken once.
        ([start("pod-a", 0, 20), start("pod-b", 600), start("pod-c", 600)], 1),
        # Another image, and other hardware, are no restart.
        ([start("pod-a", 0), start("pod-b", 700, image="sha256:2")], 0),
        ([start("pod-a", 0, host="x"), start("pod-b", 700, host="y")], 0),
        # A container that keeps its name is not gone while it is restarted.
        ([start("a", 0), start("a", 700), start("b", 700), start("b", 1400)], 2),
        ([start("a", 0), start("b", 660), start("a", 1300)], 1),
        # Too few runs say nothing.
        ([start("a", 0), start("a", 700, 7)], 0),
    ],
)  # fmt: skip
def test_a_pod_takes_the_place_of_one_that_ended(starts: Sequence[Start], restarts: int) -> None:
    known = restarts_of(sorted(starts, key=lambda one: one.generation.started_at))
    assert known.df - LIVE.pool.restart_df == restarts


def test_how_much_starts_differ_is_learned_with_the_prior_and_without() -> None:
    levels = [0.0, 0.05, -0.05, 0.02, -0.03]
    apart = [start("a", n * 700, level=math.exp(level)) for n, level in enumerate(levels)]
    alike = [start("a", n * 700) for n in range(5)]
    assert restarts_of(alike).sd < 0.8 * LIVE.pool.restart_sd < LIVE.pool.restart_sd < restarts_of(apart).sd
    taught = taught_by(apart, LIVE.pool)
    assert taught is not None and taught.df == pytest.approx(4)
    assert taught.sd == pytest.approx(np.std(levels, ddof=1), rel=0.05)
    assert taught_by(alike[:1], LIVE.pool) is None
    wide = LIVE.but(**Prior(number=1, sd=0.2).changes).pool
    assert restarts_of(apart, wide).sd > 2 * restarts_of(apart).sd
    again = taught_by(apart, wide)
    assert again is not None and again.sd == pytest.approx(taught.sd)


def test_a_drift_is_no_restart() -> None:
    """Starts whose first runs are alike and whose last ones are not, and the other way round."""
    apart = [[*start("a", n, 260, level=1 + 0.05 * n).samples] for n in range(4)]
    alike = [start("a", n * 6000, 260) for n in range(4)]
    drifted = [Start(s.generation, [*s.samples, *more]) for s, more in zip(alike, apart, strict=True)]
    settled = [Start(s.generation, [*more, *s.samples]) for s, more in zip(alike, apart, strict=True)]
    before = restarts_before(drifted[-1], drifted, LIVE.pool)
    assert before.df == LIVE.pool.restart_df + 2, "the last one does not count"
    assert before.sd < LIVE.pool.restart_sd < restarts_of(drifted).sd
    assert (
        restarts_of(settled).sd < LIVE.pool.restart_sd < restarts_before(settled[-1], settled, LIVE.pool).sd
    )


def services(seed: int, sds: Sequence[float]) -> list[Restarts]:
    rng = np.random.default_rng(seed)
    df = rng.integers(2, 12, len(sds))
    return [
        Restarts(float(sd * math.sqrt(rng.chisquare(d) / d)), float(d)) for sd, d in zip(sds, df, strict=True)
    ]


def prior_of(several: Sequence[Restarts]) -> Prior:
    prior = learned(several)
    assert prior is not None
    return prior


@pytest.mark.parametrize("sd", [0.004, 0.01, 0.03])
def test_a_prior_is_near_what_services_do_in_whatever_order(sd: float) -> None:
    each = services(1, [sd] * 40)
    prior = prior_of(each)
    assert prior.sd == pytest.approx(sd, rel=0.3)
    assert prior_of(random.Random(1).sample(each, len(each))) == prior


def test_a_prior_is_that_which_services_are_drawn_from() -> None:
    df = LIVE.pool.restart_df
    drawn = 0.01 * np.sqrt(df / np.random.default_rng(2).chisquare(df, 4000))
    assert prior_of(services(3, drawn.tolist())).sd == pytest.approx(0.01, rel=0.07)
    assert prior_of([Restarts(0.0, 3.0)] * 20).sd > 0.001, "services that never differ leave some room"


@pytest.mark.parametrize("several", [[], services(3, [0.01] * 7)])
def test_few_services_teach_nothing(several: Sequence[Restarts]) -> None:
    assert learned(several) is None
    assert learned(services(3, [0.01] * 8)) is not None


@pytest.mark.parametrize(
    ("lie", "honest", "liars", "most"),
    [
        (Restarts(0.0, 1000.0), 12, 1, 0.2),
        (Restarts(2.0, 1.0), 12, 1, 0.2),
        (Restarts(5.0, 500.0), 12, 1, 0.2),
        (Restarts(0.55, 5.0), 60, 6, 0.25),
        (Restarts(0.0, 5.0), 60, 6, 0.25),
    ],
)
def test_one_service_in_ten_that_lies_changes_little(
    lie: Restarts, honest: int, liars: int, most: float
) -> None:
    for seed in range(20):
        spread = 0.0085 * np.sqrt(3 / np.random.default_rng(seed).chisquare(3, honest))
        each = services(seed, spread.tolist() if honest > 12 else [0.01] * honest)
        assert abs(math.log(prior_of([*each, *[lie] * liars]).sd / prior_of(each).sd)) < most


def test_a_verdict_names_its_prior_and_depends_on_it() -> None:
    upgraded = [start("a", 0), start("a", 3600, image="sha256:2", level=1.12)]
    assumed = judge(upgraded, [], "c")
    assert assumed.state == "unconfirmed" and assumed.restart.df == LIVE.pool.restart_df
    narrow = Judge(LIVE.but(**Prior(number=7, sd=0.003).changes)).verdict(upgraded, [], "c")
    assert narrow.state == "regressed" and narrow.restart == (0.003, LIVE.pool.restart_df)
    assert LIVE.but(**Prior().changes) == LIVE
