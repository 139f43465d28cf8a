"""Restart variance: learned from a service's own restarts, or before the first restart from other services."""

import math
import random

import numpy as np
import pytest

from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import Prior, learned, restarts_before, restarts_of, taught_by
from infercanary.judge.shift import Restarts
from tests import factories
from tests.factories import judge
from tests.scenarios import cases, typed


def start(text, level=1.0):
    """Parse ``name:at*runs/image@host``; later parts are optional."""
    text, _, host = text.partition("@")
    text, _, image = text.partition("/")
    text, _, runs = text.partition("*")
    name, _, at = text.partition(":")
    environment = {"cpu_model": f"CPU of {host}"} if host else {}
    return factories.start(
        name, image or "one", float(at or 0), 0.02 * level, int(runs or 60), noise=0.002, control=0, host=host,
        environment=environment,
    )  # fmt: skip


# Starts | number of restarts among them | reason
PODS = """
a1:0 b1:0 a2:600 b2:600 a3:1200 b3:1200 | 4 | a deployment's pods are deleted and replaced, twice
a:0 b:560 c:1100                        | 2 | pods are replaced one by one; each starts before the old one ends
a:0*200 b:600*140                       | 0 | a deployment is scaled up
a:0*200 b:600*40 c:1200*80              | 1 | up, down, and up again: the last pod replaces the removed one
a:0*20 b:600 c:600                      | 1 | each pod is replaced only once
a:0 b:700/two                           | 0 | a new image
a:0@x b:700@y                           | 0 | other hardware
a:0 a:700 b:700 b:1400                  | 2 | a container that keeps its name is not gone while it restarts
a:0 b:660 a:1300                        | 1 | the same
a:0 a:700*7                             | 0 | too few runs
"""


@cases(PODS)
def test_a_pod_takes_the_place_of_one_that_ended(text, restarts, why):
    assert restarts_of(map(start, text.split())).df - LIVE.pool.restart_df == int(restarts), why


def test_restart_variance_is_learned_with_the_prior_and_without():
    levels = [0.0, 0.05, -0.05, 0.02, -0.03]
    apart = [start(f"a:{n * 700}", math.exp(level)) for n, level in enumerate(levels)]
    alike = [start(f"a:{n * 700}") for n in range(5)]
    assert restarts_of(alike).sd < 0.8 * LIVE.pool.restart_sd < LIVE.pool.restart_sd < restarts_of(apart).sd
    wide = LIVE.but(**Prior(number=1, sd=0.2).changes).pool
    assert restarts_of(apart, wide).sd > 2 * restarts_of(apart).sd
    for pool in (LIVE.pool, wide):
        taught = taught_by(apart, pool)
        assert taught.df == pytest.approx(4)
        assert taught.sd == pytest.approx(np.std(levels, ddof=1), rel=0.05)
    assert taught_by(alike[:1], LIVE.pool) is None


def test_a_drift_is_no_restart():
    apart = [[*start(f"a:{n}*260", 1 + 0.05 * n).samples] for n in range(4)]
    alike = [start(f"a:{n * 6000}*260") for n in range(4)]
    drifted = [Start(s.generation, [*s.samples, *more]) for s, more in zip(alike, apart, strict=True)]
    settled = [Start(s.generation, [*more, *s.samples]) for s, more in zip(alike, apart, strict=True)]
    before, usual = restarts_before(drifted[-1], drifted, LIVE.pool), LIVE.pool.restart_sd
    assert before.df == LIVE.pool.restart_df + 2
    assert before.sd < usual < restarts_of(drifted).sd
    assert restarts_of(settled).sd < usual < restarts_before(settled[-1], settled, LIVE.pool).sd


def services(seed, sds):
    rng = np.random.default_rng(seed)
    df = rng.integers(2, 12, len(sds)).tolist()
    return [Restarts(sd * math.sqrt(rng.chisquare(d) / d), float(d)) for sd, d in zip(sds, df, strict=True)]


def prior_of(several):
    return learned(several)


@cases([0.004, 0.03])
def test_a_prior_is_near_what_services_do_in_whatever_order(sd):
    each = services(1, [sd] * 40)
    assert prior_of(each).sd == pytest.approx(sd, rel=0.3)
    assert prior_of(random.Random(1).sample(each, len(each))) == prior_of(each)
    assert prior_of([Restarts(0.0, 3.0)] * 20).sd > 0.001  # services that never differ leave some variance
    assert learned(each[:7]) is None and learned(each[:8]) is not None  # a prior needs enough services


# SD and degrees of freedom of a lie | honest services | liars | largest change of the logarithm
LIES = """
[0.0, 1000.0] | 12 | 1 | 0.2
[5.0, 500.0]  | 12 | 1 | 0.2
[0.55, 5.0]   | 60 | 6 | 0.25
[0.0, 5.0]    | 60 | 6 | 0.25
"""


@cases(typed(LIES))
def test_one_service_in_ten_that_lies_changes_little(lie, honest, liars, most):
    for seed in range(20):
        spread = 0.0085 * np.sqrt(3 / np.random.default_rng(seed).chisquare(3, honest))
        each = services(seed, spread.tolist() if honest > 12 else [0.01] * honest)
        assert abs(math.log(prior_of([*each, *[Restarts(*lie)] * liars]).sd / prior_of(each).sd)) < most


def test_a_verdict_names_its_prior_and_depends_on_it():
    upgraded = [start("a:0"), start("a:3600/two", 1.12)]
    assumed = judge(upgraded)
    assert assumed.state == "unconfirmed"
    assert assumed.restart.df == LIVE.pool.restart_df
    narrow = judge(upgraded, **Prior(number=7, sd=0.003).changes)
    assert narrow.state == "regressed"
    assert narrow.restart == (0.003, LIVE.pool.restart_df)
    assert LIVE.but(**Prior().changes) == LIVE
