"""Results of the judge for simulated records, compared with the results before a change of its code.

State and cause must be equal, each end of an interval may move by less than a tenth of the width, and counts
must be equal. ``python -m tests.unit.judge.test_golden`` rewrites the file: only after an intended change of
verdicts.
"""

import gzip
import json
import math
from itertools import product

import numpy as np

from infercanary.ab.estimate import PairJudge
from infercanary.judge import drift
from infercanary.judge.changepoints import scan
from infercanary.judge.model import Start
from infercanary.judge.policy import FILES
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.restarts import restarts_of
from infercanary.judge.samples import compare
from infercanary.judge.verdict import Judge
from tests import factories
from tests.factories import HOUR
from tests.programs import GOLDEN
from tests.scenarios import cases, typed

FILE = GOLDEN / "verdicts.json.gz"
# The last digits of numpy's exp and log depend on the processor's vector instructions (AVX2 or AVX-512), and
# the last digits of sums on their order. Differences of up to 1.6e-12 were seen.
ROUNDING = 1e-9


def lasting(rng, runs, phi, sd):
    steps = rng.standard_t(3, runs + 50) * sd * math.sqrt((1 - phi**2) / 3)
    noise, last = np.empty_like(steps), 0.0
    for i, step in enumerate(steps):
        noise[i] = last = phi * last + step
    return noise[50:]


class World:
    def __init__(self, seed, wander=0.0, restart_sd=0.005):
        self.rng = np.random.default_rng([20261123, seed])
        self.wander = np.cumsum(self.rng.normal(0, wander, 20_000))
        self.restart_sd = restart_sd

    def start(self, name, image, hour, runs, *, slower=0.0, host=0.0, trend=0.0, service="s"):
        """Return a start with a run every 10 s; ``slower`` and ``host`` are ratios, ``trend`` is the total change."""
        rng, at = self.rng, HOUR * hour
        felt = self.wander[((at + 10.0 * np.arange(runs)) / 10).astype(int) % self.wander.size] + math.log1p(
            host
        )
        level = math.log(0.02) + rng.normal(0, self.restart_sd) + math.log1p(slower)
        y = np.exp(level + lasting(rng, runs, 0.4, 0.01) + felt + np.linspace(0, trend, runs))
        spin, copy = (np.exp(lasting(rng, runs, 0.4, 0.004) + by * felt) for by in (0.5, 0.0))
        odd, waited = rng.random((2, runs)), 0.001 * np.abs(rng.normal(size=runs))
        made = factories.start(
            name, image, at, y.tolist(), service=service, waited=lambda i: float(waited[i]),
            phases=lambda i: {"compute": 0.7 * float(y[i]), "launch": 0.3 * float(y[i]) / math.exp(slower)},
            controls=lambda i: {"cpu_spin": 1e-3 * float(spin[i]), "memory_copy": 2e-3 * float(copy[i])},
            sm_clock=lambda i: 1.35e9 if odd[0, i] < 0.1 else 1.98e9,
            tags=lambda i: ("warming",) if i < 2 else ("cpu_wait_outside",) * bool(odd[1, i] < 0.1 + host),
        )  # fmt: skip
        return Start.of(made.generation, made.samples)


CHANGES = (0.0, 0.0), (0.04, 0.0), (0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.08, 0.08)
"""Slowdown by the image, and by the host."""


def upgrades():
    for seed, (replicas, (slower, host), runs) in enumerate(product((1, 2, 4), CHANGES, (5, 20, 60, 200))):
        world, names = World(seed, restart_sd=0.015 if seed % 2 else 0.003), "abcd"[:replicas]
        starts = [world.start(name, "old", hour, 120) for hour in (1, 2, 3) for name in names]
        starts += [world.start(name, "new", 4, runs, slower=slower, host=host) for name in names]
        siblings = [world.start(f"s{i}", "same", 3, 600, service=f"s{i}") for i in range(seed % 4)]
        yield f"upgrade {replicas} {slower} {host} {runs}", starts, siblings
    for seed in range(100, 112):
        world = World(seed, wander=0.004, restart_sd=0.002)
        starts = [world.start("r", "old", hour, 300) for hour in range(1, 9)]
        starts.append(world.start("r", "new", 9, 200, slower=(0.0, 0.06, -0.06)[seed % 3]))
        yield (
            f"wander {seed}",
            starts,
            [world.start("x", "same", 1, 3_400, service=f"x{i}") for i in range(3)],
        )
    world = World(200)
    old, new, again = (
        world.start("r", image, hour, 200, slower=slower)
        for hour, (image, slower) in enumerate((("old", 0.0), ("new", 0.2), ("old", 0.0)), 1)
    )
    yield "rollback", [old, new, again], []
    yield "one image", [old], []
    yield "renamed", [old, world.start("other", "new", 2, 100, slower=0.1)], []


