"""Which judge is right about an upgrade, how often and how soon: ours and others, on simulated services.

What is simulated, ``simulation.py`` says.

An upgrade is judged from 384 runs before it and up to 192 after it, at the looks of ``infercanary.judge.policy``. All
judges get the same looks; a peer must say the same at two in a row, ours has an interval that holds at all of them.
The past holds 8 starts of the same image, to learn from; only ours does. A month has a run a minute, and no judge
knows of any event in it: ours is asked every two hours, as in the exporter; the others see the medians of half hours,
and those that need an event compare each 30 half hours with the 30 before.

The peers:

- Mann-Whitney, p < 0.001, over all repeats, and over the medians of runs;
- Kayenta's NetflixACAJudge (the rule read in its source): values beyond three interquartile ranges off, 98 % interval
  of the Mann-Whitney shift, beyond a quarter of the shift itself; also with an effect gate of 3, 4, 5 and 8 %;
- Otava 0.8, the real one: its defaults, and with p 1e-5 and 3 %; a change within 5 runs of the upgrade. It asks for an
  older numpy than ours, and runs on ours: ``pip install --no-deps apache-otava==0.8.0``, or it is left out;
- a fixed threshold: the mean of the runs moved by 10 %.

``restarts``, ``populations``, ``times`` and ``concurrent`` are of ours alone: ``lives.py`` says what they print.

``gates`` gives each of them, with hindsight, the effect gate that serves it best. Peers name no cause; they attribute
whatever moves at an upgrade to the image.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
from scipy.stats import mannwhitneyu

from infercanary.judge import drift
from infercanary.judge.changepoints import scan
from infercanary.judge.model import Generation, Judgement
from infercanary.judge.model import Start as KeptStart
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import CHANGED, Verdict
from infercanary.judge.stages import judge
from infercanary.judge.statistics import prior
from intervals import Calls, calls, intervals
from lives import concurrent, populations, restarts, times
from simulation import CANARY, PAST, Floats, Start, Upgrade, kept, samples, start, upgrade

try:
    from otava.analysis import compute_change_points
except ImportError:
    compute_change_points = None

Cause = Literal["image", "host"]

_BLOCK, _MONTH = 30, 43_200


class Decision(NamedTuple):
    """What a judge said, after how many runs, and what it holds it against."""

    verdict: Verdict
    runs: int
    cause: Cause | None = None


Judge: TypeAlias = Callable[[Upgrade], Decision]


def ours(shown: Upgrade) -> Decision:
    """The exporter's judge, on the records that it would have; its past starts are those of the replicas, in turns."""
    past = [kept(start, i % len(shown.replicas), i - PAST, "old") for i, start in enumerate(shown.past)]
    before = [kept(old, i, 0, "old") for i, (old, _) in enumerate(shown.replicas)]
    after = [kept(new, i, 1, "new") for i, (_, new) in enumerate(shown.replicas)]
    judgement = Judgement(state="settling")
    for runs in LIVE.decide.looks:
        seen = [KeptStart(start.generation, start.samples[:runs]) for start in after]
        judgement = judge([*past, *before, *seen], [], CANARY)
        if judgement.state in CHANGED:
            break
    cause = next((who for who in get_args(Cause) if who == judgement.causes.cause), None)
    return Decision(cast(Verdict, judgement.state), runs, cause)


Rule: TypeAlias = Callable[
    [Floats, Floats], int
]  # before, after: 1 where slower, -1 where faster, 0 otherwise


def _confirmed(verdicts: Sequence[Verdict]) -> Verdict:
    """A change counts when two looks in a row show it."""
    return verdicts[-1] if verdicts[-1:] == verdicts[-2:-1] else "inconclusive"


def looks(rule: Rule, view: Callable[[Sequence[Start]], Floats]) -> Judge:
    """A judge that asks ``rule`` at every look."""

    def at_looks(shown: Upgrade) -> Decision:
        verdicts: list[Verdict] = []
        before = view([before for before, _ in shown.replicas])
        for runs in LIVE.decide.looks:
            said = rule(before, view([after.first(runs) for _, after in shown.replicas]))
            verdicts.append("regressed" if said > 0 else "improved" if said < 0 else "inconclusive")
            if (verdict := _confirmed(verdicts)) != "inconclusive":
                return Decision(verdict, runs, "image")
        return Decision("inconclusive", LIVE.decide.looks[-1])

    return at_looks


