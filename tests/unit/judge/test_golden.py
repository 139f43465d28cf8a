"""What the judge says of made records, to compare with what it said before a change of its code.

``python tests/unit/judge/test_golden.py`` writes the file anew: only with an intended change of verdicts. With
``--check`` it says what differs, by how much.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercanary.ab import estimate
from infercanary.judge import drift, statistics
from infercanary.judge.changepoints import scan
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import Part
from infercanary.judge.samples import compare
from infercanary.judge.trials import trials
from infercanary.judge.verdict import Judge

FILE = Path(__file__).parents[2] / "golden" / "verdicts.json.gz"
# The last digits of numpy's exp and log follow the vector instructions of the processor (AVX2 or AVX-512), and a sum in
# another order has others: up to 1.6e-12 was seen.
ROUNDING = 1e-9
CANARY, HOUR = "canary", 3600.0


def lasting(rng: np.random.Generator, runs: int, phi: float, sd: float) -> np.ndarray[Any, Any]:
    """First-order autocorrelated noise with Student's t of 3 degrees of freedom."""
    steps = rng.standard_t(3, runs + 50) * sd * math.sqrt((1 - phi**2) / 3)
    noise, last = np.empty_like(steps), 0.0
    for i, step in enumerate(steps):
        noise[i] = last = phi * last + step
    return noise[50:]


class World:
    """A host whose pace varies, on which starts of containers are made."""

    def __init__(self, seed: int, wander: float = 0.0, restart_sd: float = 0.005) -> None:
        self.rng = np.random.default_rng([20261123, seed])
        self.wander = np.cumsum(self.rng.normal(0, wander, 20_000))
        self.restart_sd = restart_sd

    def start(
        self, name: str, image: str, at: float, runs: int, *, slower: float = 0.0, host: float = 0.0,
        trend: float = 0.0, service: str = "service", ab: int = 0, **generation: Any,
    ) -> Start:  # fmt: skip
        """A run every 10 s from ``at`` (s) on; ``slower``, ``host`` are ratios, ``trend`` is over the whole."""
        rng = self.rng
        times = at + 10.0 * np.arange(runs)
        felt = self.wander[(times / 10).astype(int) % self.wander.size]
        level = math.log(0.02) + rng.normal(0, self.restart_sd) + math.log1p(slower) + math.log1p(host)
        y = level + lasting(rng, runs, 0.4, 0.01) + felt + np.linspace(0, trend, runs)
        spin = math.log(0.001) + math.log1p(host) + lasting(rng, runs, 0.4, 0.004) + 0.5 * felt
        copy = math.log(0.002) + lasting(rng, runs, 0.4, 0.006)
        clock = np.where(rng.random(runs) < 0.1, 1.35e9, 1.98e9)
        samples = [
            Sample(
                sequence=i, canary=CANARY, started_at=float(times[i]), outcome="ok", median=math.exp(y[i]), repeats=9,
                phases={"compute": 0.7 * math.exp(y[i]), "launch": 0.3 * math.exp(y[i] - slower)},
                controls={"cpu_spin": math.exp(spin[i]), "memory_copy": math.exp(copy[i])},
                sm_clock=float(clock[i]), waited=0.001 * abs(float(rng.normal())),
                tags=(("cpu_wait_outside",) if rng.random() < 0.1 + host else ()) + (("warming",) if i < 2 else ()),
            )
            for i in range(runs)
        ]  # fmt: skip
        g = Generation(
            service=service, container=name, boot_id=f"{name}-{at:g}-{ab}", started_at=at, image_id=image, image=image,
            **generation,
        )  # fmt: skip
        return Start.of(g, samples)


