"""Properties of the scan: what must be found, what must not, and that its segmentation is the best one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from infercanary.judge.changepoints import PRICES, noise, scan, segmented, strengths

COUNT = 650


def lasting(rng, phi, sd=0.02, count=COUNT):
    """First-order autocorrelated noise, as logarithms."""
    y = rng.normal(0, sd * math.sqrt(1 - phi**2), count)
    y[0] = rng.normal(0, sd)
    for i in range(1, count):
        y[i] += phi * y[i - 1]
    return y


def white(rng, sd=0.01):
    return rng.normal(0, sd, COUNT)


def ticks(rng, scatter):
    level = rng.uniform(18, 20) + rng.uniform(-0.3, 0.3) * np.linspace(0, 1, COUNT)
    return np.log(np.round(level + rng.normal(0, scatter, COUNT)))


NOISES = {
    "white": white,
    "heavy tails": lambda rng: 0.012 * rng.standard_t(3, COUNT),
    "outliers": lambda rng: white(rng) + (rng.random(COUNT) < 0.03) * rng.exponential(0.5, COUNT),
    "bursts": lambda rng: white(rng) + 0.15 * (np.convolve(rng.random(COUNT) < 0.01, [1] * 4, "same") > 0),
    "AR .6": lambda rng: lasting(rng, 0.6),
    "AR .9": lambda rng: lasting(rng, 0.9),
    "walk": lambda rng: np.cumsum(white(rng)),
    "walk in noise": lambda rng: np.cumsum(white(rng, 0.002)) + white(rng),
    "modes": lambda rng: 0.05 * (rng.random(COUNT) < 0.3) + white(rng, 0.005),
    "even modes": lambda rng: 0.05 * (rng.random(COUNT) < 0.5) + white(rng, 0.002),
    "ticks": lambda rng: ticks(rng, 0.25),
    "coarse ticks": lambda rng: ticks(rng, 0.1),
    "trend": lambda rng: np.log(np.linspace(1, 1.3, COUNT)) + white(rng),
    "wave": lambda rng: 0.04 * np.sin(np.arange(COUNT) / 16) + white(rng),
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
    assert found <= stays / 9


@pytest.mark.parametrize(
    ("count", "places", "effect"),
    [
        pytest.param(600, (300, 340), 0.06, id="40 points that are slower"),
        pytest.param(600, (300, 340), -0.06, id="40 points that are faster"),
        pytest.param(600, (588,), 0.1, id="the last 12 points"),
        pytest.param(5_000, (1_024, 3_333), 0.05, id="a long series"),
        pytest.param(800, tuple(range(60, 800, 60)), 0.1, id="many: its scatter is not its noise"),
        pytest.param(24, (12,), 0.1, id="the shortest series"),
    ],
)
def test_steps_are_found_where_they_are_there_and_back(count, places, effect):
    for seed in range(5):
        y = lasting(np.random.default_rng([seed, 5]), 0.3, sd=0.01, count=count)
        for i, place in enumerate(places):
            y[place:] += effect * (-1) ** i
        assert [change.index for change in scan(np.exp(y))] == pytest.approx(places, abs=3)
        back = [count - change.index for change in scan(np.exp(y[::-1]))]
        assert back[::-1] == pytest.approx(places, abs=3)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_a_coarse_clock_is_more_than_a_step(seed):
    """A step is 5 %, and no scatter is seen on either side: one may be the rounding, two are not."""
    rng = np.random.default_rng([seed, 4])
    base = np.where(rng.random(300) < 0.03, 20.0, 19.0)
    assert scan(base + (np.arange(300) >= 140)) == []
    (found,) = scan(base + 2 * (np.arange(300) >= 140))
    assert found.index == pytest.approx(140, abs=3)
    assert (found.shift, found.low) == pytest.approx((2 / 19, 1 / 20), abs=1e-9)


@pytest.mark.parametrize(
    ("before", "after", "count", "found"),
    [
        (5.0, 5.0, 20, []),
        (5.0, 12.5, 20, [20]),
        (5.0, 5.5, 20, []),  # it may be one step of a coarse clock
        (5.0, 12.5, 11, []),  # too short
        (5.0, 5.1, 20, []),  # less than the smallest effect
    ],
)
def test_a_level_without_noise(before, after, count, found):
    assert [change.index for change in scan([before] * count + [after] * count)] == found


def test_strength_grows_with_the_change():
    y = lasting(np.random.default_rng(8), 0.3, sd=0.01, count=300)
    after = (np.arange(300) >= 150).astype(float)
    each = [dict(strengths(y + effect * after))[150] for effect in (0.05, 0.1, 0.2)]
    assert each == sorted(each)
    assert each[0] < each[-1]


@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_noise_is_larger_where_it_lasts_and_ignores_changes_and_outliers(phi):
    rng = np.random.default_rng(12)
    y = lasting(rng, phi)
    alone = noise(y)
    assert alone == pytest.approx(0.02 * (1.9 if phi else 1), rel=0.2)
    assert noise(y + 0.3 * (np.arange(COUNT) // 60 % 2) + (rng.random(COUNT) < 0.03)) < 1.4 * alone


def test_noise_of_a_coarse_clock_is_seen_though_most_points_are_the_same():
    is_next = np.random.default_rng(13).random(COUNT) < 0.3
    assert noise(np.log(np.where(is_next, 21.0, 20.0))) == pytest.approx(0.022, rel=0.4)


def cost(y, cuts, grid, scale, price):
    losses = (
        np.minimum(((y[a:b, None] - grid) / scale) ** 2, 9).sum(axis=0).min()
        for a, b in itertools.pairwise([0, *cuts, len(y)])
    )
    return sum(losses) + price * math.log(len(y)) * len(cuts)


@pytest.mark.parametrize("seed", range(10))
def test_the_segmentation_is_the_cheapest(seed):
    """Of all that a short series has where every third point may begin a level."""
    rng = np.random.default_rng([seed, 9])
    y, scale = rng.normal(0, 0.01, 24), 0.01
    y[rng.integers(2, 22) :] += 0.05
    y[rng.integers(2, 22) :] -= 0.03
    y[rng.integers(24)] += 0.3
    grid = np.linspace(y.min(), y.max(), int(2 * np.ptp(y) / scale) + 2)
    found = [*segmented(y, scale)]
    assert found[-1], "the lowest price"
    for price, cuts in zip(PRICES, found, strict=True):
        every = (
            cost(y, places, grid, scale, price)
            for count in range(8)
            for places in itertools.combinations(range(3, 24, 3), count)
        )
        assert cost(y, sorted(cuts), grid, scale, price) == pytest.approx(min(every), rel=1e-5)


def test_an_outlier_is_worth_no_price_and_a_step_is():
    y = lasting(np.random.default_rng(10), 0.0, sd=0.01, count=200)
    y[60] += 1.0
    y[141:] += 0.1
    for price, cuts in zip(PRICES, segmented(y, 0.01), strict=True):
        assert cuts == ([141] if price <= 64 else [])