def all_repeats(starts: Sequence[Start]) -> Floats:
    """Every repeat of every replica."""
    return np.concatenate([start.repeats.ravel() for start in starts])


def all_medians(starts: Sequence[Start]) -> Floats:
    """Every run of every replica."""
    return np.concatenate([start.medians for start in starts])


def mean_medians(starts: Sequence[Start]) -> Floats:
    """One series: each run's mean over the replicas."""
    means: Floats = np.mean([start.medians for start in starts], axis=0)
    return means


def mann_whitney(gate: float) -> Rule:
    """Different at p < 0.001; ``gate`` is its effect size, a ratio of medians."""

    def rule(before: Floats, after: Floats) -> int:
        moved = np.median(after) / np.median(before) - 1
        p = float(mannwhitneyu(before, after, method="asymptotic").pvalue)
        return int(np.sign(moved)) if p < 0.001 and abs(moved) >= gate else 0

    return rule


def kayenta(gate: float) -> Rule:
    """Kayenta's rule; ``gate`` is its effect size, a ratio of means."""

    def within(values: Floats) -> Floats:
        low, high = np.quantile(values, (0.25, 0.75))
        fence = 3 * (high - low)
        inside: Floats = values[(values >= low - fence) & (values <= high + fence)]
        return inside

    def rule(before: Floats, after: Floats) -> int:
        a, b = within(before), within(after)
        differences = np.sort(np.subtract.outer(b, a), axis=None)
        count = differences.size
        z = statistics.NormalDist().inv_cdf(0.99)
        k = max(0, math.floor(count / 2 - z * math.sqrt(count * (a.size + b.size + 1) / 12)))
        low, high = differences[k], differences[count - 1 - k]
        bound = 0.25 * abs(np.median(differences))
        ratio = b.mean() / a.mean()
        return int(low > bound and ratio >= 1 + gate) - int(high < -bound and ratio <= 1 - gate)

    return rule


def changes(values: Floats, p: float, magnitude: float) -> list[tuple[int, float]]:
    """Otava's change points, and by what ratio each moved."""
    # A list, because 0.8 does not cut an array into windows.
    found, _ = compute_change_points(values.tolist(), max_pvalue=p, min_magnitude=magnitude)
    return [(point.index, point.stats.mean_2 / point.stats.mean_1 - 1) for point in found]


def otava(p: float, magnitude: float) -> Rule:
    """Otava over the runs before and after, in one series."""

    def rule(before: Floats, after: Floats) -> int:
        found = changes(np.concatenate((before, after)), p, magnitude)
        near = [moved for index, moved in found if abs(index - before.size) <= 5]
        return int(np.sign(near[0])) if near else 0

    return rule


def threshold(gate: float) -> Rule:
    """So far off."""

    def rule(before: Floats, after: Floats) -> int:
        moved = after.mean() / before.mean() - 1
        return int(np.sign(moved)) if abs(moved) >= gate else 0

    return rule


def perfherder(before: Floats, after: Floats) -> int:
    """Perfherder's: a t of 7 between 24 points before and 12 after; nearer ones weigh more (treeherder, perfalert)."""
    one, other = before[-24:], after[:12]
    means = (
        np.average(one, weights=np.arange(one.size) + 1),
        np.average(other, weights=np.arange(other.size, 0, -1)),
    )
    error = math.sqrt(one.var(ddof=1) / one.size + other.var(ddof=1) / other.size)
    moved = float(means[1] - means[0])
    return int(np.sign(moved)) if abs(moved) > 7 * error else 0


def _calls(rule: Rule) -> Calls:
    return lambda before, after: rule(before, after) != 0


CALLS: dict[str, Calls] = {
    "Kayenta": _calls(kayenta(0.0)),
    "Kayenta, 3 % gate": _calls(kayenta(0.03)),
    "Perfherder t": _calls(perfherder),
}
"""Whether a peer calls a change between two samples."""

PEERS: dict[str, Callable[[float], Judge]] = {  # by the least effect that they call
    "Mann-Whitney, repeats": lambda gate: looks(mann_whitney(gate), all_repeats),
    "Mann-Whitney, medians": lambda gate: looks(mann_whitney(gate), all_medians),
    "Kayenta": lambda gate: looks(kayenta(gate), all_medians),
    "threshold": lambda gate: looks(threshold(gate), all_medians),
}

