"""What the judge says of made records, to compare with what it said before a change of its code.

State and cause are the same, the ends of an interval have moved by less than a tenth of its width, and what is counted
is equal. ``python tests/unit/judge/test_golden.py`` writes the file anew: only with an intended change of verdicts.
With ``--check`` it prints what differs.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from infercanary.ab.estimate import PairJudge
from infercanary.judge import drift
from infercanary.judge.changepoints import scan
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.restarts import restarts_of
from infercanary.judge.samples import compare
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


def upgrades() -> Iterator[tuple[str, list[Start], list[Start]]]:
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
    for seed in range(100, 112):
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


class Said(NamedTuple):
    """A verdict in short."""

    words: str
    intervals: Sequence[Sequence[Any]] = ()
    """Shift, low, high."""
    facts: Sequence[Any] = ()
    """Numbers without an error: equal but for rounding."""


def said(starts: Sequence[Start], siblings: Sequence[Start]) -> Said:
    j = Judge().verdict(starts, siblings, CANARY)
    tried = Judge().trials(starts).values()
    aa: list[Any] = [len(tried), sum(trial.called for trial in tried)]
    return Said(
        f"{j.state} {j.causes.cause}",
        [] if j.shift is None else [[j.shift, j.low, j.high]],
        [j.upgraded_at, j.baseline, j.current, j.rollback, j.runs, j.starts, j.looks.next, *aa],
    )


def drifts() -> Iterator[tuple[str, Said]]:
    for seed, trend in enumerate((0.0, 0.02, 0.05, 0.1, -0.08)):
        world = World(300 + seed)
        one = world.start("r", "old", HOUR, 12_000, trend=trend, host=0.0)
        later = world.start("r", "old", HOUR * 40, 1_200, slower=trend)
        siblings = [world.start("s", "same", HOUR, 13_000, service="s")]
        for name, starts in (("one", [one]), ("two", [one, later])):
            found = drift.detect(starts, siblings, CANARY, restarts_of(starts))
            count = sum(len(drift.blocks(start.samples, LIVE.drift.block_runs)) for start in starts)
            yield f"drift {name} {trend}", Said("drifted" if found.shift else "no drift", facts=[count])


def series() -> Iterator[tuple[str, Said]]:
    for seed in range(60):
        rng = np.random.default_rng([20261123, 1000 + seed])
        y = lasting(rng, 400, (0.0, 0.5, 0.9)[seed % 3], 0.02)
        for at in rng.integers(20, 380, seed % 4):
            y[at:] += rng.normal(0, 0.08)
        values = np.exp(y) if seed % 5 else np.round(np.exp(y) * 20) / 20
        changes = scan(values.tolist())
        yield (
            f"scan {seed}",
            Said(" ".join(str(c.index) for c in changes), [[c.shift, c.low, c.high] for c in changes]),
        )
        for at in range(40, 380, 60):
            verdict, *interval = compare(values[at - 30 : at].tolist(), values[at : at + 30].tolist())
            yield f"compare {seed} {at}", Said(verdict, [interval])
        verdict, *interval = compare(values[:200].tolist(), values[200:].tolist(), restart_sd=0.01)
        yield f"compare {seed} with restarts", Said(verdict, [interval])
        pairs = [
            shift_of_starts([values[i : i + 20]], [values[i + 20 : i + 40]], pool=FILES.pool)
            for i in range(0, 320, 40)
        ]
        decision = PairJudge(8).decide(pairs)
        yield (
            f"ab {seed}",
            Said(decision.verdict, [], [decision.done, PairJudge(8).pairs_needed(pairs[:4])]),
        )


def everything() -> dict[str, Said]:
    found = {name: said(starts, beside) for name, starts, beside in upgrades()}
    return {**found, **dict(drifts()), **dict(series())}


def difference(before: Said | None, now: Said | None) -> str:
    """What kind of change it is; empty where there is none."""
    if before is None or now is None:
        return "new" if now else "gone"
    if before.words != now.words:
        return f"{before.words} → {now.words}"
    if len(before.intervals) != len(now.intervals) or not all(map(_is_near, before.intervals, now.intervals)):
        return "interval"
    are_equal = (
        math.isclose(a, b, rel_tol=ROUNDING) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(before.facts, now.facts, strict=True)
    )  # fmt: skip
    return "" if all(are_equal) else "facts"


def _is_near(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether shift, low and high moved by less than a tenth of the interval's width; of an infinite one, at all."""
    width = before[2] - before[1]
    room = max(0.1 * width if math.isfinite(width) else 0.0, ROUNDING)
    return all(a == b or abs(a - b) <= room for a, b in zip(before, now, strict=True))


def differing() -> dict[str, list[str]]:
    """Kind of change → names."""
    before = {name: Said(*each) for name, each in json.loads(gzip.decompress(FILE.read_bytes())).items()}
    now, found = everything(), defaultdict[str, list[str]](list)
    for name in {**before, **now}:
        found[difference(before.get(name), now.get(name))].append(name)
    found.pop("")
    return found


def test_nothing_is_judged_otherwise_than_before() -> None:
    assert differing() == {}


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (("regressed image", [[0.109, 0.041, 0.15]], [7, 2.0 + 1e-12]), ""),
        (("regressed host", [[0.1, 0.05, 0.15]], [7, 2.0]), "regressed image → regressed host"),
        (("regressed image", [[0.1, 0.05, 0.161]], [7, 2.0]), "interval"),
        (("regressed image", [], [7, 2.0]), "interval"),
        (("regressed image", [[0.1, 0.05, 0.15]], [7, 2.001]), "facts"),
    ],
)
def test_what_counts_as_a_change(now: tuple[Any, ...], kind: str) -> None:
    assert difference(Said("regressed image", [[0.1, 0.05, 0.15]], [7, 2.0]), Said(*now)) == kind


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(json.dumps(changes, indent=1, ensure_ascii=False) if (changes := differing()) else 0)
    text = json.dumps(everything(), separators=(",", ":")).encode()
    FILE.write_bytes(gzip.compress(text, mtime=0))
