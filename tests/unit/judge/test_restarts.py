"""Which starts show how much starts of one image differ: a container's, and pods that take each other's place."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import restarts_of

T = 1_790_000_000.0


def start(
    name: str, at: float, runs: int = 60, image: str = "sha256:1", level: float = 1.0, host: str = ""
) -> Start:
    """One that runs every 10 s from ``at`` on."""
    rng = np.random.default_rng([ord(letter) for letter in name])
    cpu = {"cpu_model": f"CPU of {host}"} if host else {}
    generation = Generation(
        service="search", container=name, boot_id=f"{name} {at}", started_at=T + at, image_id=image, host=host,
        environment=cpu,
    )  # fmt: skip
    noise = 0.02 * level * np.exp(rng.normal(0, 0.002, runs))
    return Start.of(
        generation,
        [Sample(n, "c", T + at + 10 * n, "ok", float(seconds), 5) for n, seconds in enumerate(noise)],
    )


def learned(*starts: Start) -> float:
    """Restarts that were learned from."""
    return restarts_of(sorted(starts, key=lambda one: one.generation.started_at)).df - LIVE.pool.restart_df


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
    ],
)  # fmt: skip
def test_a_pod_takes_the_place_of_one_that_ended(starts: Sequence[Start], restarts: int) -> None:
    assert learned(*starts) == restarts


def test_how_much_pods_differ_is_learned() -> None:
    alike = [start(f"pod-{n}", n * 700) for n in range(9)]
    apart = [start(f"pod-{n}", n * 700, level=1 + 0.04 * (n % 2)) for n in range(9)]
    assert restarts_of(alike).sd < 0.6 * LIVE.pool.restart_sd < LIVE.pool.restart_sd < restarts_of(apart).sd


def test_thousands_of_pods_take_no_time() -> None:
    starts = [start(f"pod-{n}", n * 10.0, runs=8) for n in range(600)]
    assert learned(*starts) > 500
    begin = time.process_time()
    learned(*starts)
    assert time.process_time() - begin < 0.2, "not as the square of their number"