JUDGES: dict[str, Judge] = {
    "InferCanary": ours,
    "Mann-Whitney, repeats": PEERS["Mann-Whitney, repeats"](0.0),
    "Mann-Whitney, medians": PEERS["Mann-Whitney, medians"](0.0),
    "Kayenta": PEERS["Kayenta"](0.0),
    **{f"Kayenta, {100 * gate:g} % gate": PEERS["Kayenta"](gate) for gate in (0.03, 0.04, 0.05, 0.08)},
    "10 % threshold": PEERS["threshold"](0.10),
}


class Month(NamedTuple):
    """A container's month without an upgrade: what was its runs', each half hour's median, and the control's."""

    medians: Floats
    control: Floats
    half_hours: Floats

    def stepped(self, at: float, effect: float) -> Month:
        """Slower by ``effect`` from the share ``at`` of it on, and not for the host."""
        runs, halves = (np.arange(y.size) >= at * y.size for y in (self.medians, self.half_hours))
        return Month(
            self.medians * (1 + effect * runs), self.control, self.half_hours * (1 + effect * halves)
        )


Scan: TypeAlias = Callable[[Month], list[int]]  # at which half hours it alarmed


def first_day(month: Month) -> list[int]:
    """The exporter's judge, asked every two hours; an alarm is where it begins to call a drift."""
    cut = month.medians.reshape(-1, LIVE.drift.block_runs), month.control.reshape(-1, LIVE.drift.block_runs)
    medians, control = (np.median(part, axis=1) for part in cut)
    recorded = samples(
        medians,
        control,
        np.full(medians.size, 1980.0),
        0.0,
        60.0 * LIVE.drift.block_runs,
        LIVE.drift.block_runs,
    )
    generation = Generation(
        service="service", container="replica", boot_id="1", started_at=0.0, image_id="image"
    )
    alarms, called = [], False
    for count in range(10, len(recorded) + 1, 10):
        found = drift.detect([KeptStart(generation, recorded[:count])], [], CANARY, prior())
        if found.shift and not called:  # 0 where it has not drifted, None while it is not known
            alarms.append(count * LIVE.drift.block_runs // _BLOCK)
        called = bool(found.shift)
    return alarms


def windows(rule: Rule) -> Scan:
    """Return where ``rule`` alarms when each 30 points are compared with the 30 before."""

    def at_windows(month: Month) -> list[int]:
        y = month.half_hours
        return [at for at in range(30, len(y) - 29, 30) if rule(y[at - 30 : at], y[at : at + 30])]

    return at_windows


def otava_scan(p: float, magnitude: float) -> Scan:
    """Otava over a whole series, which is what it is for."""
    return lambda month: [at for at, _ in changes(month.half_hours, p, magnitude)]


SCANS: dict[str, Scan] = {
    "InferCanary": first_day,
    "InferCanary, scan": lambda month: [change.index for change in scan(month.half_hours)],
    "Mann-Whitney, medians": windows(mann_whitney(0.0)),
    "Kayenta": windows(kayenta(0.0)),
    "Kayenta, 3 % gate": windows(kayenta(0.03)),
    "10 % threshold": windows(threshold(0.10)),
}

if compute_change_points is not None:
    for name, p, magnitude in (("Otava", 0.001, 0.0), ("Otava, p 1e-5, 3 %", 1e-5, 0.03)):
        JUDGES[name] = looks(otava(p, magnitude), mean_medians)
        SCANS[name] = otava_scan(p, magnitude)
        CALLS[name] = _calls(otava(p, magnitude))
    PEERS["Otava"] = lambda gate: looks(otava(0.001, gate), mean_medians)
    PEERS["Otava, p 1e-5"] = lambda gate: looks(otava(1e-5, gate), mean_medians)


class Cell(NamedTuple):
    """One setting of what is made."""

    restart_sd: float
    replicas: int

    def trial(self, seed: int, number: int, effect: float) -> Upgrade:
        """The same upgrade for every judge."""
        made = [seed, number, int(1e3 * self.restart_sd), self.replicas, int(1e3 * effect)]
        rng = np.random.default_rng(made)
        return upgrade(rng, replicas=self.replicas, restart_sd=self.restart_sd, image=effect)


CELLS = [Cell(restart_sd, replicas) for restart_sd in (0.0, 0.005, 0.01, 0.02) for replicas in (1, 2, 3, 4)]
EFFECTS = (0.0, 0.01, 0.03, 0.05, 0.10)
Decisions: TypeAlias = dict[float, list[Decision]]  # by the true effect


def _share(decisions: Sequence[Decision], *verdicts: Verdict) -> float:
    return sum(decision.verdict in verdicts for decision in decisions) / len(decisions)


def _alarms(decisions: Decisions) -> float:
    return _share(decisions[0.0], "regressed", "improved")


_HEAD = "".join(f"{effect:>+8.0%}" for effect in EFFECTS[1:])


def _power(decisions: Decisions) -> str:
    return "".join(f"{_share(decisions[effect], 'regressed'):8.1%}" for effect in EFFECTS[1:])


def _runs(decisions: Sequence[Decision]) -> float:
    return statistics.median([d.runs for d in decisions if d.verdict == "regressed"] or [math.nan])


def upgrades(trials: int, seed: int) -> None:
    """Print, for each restart SD and number of replicas, and for all: false alarms, power, runs to a verdict."""
    print(
        f"{trials} upgrades each: alarms after a restart of the same image, 'regressed' at a true shift, median runs\n"
        "to that verdict, 'equivalent' after a restart of the same image, ms for a judgement"
    )
    cells: list[dict[str, Decisions]] = []
    for setting in CELLS:
        print(f"\nrestart SD {setting.restart_sd:.1%}, {setting.replicas} replicas")
        print(f"{'':28}{'alarms':>8}{_HEAD}{'runs +5 %':>11}{'+10 %':>7}{'same':>7}{'ms':>8}")
        cell: dict[str, Decisions] = {name: {effect: [] for effect in EFFECTS} for name in JUDGES}
        spent = dict.fromkeys(JUDGES, 0.0)
        for effect in EFFECTS:
            for number in range(trials):
                shown = setting.trial(seed, number, effect)
                for name, decide in JUDGES.items():
                    begin = time.perf_counter()
                    cell[name][effect].append(decide(shown))
                    spent[name] += time.perf_counter() - begin
        for name, decisions in cell.items():
            print(
                f"{name:28}{_alarms(decisions):8.1%}{_power(decisions)}{_runs(decisions[0.05]):11.0f}"
                f"{_runs(decisions[0.10]):7.0f}{_share(decisions[0.0], 'equivalent'):7.0%}"
                f"{1e3 * spent[name] / trials / len(EFFECTS):8.1f}",
                flush=True,
            )
        cells.append(cell)
    print(
        "\nall of these alike: nobody knows beforehand by how much starts differ, and a gate must do for all"
    )
    print(f"{'':28}{'alarms':>8}{'in the worst':>14}{_HEAD}")
    for name in JUDGES:
        of_all = {effect: [d for cell in cells for d in cell[name][effect]] for effect in EFFECTS}
        worst = max(_alarms(cell[name]) for cell in cells)
        print(f"{name:28}{_alarms(of_all):8.1%}{worst:14.1%}{_power(of_all)}")


GATES = [step / 200 for step in range(31)]  # up to 15 %


def gates(trials: int, seed: int) -> None:
    """Print each peer's errors at three gates: one that finds as many of +5 % as ours does, and the two smallest that
    keep its false alarms down to the goal's, and to ours.

    Over all cells, as nobody knows beforehand in which one he is. The gate is chosen with hindsight, on the very
    upgrades that it is judged on: no user has that.
    """

    def decided(judge: Judge, *effects: float) -> Decisions:
        numbers = range(trials)
        return {e: [judge(cell.trial(seed, n, e)) for cell in CELLS for n in numbers] for e in effects}

    def found(decisions: Decisions) -> float:
        return _share(decisions[0.05], "regressed")

    print(
        f"\n{trials * len(CELLS)} upgrades each, over all cells; the peers with gates that serve them best: one that\n"
        "finds as many of +5 % as ours, and the smallest with at most 1 % of false alarms, and with as few as ours"
    )
    print(f"{'':28}{'gate':>8}{'alarms':>8}{_HEAD}")
    own = decided(ours, *EFFECTS)
    print(f"{'InferCanary':28}{'':8}{_alarms(own):8.1%}{_power(own)}", flush=True)
    limits = sorted({0.01, _alarms(own)}, reverse=True)
    for name, peer in PEERS.items():
        tried: dict[float, Decisions] = {}
        for gate in GATES:
            tried[gate] = decided(peer(gate), 0.0, 0.05)
            if _alarms(tried[gate]) <= limits[-1]:
                break
        as_many = [gate for gate in tried if found(tried[gate]) >= found(own)][-1:]
        as_few = ([gate for gate in tried if _alarms(tried[gate]) <= limit][:1] for limit in limits)
        for gate in dict.fromkeys(chain(as_many, *as_few)):
            rest = (effect for effect in EFFECTS if effect not in tried[gate])
            whole = tried[gate] | decided(peer(gate), *rest)
            print(f"{name:28}{gate:8.1%}{_alarms(whole):8.1%}{_power(whole)}", flush=True)


def causes(trials: int, seed: int) -> None:
    """Print how often the right cause is named, where image and host take turns in being it."""
    print(
        f"\n{trials} upgrades, 2 replicas, restart SD 0.5 %: 10 % slower by the image or by the host, in turns"
    )
    print(f"{'':28}{'right':>8}{'wrong':>8}{'no verdict':>12}")
    for name, decide in JUDGES.items():
        right = wrong = 0
        for trial in range(trials):
            cause: Cause = "image" if trial % 2 else "host"
            rng = np.random.default_rng([seed, trial])
            shown = upgrade(rng, replicas=2, restart_sd=0.005, **{cause: 0.10})
            decision = decide(shown)
            if decision.verdict == "regressed":
                right += decision.cause == cause
                wrong += decision.cause != cause
        print(f"{name:28}{right / trials:8.1%}{wrong / trials:8.1%}{1 - (right + wrong) / trials:12.1%}")


def months(count: int, seed: int) -> None:
    """Print false alarms without any upgrade, and how often one true step in such a month is found."""
    print(f"\n{count} container-months without an upgrade; and each with one step, found within two days")
    print(f"{'':28}{'alarms a month':>16}{'found +3 %':>12}{'+5 %':>7}{'+10 %':>7}{'ms':>9}")
    each = []
    for i in range(count):
        made = start(np.random.default_rng([seed, i]), _MONTH)
        each.append(Month(made.medians, made.control, np.median(made.medians.reshape(-1, _BLOCK), axis=1)))
    for name, where in SCANS.items():
        begin = time.perf_counter()
        alarms = sum(len(where(month)) for month in each)
        spent = time.perf_counter() - begin
        found = []
        for effect in (0.03, 0.05, 0.10):
            hits = 0
            for i, month in enumerate(each):
                at = 600 + 37 * i % 400
                said = where(month.stepped(at / month.half_hours.size, effect))
                hits += any(-15 <= x - at <= 96 for x in said)
            found.append(hits / count)
        print(
            f"{name:28}{alarms / count:16.2f}{found[0]:12.0%}{found[1]:7.0%}{found[2]:7.0%}"
            f"{1e3 * spent / count:9.1f}"
        )


def _intervals(trials: int, seed: int) -> None:
    intervals(10 * trials, seed)
    calls(CALLS, 10 * trials, seed)


TABLES: dict[str, Callable[[int, int], None]] = {
    "intervals": _intervals,
    "upgrades": upgrades,
    "gates": gates,
    "causes": causes,
    "restarts": restarts,
    "populations": populations,
    "times": times,
    "concurrent": concurrent,
    "months": months,
}
"""Name → what prints it, of how many trials (or container-months) and a seed; in the order of all of them."""


def main() -> None:
    """Everything, or a part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("all", *TABLES),
        default="all",
    )
    parser.add_argument(
        "--trials", type=int, default=100, help="upgrades of each kind (default: %(default)s)"
    )
    parser.add_argument("--months", type=int, default=20, help="container-months (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if compute_change_points is None:
        print("Otava is left out: pip install --no-deps apache-otava==0.8.0", file=sys.stderr)
    for name, table in TABLES.items():
        if args.what in ("all", name):
            table(args.months if name == "months" else args.trials, args.seed)


if __name__ == "__main__":
    main()
