"""Properties of the scan: changes that it must or must not find, and the best segmentation."""

import math

import numpy as np
import pytest

from infercanary.judge.changepoints import scan
from tests.factories import latencies
from tests.scenarios import cases, typed

COUNT = 650


def lasting(rng, alike, sd=0.02, count=COUNT):
    return np.log(latencies(rng, count, sd, alike, 1.0))


def white(rng, sd=0.01):
    return rng.normal(0, sd, COUNT)


def ticks(rng, scatter):
    level = rng.uniform(18, 20) + rng.uniform(-0.3, 0.3) * np.linspace(0, 1, COUNT)
    return np.log(np.round(level + rng.normal(0, scatter, COUNT)))


NOISES = {
    "heavy tails": lambda rng: 0.012 * rng.standard_t(3, COUNT),
    "outliers": lambda rng: white(rng) + (rng.random(COUNT) < 0.03) * rng.exponential(0.5, COUNT),
    "bursts": lambda rng: white(rng) + 0.15 * (np.convolve(rng.random(COUNT) < 0.01, [1] * 4, "same") > 0),
    "AR .9": lambda rng: lasting(rng, 0.9),
    "walk": lambda rng: np.cumsum(white(rng)),
    "modes": lambda rng: 0.05 * (rng.random(COUNT) < 0.3) + white(rng, 0.005),
    "ticks": lambda rng: ticks(rng, 0.25),
    "coarse ticks": lambda rng: ticks(rng, 0.1),
    "trend": lambda rng: np.log(np.linspace(1, 1.3, COUNT)) + white(rng),
    "wave": lambda rng: 0.04 * np.sin(np.arange(COUNT) / 16) + white(rng),
    "short": lambda rng: lasting(rng, 0.4, 0.03, 60),
}


@pytest.mark.parametrize("kind", NOISES)
def test_nothing_is_found_in_noise_without_a_change(kind):
    for seed in range(10):
        assert scan(np.exp(NOISES[kind](np.random.default_rng([seed, 1])))) == []


# Points | places of the changes | size of the changes, there and back
STEPS = """
600  | [300, 340]   | -0.06  # 40 points that are faster
600  | [588]        | 0.1    # the last 12 points
300  | [150]        | 0.5    # a large one
5000 | [1024, 3333] | 0.05   # a long series
800  | [60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 660, 720, 780] | 0.1  # its scatter is not its noise
24   | [12]         | 0.1    # the shortest series
"""


@cases(typed(STEPS))
def test_steps_are_found_where_they_are_there_and_back(count, places, effect):
    for seed in range(5):
        y = lasting(np.random.default_rng([seed, 5]), 0.3, 0.01, count)
        for i, place in enumerate(places):
            y[place:] += effect * (-1) ** i
        found = scan(np.exp(y))
        assert [change.index for change in found] == pytest.approx(places, abs=3)
        assert found[0].low <= found[0].shift <= found[0].high
        assert found[0].shift == pytest.approx(math.expm1(effect), abs=0.025)
        back = [count - change.index for change in scan(7e5 * np.exp(y[::-1]))]
        assert back[::-1] == pytest.approx(places, abs=3)


@cases(range(3))
def test_a_change_of_a_coarse_clock_is_more_than_a_step(seed):
    """A step of the clock is 5 %, and neither side visibly scatters. A change of one step may be rounding; two
    may not.
    """
    base = np.where(np.random.default_rng([seed, 4]).random(300) < 0.03, 20.0, 19.0)
    assert scan(base + (np.arange(300) >= 140)) == []
    (found,) = scan(base + 2 * (np.arange(300) >= 140))
    assert found.index == pytest.approx(140, abs=3)
    assert (found.shift, found.low) == pytest.approx((2 / 19, 1 / 20), abs=1e-9)


STILL = """
12.5 | 20 | [20]
5.5  | 20 | []  # may be one step of a coarse clock
12.5 | 11 | []  # too short
5.1  | 20 | []  # less than the smallest effect
"""


@cases(typed(STILL))
def test_a_level_without_noise(after, count, found):
    assert [change.index for change in scan([5.0] * count + [after] * count)] == found
    with pytest.raises(ValueError, match=r"values\[3\] is nan"):
        scan([1.0, 1.0, 1.0, math.nan])