def upgrades(wanders: int) -> Iterator[tuple[str, list[Start], list[Start]]]:
    """Name, the starts of a service in order of time, and its siblings."""
    facts: dict[str, Any] = {
        "environment": {"torch": "2.7.0", "torch_device": "cuda:0", "torch_intra_op_threads": "1"},
        "outputs": {CANARY: (1.0, 2.0)},
        "cold_start": {CANARY: {"load": 3.0}},
    }
    new_facts: dict[str, Any] = {
        "environment": {"torch": "2.13.0", "torch_device": "cpu", "torch_intra_op_threads": "1"},
        "outputs": {CANARY: (1.0, 2.5)},
        "cold_start": {CANARY: {"load": 9.0}},
    }
    seed = 0
    for replicas in (1, 2, 4):
        for slower, host in ((0.0, 0.0), (0.04, 0.0), (0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.08, 0.08)):
            for runs in (5, 20, 60, 200):
                seed += 1
                world = World(seed, restart_sd=0.003 if seed % 2 else 0.015)
                starts = [
                    world.start(f"r{i}", "old", HOUR * hour + i, 120, **facts)
                    for hour in (1, 2, 3)
                    for i in range(replicas)
                ]
                starts += [
                    world.start(f"r{i}", "new", HOUR * 4 + i, runs, slower=slower, host=host, **new_facts)
                    for i in range(replicas)
                ]
                siblings = [
                    world.start(f"s{i}", "same", HOUR * 3, 600, service=f"s{i}", host=0.0)
                    for i in range(seed % 4)
                ]
                yield f"upgrade {replicas} {slower} {host} {runs}", starts, siblings
    for seed in range(100, 100 + wanders):
        yield f"wander {seed}", *varying(seed)
    world, rolled = rolled_back()
    yield "rollback", rolled, []
    yield "one image", rolled[:1], []
    yield "renamed", [rolled[0], world.start("other", "new", HOUR * 2, 100, slower=0.1)], []


def varying(seed: int) -> tuple[list[Start], list[Start]]:
    """The starts of a service on a host whose pace varies, and siblings that feel it too."""
    world = World(seed, wander=0.004, restart_sd=0.002)
    starts = [world.start("r", "old", HOUR * hour, 300) for hour in range(1, 9)]
    starts.append(world.start("r", "new", HOUR * 9, 200, slower=(0.0, 0.06, -0.06)[seed % 3]))
    return starts, [world.start(f"s{i}", "same", HOUR, 3_400, service=f"s{i}") for i in range(3)]


def rolled_back() -> tuple[World, list[Start]]:
    """An upgrade that made it slower, and its rollback."""
    world = World(200)
    return world, [
        world.start("r", "old", HOUR, 200),
        world.start("r", "new", HOUR * 2, 200, slower=0.2),
        world.start("r", "old", HOUR * 3, 200),
    ]


def said(starts: Sequence[Start], siblings: Sequence[Start]) -> dict[str, Any]:
    """All numbers and words of a judgement, but for its sentence."""

    def part(of: Part | None) -> list[float] | None:
        return None if of is None else [of.shift, of.low, of.high]

    j = Judge().verdict(starts, siblings, CANARY)
    c = j.causes
    plain = "state upgraded_at shift low high baseline_seconds current_seconds baseline_image candidate_image rollback"
    plain += " siblings restart_sd runs starts next_look"
    causes = "cause phases controls has_controls tags cold_start output_error cpu_fallback"
    return {
        **{name: getattr(j, name) for name in plain.split()},
        **{name: getattr(c, name) for name in causes.split()},
        "own": part(j.own),
        "host": part(c.host),
        "image": part(c.image),
        "beside": part(c.siblings),
        "clock": part(c.clock),
        "changes": [[x.component, x.before, x.after] for x in c.changes],
        "shown": [len(side) for side in j.medians],
        "trials": sorted([*key, t.looks, t.called] for key, t in trials(starts, siblings).items()),
    }


def drifts() -> Iterator[tuple[str, dict[str, Any]]]:
    for seed, trend in enumerate((0.0, 0.02, 0.05, 0.1, -0.08)):
        world = World(300 + seed)
        one = world.start("r", "old", HOUR, 12_000, trend=trend, host=0.0)
        later = world.start("r", "old", HOUR * 40, 1_200, slower=trend)
        siblings = [world.start("s", "same", HOUR, 13_000, service="s")]
        for name, starts in (("one", [one]), ("two", [one, later])):
            found = drift.detect(starts, siblings, CANARY, restarts_of(starts))
            host = found.host and [found.host.shift, found.host.low, found.host.high]
            yield (
                f"drift {name} {trend}",
                {
                    **{n: getattr(found, n) for n in ("shift", "low", "high", "onset", "blocks")},
                    "host": host,
                },
            )


