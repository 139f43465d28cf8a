"""Replicas on several hosts: hardware is compared by class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from infercanary.judge.align import Alignment
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.verdict import Judge

judge = Judge().verdict

T = 1_790_000_000.0
CLASSES: Mapping[str, Mapping[str, str]] = {
    "Xeon": {"cpu_model": "Xeon"},
    "EPYC": {"cpu_model": "EPYC"},
    "Graviton": {"cpu_model": "Graviton"},
    "L4": {"cpu_model": "Xeon", "torch_cuda_device": "L4", "torch_device": "cuda:0"},
    "A100": {"cpu_model": "Xeon", "torch_cuda_device": "A100", "torch_device": "cuda:0"},
    "unknown": {},
    "Xeon, fell back": {"cpu_model": "Xeon", "torch_device": "cpu"},
}


def starts(image: str, at: float, *pods: tuple[str, float], hosts: bool = True) -> list[Start]:
    """One start for each class and level, each on a host of its own; without hosts, all in one container's place."""
    found = []
    for number, (kind, level) in enumerate(pods):
        rng = np.random.default_rng([number, int(at) % 7919, *map(ord, kind)])
        name = f"{image}-{number}"
        generation = Generation(
            service="search", container=name if hosts else "a", boot_id=name, started_at=at + number, image_id=image,
            host=f"host of {name}" if hosts else "", environment=dict(CLASSES[kind]),
            cold_start={"c": {"load": 9.0 if kind == "Graviton" else 2.0}},
        )  # fmt: skip
        seconds = level * np.exp(rng.normal(0, 0.003, 40))
        samples = [Sample(i, "c", at + 10 * i, "ok", float(x)) for i, x in enumerate(seconds)]
        found.append(Start(generation, samples))
    return found


TWO_CLASSES = [("Xeon", 0.02)] * 3 + [("EPYC", 0.01)] * 3


@pytest.mark.parametrize(
    ("old", "new", "shift", "hosts"),
    [
        (TWO_CLASSES, [("EPYC", 0.015)] * 3, 0.5, 6),
        # A faster class is no improvement, and a slower one no regression.
        (TWO_CLASSES, [("EPYC", 0.01)] * 2, 0.0, 5),
        (TWO_CLASSES, [("Xeon", 0.02)] * 2, 0.0, 5),
        (TWO_CLASSES, [("EPYC", 0.01), ("Xeon", 0.02)], 0.0, 8),
        # A class that the old image never ran on is left out.
        (TWO_CLASSES, [("Graviton", 0.005)] * 3, None, None),
        (TWO_CLASSES, [("Graviton", 0.005), ("Xeon", 0.03), ("Xeon", 0.03)], 0.5, 5),
        ([("L4", 0.02)] * 2, [("A100", 0.01)] * 2, None, None),
        # An image that fell back to the CPU is compared with what ran on a GPU.
        ([("L4", 0.02)] * 2, [("Xeon, fell back", 0.5)] * 2, 24.0, 4),
    ],
)
def test_a_rollout_is_judged_within_each_class(
    old: list[tuple[str, float]], new: list[tuple[str, float]], shift: float | None, hosts: int | None
) -> None:
    found = judge([*starts("one", T, *old), *starts("two", T + 1000, *new)], [], "c")
    assert found.causes.cold_start == {}
    if shift is None:
        assert found.state == "no_baseline" and found.hosts
    else:
        assert found.shift == pytest.approx(shift, rel=0.05, abs=0.02)
        assert (found.state == "regressed") == (shift > 0) and found.hosts == hosts


def test_one_host_is_not_split_by_what_it_is_made_of() -> None:
    old, new = (
        starts("one", T, *TWO_CLASSES, hosts=False),
        starts("two", T + 1000, ("EPYC", 0.01), hosts=False),
    )
    found = judge([*old, *new], [], "c")
    assert found.state not in ("no_baseline", "settling") and found.hosts == 0


@pytest.mark.parametrize(
    ("kinds", "compared"),
    [
        (("Xeon", "unknown"), ["Xeon", ""]),
        (("unknown", "Xeon"), ["", "Xeon"]),
        (("Graviton", "unknown"), [""]),
    ],
)
def test_a_start_of_unknown_hardware_does_not_count_the_baseline_twice(
    kinds: tuple[str, str], compared: list[str]
) -> None:
    old, new = starts("one", T, ("Xeon", 0.02)), starts("two", T + 1000, *[(kind, 0.02) for kind in kinds])
    (pair,) = Alignment(LIVE.pool).pairs(old, new)
    assert [start.hardware[0] for start in pair.after] == compared