def drifts():
    for seed, trend in enumerate((0.0, 0.02, 0.05, 0.1, -0.08)):
        world = World(300 + seed)
        one = world.start("r", "old", 1, 12_000, trend=trend)
        siblings = [world.start("x", "same", 1, 13_000, service="x")]
        yield f"drift one {trend}", [one], siblings
        yield f"drift two {trend}", [one, world.start("r", "old", 40, 1_200, slower=trend)], siblings


def series():
    """Yield name and latencies with up to three changes of level; some with a coarse clock."""
    for seed in range(60):
        rng = np.random.default_rng([20261123, 1000 + seed])
        y = lasting(rng, 400, (0.0, 0.5, 0.9)[seed % 3], 0.02)
        for at in rng.integers(20, 380, seed % 4):
            y[at:] += rng.normal(0, 0.08)
        yield f"{seed}", np.exp(y) if seed % 5 else np.round(np.exp(y) * 20) / 20


def everything():
    """Return words by name; intervals (shift, low, high) by name; numbers that must be equal, by name."""
    found = {}
    for name, starts, siblings in upgrades():
        j, tried = factories.judge(starts, siblings), Judge().trials(starts).values()
        facts = [j.upgraded_at, j.baseline, j.current, j.rollback, j.runs, j.starts, j.looks.next, len(tried)]
        intervals = [] if j.shift is None else [[j.shift, j.low, j.high]]
        found[name] = [
            f"{j.state} {j.causes.cause}",
            intervals,
            [*facts, sum(trial.called for trial in tried)],
        ]
    for name, starts, siblings in drifts():
        shift = drift.detect(starts, siblings, "c", restarts_of(starts)).shift
        found[name] = ["drifted" if shift else "no drift", [], []]
    for name, values in series():
        changes = scan(values.tolist())
        found[f"scan {name}"] = [
            " ".join(str(c.index) for c in changes), [[c.shift, c.low, c.high] for c in changes], []
        ]  # fmt: skip
        sides = [(values[at - 30 : at], values[at : at + 30], None) for at in range(40, 380, 60)]
        verdicts = [
            compare(*pair, restart_sd=sd) for *pair, sd in [*sides, (values[:200], values[200:], 0.01)]
        ]
        found[f"compare {name}"] = [" ".join(v.verdict for v in verdicts), [v[1:] for v in verdicts], []]
        parts = values[:320].reshape(8, 2, 20)
        pairs = [shift_of_starts([old], [new], pool=FILES.pool) for old, new in parts]
        decision = PairJudge(8).decide(pairs)
        found[f"ab {name}"] = [decision.verdict, [], [decision.done, PairJudge(8).pairs_needed(pairs[:4])]]
    return found


def difference(before, now):
    if not before or not now or before[0] != now[0]:
        return f"{before} → {now}"
    if len(before[1]) != len(now[1]) or not all(map(is_near, before[1], now[1])):
        return "interval"
    pairs = [*zip(before[2], now[2], strict=True)]
    return (
        "" if all(a == b or (a and b and math.isclose(a, b, rel_tol=ROUNDING)) for a, b in pairs) else "facts"
    )


def is_near(before, now):
    """Return True if shift, low and high moved by less than a tenth of the interval; infinite intervals must be
    equal.
    """
    width = before[2] - before[1]
    room = max(0.1 * width if math.isfinite(width) else 0.0, ROUNDING)
    return all(a == b or abs(a - b) <= room for a, b in zip(before, now, strict=True))


def test_nothing_is_judged_otherwise_than_before():
    before, now = json.loads(gzip.decompress(FILE.read_bytes())), everything()
    found = {name: difference(before.get(name), now.get(name)) for name in {**before, **now}}
    assert {name: kind for name, kind in found.items() if kind} == {}


DIFFERENCES = """
regressed | [0.109, 0.041, 0.15] | 2.000000000001 | ""
improved  | [0.1, 0.05, 0.15]    | 2.0            | →
regressed | [0.1, 0.05, 0.161]   | 2.0            | interval
regressed | [0.1, 0.05, 0.15]    | 2.001          | facts
"""


@cases(typed(DIFFERENCES))
def test_differences_that_count_as_a_change(words, interval, fact, kind):
    found = difference(["regressed", [[0.1, 0.05, 0.15]], [7, 2.0]], [words, [interval], [7, fact]])
    assert kind in found
    assert bool(kind) == bool(found)


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress(json.dumps(everything(), separators=(",", ":")).encode(), mtime=0))