def series() -> Iterator[tuple[str, Any]]:
    for seed in range(60):
        rng = np.random.default_rng([20261123, 1000 + seed])
        y = lasting(rng, 400, (0.0, 0.5, 0.9)[seed % 3], 0.02)
        for at in rng.integers(20, 380, seed % 4):
            y[at:] += rng.normal(0, 0.08)
        values = np.exp(y) if seed % 5 else np.round(np.exp(y) * 20) / 20
        yield f"scan {seed}", [[c.index, c.shift, c.low, c.high] for c in scan(values.tolist())]
        for at in range(40, 380, 60):
            found = compare(values[at - 30 : at].tolist(), values[at : at + 30].tolist())
            yield f"compare {seed} {at}", [*found]
        wide = compare(values[:200].tolist(), values[200:].tolist(), restart_sd=0.01)
        yield f"compare {seed} with restarts", [*wide]
        pairs = [statistics.shift(values[i : i + 20], values[i + 20 : i + 40]) for i in range(0, 320, 40)]
        decision = estimate.decide(pairs, 8)
        yield (
            f"ab {seed}",
            [
                decision.verdict,
                decision.done,
                estimate.pairs_needed(pairs[:4]),
                *estimate.estimate(pairs)[:3],
                [look.seen.verdict for look in decision.looks],
            ],
        )


def everything(wanders: int = 12) -> dict[str, Any]:
    found: dict[str, Any] = {name: said(starts, beside) for name, starts, beside in upgrades(wanders)}
    found |= dict(drifts())
    found |= dict(series())
    return json.loads(json.dumps(found))


# A wandering host with siblings costs as much as all else together: three of them show each direction.
@pytest.mark.parametrize("wanders", [3, pytest.param(12, marks=pytest.mark.campaign)])
def test_nothing_is_judged_otherwise_than_before(wanders: int) -> None:
    before = json.loads(gzip.decompress(FILE.read_bytes()))
    now = everything(wanders)
    assert len(before) - len(now) == 12 - wanders
    large = [
        (place, by) for place, by in differences({name: before[name] for name in now}, now) if by > ROUNDING
    ]
    assert not large


@pytest.mark.parametrize(
    ("before", "now", "by"),
    [
        *((1.0, 1.0 + 1e-10, 1e-10), ({"a": [1.0]}, {"a": [1.0 + 1e-6]}, 1e-6), (0.0, 1e-13, 1e-10)),
        *(
            (1.0, "1.0", math.inf),
            (0, 1, math.inf),
            (None, 0.0, math.inf),
            ("regressed", "improved", math.inf),
        ),
        *(([1.0], [1.0, 2.0], math.inf), ({"a": 1.0}, {"b": 1.0}, math.inf), (math.nan, 1.0, math.inf)),
        *((math.nan, math.nan, 0.0), ("regressed", "regressed", 0.0)),
    ],
)
def test_how_far_two_values_differ(before: Any, now: Any, by: float) -> None:
    assert max((found for _, found in differences(before, now)), default=0.0) == pytest.approx(by, rel=1e-5)


def differences(before: Any, now: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Where two differ, and by which share of the larger, or of 0.001; infinity for what is no number, or not there."""
    if isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
        for key, value in before.items():
            yield from differences(value, now[key], f"{place}/{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{place}/{i}")
    elif (
        isinstance(before, float) and isinstance(now, float) and math.isfinite(before) and math.isfinite(now)
    ):
        if before != now:
            yield place, abs(before - now) / max(abs(before), abs(now), 1e-3)
    elif repr(before) != repr(now):
        yield place, math.inf


def check() -> int:
    """Print how far this machine's numbers are from the file's; 1 where that is more than rounding."""
    found = list(differences(json.loads(gzip.decompress(FILE.read_bytes())), everything()))
    place, most = max(found, key=lambda each: each[1], default=("", 0.0))
    print(
        f"{len(found)} numbers differ, the most by {most:.1e} of itself ({place})"
        if found
        else "no number differs"
    )
    print(
        f"more than {ROUNDING:g} is no rounding" if most > ROUNDING else f"rounding: less than {ROUNDING:g}"
    )
    return int(most > ROUNDING)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    text = json.dumps(everything(), separators=(",", ":")).encode()
    FILE.write_bytes(gzip.compress(text, mtime=0))
