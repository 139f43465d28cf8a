"""End of warm-up, on simulated series of latencies."""

import random

import pytest

from infercanary.probe.steady import WIDEST, WINDOW, is_steady

SLOW = 1.0
"""Seconds of a repeat that is so slow that windows have their smallest size."""


def first_steady(latencies):
    return next((n for n in range(len(latencies) + 1) if is_steady(latencies[:n])), None)


@pytest.mark.parametrize(
    ("seconds", "window"),
    {SLOW: WINDOW, 0.0624: WINDOW, 0.05: 10, 0.0201: WIDEST, 1e-5: WIDEST, 0.0: WIDEST}.items(),
)
def test_a_window_is_half_a_second_of_repeats_within_bounds(seconds, window):
    assert first_steady([seconds] * 100) == 2 * window


@pytest.mark.parametrize("level", [0.01, SLOW])
@pytest.mark.parametrize("seed", range(5))
def test_noise_about_a_level_becomes_steady(seed, level):
    rng = random.Random(seed)
    for spread in (0.001, 0.05, 0.3):
        found = first_steady([level * max(0.01, rng.gauss(1, spread)) for _ in range(100)])
        assert found is not None


def test_a_slow_settling_that_narrow_windows_take_for_steady_is_not():
    rng = random.Random(2)
    # With 0.25 % a repeat, two windows of 8 differ by 2 %, which the noise hides; two windows of 24 differ by
    # 6 %.
    latencies = [0.01 * (1 + max(0.0, 0.2 - 0.0025 * k)) * rng.gauss(1, 0.02) for k in range(160)]
    assert (first_steady(latencies) or 160) > 60


def test_one_spike_does_not_matter_and_what_a_canary_keeps_between_runs_is_enough():
    assert 2 * WIDEST <= 8 * WINDOW
    latencies = [SLOW] * 2 * WINDOW
    latencies[3] = 50 * SLOW
    assert is_steady(latencies)


@pytest.mark.parametrize(("level", "window"), [(0.01, WIDEST), (SLOW, WINDOW)])
def test_neither_a_drift_nor_a_step_is_steady_until_both_windows_lie_behind_it(level, window):
    rng = random.Random(1)
    drift = [5 * level * 0.97**k * rng.uniform(0.995, 1.005) for k in range(60)]
    assert first_steady(drift) is None
    assert first_steady([*drift, *[drift[-1]] * 2 * WIDEST]) is not None
    slow = [3 * level * rng.uniform(0.99, 1.01) for _ in range(window)]
    found = first_steady(slow + [level * rng.uniform(0.99, 1.01) for _ in range(2 * window)])
    # From then on, the older window has at most a few slow repeats, so its median is the fast level.
    assert found is not None
    assert found > 2 * window + window // 2 - 1
