"""When warm-up is over, on made series."""

from __future__ import annotations

import random

import pytest

from infercanary.probe.steady import WINDOW, is_steady


def first_steady(latencies: list[float]) -> int | None:
    """After how many latencies the test says so for the first time, as the canary asks it."""
    return next((n for n in range(len(latencies) + 1) if is_steady(latencies[:n])), None)


def test_too_few_are_never_steady() -> None:
    assert first_steady([0.01] * 100) == 2 * WINDOW
    assert not is_steady([])
    assert not is_steady([0.01] * (2 * WINDOW - 1))


@pytest.mark.parametrize("seed", range(5))
def test_noise_about_a_level_becomes_steady(seed: int) -> None:
    rng = random.Random(seed)
    for spread in (0.001, 0.05, 0.3):
        found = first_steady([max(1e-4, rng.gauss(0.01, 0.01 * spread)) for _ in range(100)])
        assert found is not None and found <= 60


def test_a_drift_is_not_steady_while_it_goes_on() -> None:
    rng = random.Random(0)
    latencies = [0.05 * 0.97**k * rng.uniform(0.995, 1.005) for k in range(60)]
    assert first_steady(latencies) is None
    assert first_steady([*latencies, *[latencies[-1]] * 2 * WINDOW]) is not None


def test_a_step_is_not_steady_until_both_windows_lie_behind_it() -> None:
    rng = random.Random(1)
    slow = [0.030 * rng.uniform(0.99, 1.01) for _ in range(WINDOW)]
    fast = [0.010 * rng.uniform(0.99, 1.01) for _ in range(2 * WINDOW)]
    found = first_steady(slow + fast)
    assert found is not None
    # From then on at most a few of the slow ones are in the window, and its median is the fast level's.
    assert found > len(slow) + WINDOW + WINDOW // 2 - 1


def test_one_spike_does_not_matter() -> None:
    latencies = [0.01] * 2 * WINDOW
    latencies[3] = 0.5
    assert is_steady(latencies)
