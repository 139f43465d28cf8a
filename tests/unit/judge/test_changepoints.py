"""Properties of the scan: what must be found, what must not, and that its segmentation is the best one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.judge.changepoints import scan, strengths
from infercanary.judge.policy import LIVE
from infercanary.judge.segmentation import _levels, _segmented, persistence

COUNT = 650


def lasting(rng, phi, sd=0.02, count=COUNT):
    """First-order autocorrelated noise, as logarithms."""
    y = rng.normal(0, sd * math.sqrt(1 - phi**2), count)
    y[0] = rng.normal(0, sd)
    for i in range(1, count):
        y[i] += phi * y[i - 1]
    return y


def modes(rng):
    return 0.05 * (rng.random(COUNT) < 0.3) + rng.normal(0, 0.005, COUNT)


def ticks(rng):
    level = rng.uniform(18, 20) + rng.uniform(-0.3, 0.3) * np.linspace(0, 1, COUNT)
    return np.log(np.round(level + rng.normal(0, 0.25, COUNT)))


NOISES = {
    "white": lambda rng: lasting(rng, 0.0),
    "heavy tails": lambda rng: 0.012 * rng.standard_t(3, COUNT),
    "AR .3": lambda rng: lasting(rng, 0.3),
    "AR .6": lambda rng: lasting(rng, 0.6),
    "AR .9": lambda rng: lasting(rng, 0.9),
    "walk": lambda rng: np.cumsum(rng.normal(0, 0.01, COUNT)),
    "walk in noise": lambda rng: np.cumsum(rng.normal(0, 0.002, COUNT)) + rng.normal(0, 0.01, COUNT),
    "two modes": modes,
    "even modes": lambda rng: 0.05 * (rng.random(COUNT) < 0.5) + rng.normal(0, 0.002, COUNT),
    "ticks": ticks,
    "trend": lambda rng: np.log(np.linspace(1, 1.3, COUNT)) + rng.normal(0, 0.01, COUNT),
}


@pytest.mark.parametrize("kind", NOISES)
def test_nothing_is_found_in_noise_without_a_change(kind):
    for seed in range(10):
        assert scan(np.exp(NOISES[kind](np.random.default_rng([seed, 1])))) == []


def test_modes_that_last_some_points_are_mostly_no_changes():
    """Stays of 5 points on average, 5 % slower: one that lasts for a dozen may be called, few others are."""
    found = stays = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 11])
        slow = np.repeat(np.arange(120) % 2, rng.geometric(np.tile((3 / 35, 1 / 5), 60)))[:COUNT]
        stays += 2 * np.count_nonzero(np.diff(slow) > 0)
        found += len(scan(np.exp(0.05 * slow + rng.normal(0, 0.005, slow.size))))
    assert found <= stays / 40


@settings(max_examples=20)
@given(st.integers(0, 99), st.floats(-20, 20))
def test_a_constant_on_the_logarithms_changes_nothing(seed, constant):
    """Which is to scale the unit."""
    y = lasting(np.random.default_rng([seed, 2]), 0.3, count=200)
    y[120:] += 0.15
    plain, other = scan(np.exp(y)), scan(np.exp(y + constant))
    assert [change.index for change in plain] == [change.index for change in other]
    assert [change.shift for change in plain] == pytest.approx([change.shift for change in other])


def test_backwards_the_same_changes_are_found():
    y = lasting(np.random.default_rng(3), 0.2, count=400)
    y[150:] += 0.1
    y[290:] -= 0.2
    there, back = scan(np.exp(y)), scan(np.exp(y[::-1]))
    assert [change.index for change in there] == pytest.approx([150, 290], abs=2)
    assert [400 - change.index for change in reversed(back)] == pytest.approx([150, 290], abs=2)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_a_coarse_clock_is_more_than_a_step(seed):
    """A step is 5 %, and no scatter is seen on either side: one may be the rounding, two are not."""
    rng = np.random.default_rng([seed, 4])
    base = np.where(rng.random(300) < 0.03, 20.0, 19.0)
    assert scan(base + (np.arange(300) >= 140)) == []
    (found,) = scan(base + 2 * (np.arange(300) >= 140))
    assert found.index == pytest.approx(140, abs=3)
    assert (found.shift, found.low) == pytest.approx((2 / 19, 1 / 20), abs=1e-9)


@pytest.mark.parametrize("effect", [0.06, -0.06])
def test_a_step_that_lasts_40_points_is_found(effect):
    for seed in range(10):
        y = lasting(np.random.default_rng([seed, 5]), 0.3, sd=0.01, count=600)
        y[300:340] += effect
        assert [change.index for change in scan(np.exp(y))] == pytest.approx([300, 340], abs=3)


def test_a_series_with_many_changes_has_them_all_found():
    """The scatter of such a series is not its noise, and its steps are no habit of a level that wanders."""
    y = lasting(np.random.default_rng(6), 0.3, sd=0.01, count=800)
    places = [*range(60, 800, 60)]
    for i, at in enumerate(places):
        y[at:] += 0.1 * (1, -1, -1, 1)[i % 4]
    assert [change.index for change in scan(np.exp(y))] == pytest.approx(places, abs=3)


def test_a_long_series_is_scanned_as_a_whole():
    y = lasting(np.random.default_rng(7), 0.3, sd=0.01, count=5_000)
    for at in (1_024, 3_333):
        y[at:] += 0.05
    assert [change.index for change in scan(np.exp(y))] == pytest.approx([1_024, 3_333], abs=3)


def test_a_level_without_noise():
    assert scan([5.0] * 40) == []
    assert [change.index for change in scan([5.0] * 20 + [12.5] * 20)] == [20]
    assert scan([5.0] * 20 + [5.5] * 20) == []  # it may be one step of a coarse clock
    assert scan([5.0] * 11 + [5.5] * 11) == []  # too short
    assert scan([5.0] * 20 + [5.1] * 20) == []  # less than the smallest effect


def test_strength_grows_with_the_change():
    y = lasting(np.random.default_rng(8), 0.3, sd=0.01, count=300)
    after = (np.arange(300) >= 150).astype(float)
    each = [dict(strengths(y + effect * after))[150] for effect in (0.05, 0.1, 0.2)]
    assert each == sorted(each)
    assert each[0] < each[-1]


def cost(y, cuts, grid, scale, penalty):
    edges = [0, *cuts, len(y)]
    losses = (
        np.minimum(((y[a:b, None] - grid) / scale) ** 2, LIVE.drift.scan_loss_cap**2).sum(axis=0).min()
        for a, b in itertools.pairwise(edges)
    )
    return sum(losses) + penalty * math.log(len(y)) * len(cuts)


@pytest.mark.parametrize("seed", range(20))
def test_the_segmentation_is_the_cheapest(seed):
    """Of all that a short series has."""
    rng = np.random.default_rng([seed, 9])
    y = rng.normal(0, 0.01, 10)
    y[rng.integers(2, 8) :] += 0.05
    y[rng.integers(10)] += 0.3
    grid, scale = _levels(y, 0.01, LIVE), 0.01
    for penalty, cuts in zip(
        (0.5, 1.5), _segmented(y, scale, (0.5, 1.5), LIVE.but(scan_stride=1)), strict=True
    ):
        every = (
            cost(y, places, grid, scale, penalty)
            for count in range(10)
            for places in itertools.combinations(range(1, 10), count)
        )
        assert cost(y, cuts, grid, scale, penalty) == pytest.approx(min(every), rel=1e-5)


def test_an_outlier_survives_no_penalty_and_a_step_does():
    y = lasting(np.random.default_rng(10), 0.0, sd=0.01, count=200)
    y[60] += 1.0
    y[140:] += 0.1
    survived = persistence(y, 0.01, LIVE)
    assert survived[60] == 0
    assert survived[140] >= 50
