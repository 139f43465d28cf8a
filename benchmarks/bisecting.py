"""Measures `infercanary bisect`: how often it finds the guilty component, how often it is wrong, and its
experiments.

The simulation draws pairs of images with six differing components. In a fifth of them, two components
interact. Every pair passes `ab`'s own decision first. With ``--docker``, real images are bisected as well:
six pairs from ``infercanary-example:dev``, with six differing components each. In one of them, two components
interact. All started containers and built images are removed. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from images import BASE, docker
from infercanary.ab.estimate import PairJudge
from infercanary.bisect.search import Components, Finding, Outcome, Search
from infercanary.judge.shift import CHANGED, Shift

NAMES = "abcdef"
RESTARTS = 12
SDS = (0.01, 0.03)  # restart SD in `ab`'s own results: 1.1 to 2.7 % (2026-11-22-ab.md)
EFFECTS = (0.08, 1.0)  # drawn on a log scale; at these SDs, `ab` rarely confirms a smaller change
SIDE_EFFECT = 0.005  # SD of the effect (logarithm) of a component that is not guilty
ALONE = {
    "one": (0.0, 0.0),
    "only together": (0.0, 0.0),
    "mask each other": (1.0, 1.0),
    "more together": (0.3, 0.2),
}
"""Share of each of two guilty components without the other."""
KINDS = [*ALONE]
RUN_ERROR = 0.002  # error of a start's level: 12 runs with an SD of 1 %, rounded


class Trial(NamedTuple):
    """A simulated pair of images: truth and result."""

    truth: Components
    kind: str
    effect: float
    sd: float
    share: float
    finding: Finding
    experiments: int
    starts: int


def trial(rng: np.random.Generator) -> Trial | None:
    """Simulate one pair of images; return None if `ab` calls no change."""
    effect = float(np.exp(rng.uniform(*np.log(EFFECTS))))
    total = math.log1p(effect) * rng.choice((1, -1))
    sd, is_pair = rng.uniform(*SDS), rng.random() < 0.2
    guilty = rng.choice([*NAMES], 1 + is_pair, replace=False).tolist()
    kind = KINDS[int(rng.integers(1, 4))] if is_pair else KINDS[0]
    alone = ALONE[kind]
    others = dict(zip(NAMES, rng.normal(0, SIDE_EFFECT, len(NAMES)), strict=True))
    count = 0

    def level(taken: Components) -> float:
        share = (
            1.0
            if taken.issuperset(guilty)
            else sum(x for name, x in zip(guilty, alone, strict=False) if name in taken)
        )
        return float(total * share + sum(x for name, x in others.items() if name in taken.difference(guilty)))

    def pair(taken: Components) -> Shift:
        nonlocal count
        count += 1
        noise = rng.normal(0, sd, 2) + rng.normal(0, RUN_ERROR, 2)
        return Shift(level(taken) + float(noise[1] - noise[0]), RUN_ERROR * math.sqrt(2), 20.0)

    every, pairs = Components(NAMES), []
    while True:
        pairs.append(pair(every))
        decision = PairJudge(RESTARTS).decide(pairs)
        if decision.done:
            break
    if decision.verdict not in CHANGED:
        return None
    search, outcomes = Search(every, pairs, RESTARTS), list[Outcome]()
    while isinstance(taken := search.decide(outcomes), frozenset):
        measured = [pair(taken)]
        while not search.judge(measured).done:
            measured.append(pair(taken))
        outcomes.append(Outcome(taken, measured))
    return Trial(
        Components(guilty), kind, effect, sd, float(total / level(every)), taken, len(outcomes), 2 * count
    )


def wilson(count: int, total: int) -> str:
    """Return a share in percent with its 95 % interval (Wilson)."""
    if not total:
        return "-"
    z, p = 1.959964, count / total
    middle, half = p + z * z / 2 / total, z * math.sqrt(p * (1 - p) / total + z * z / 4 / total**2)
    low, high = ((middle + sign * half) / (1 + z * z / total) for sign in (-1, 1))
    return f"{count} of {total}: {100 * p:.1f} % [{abs(100 * low):.1f}, {100 * high:.1f}]"


def is_found(one: Trial) -> bool:
    """Return True if the finding names exactly the guilty components, within the planned number of experiments."""
    return (
        bool(one.finding.parts)
        and one.finding.named == one.truth
        and one.experiments <= (5, 9)[len(one.truth) - 1]
    )


def is_wrong(one: Trial) -> bool:
    """Return True if the finding names a component without an effect."""
    return bool(one.finding.parts) and not one.finding.named <= one.truth


def simulate(count: int, seed: int) -> bool:
    """Simulate pairs of images, and print a table; return True if the targets are met."""
    rng, trials, unchanged = np.random.default_rng(seed), list[Trial](), 0
    while len(trials) < count:
        made = trial(rng)
        unchanged += made is None
        trials += [made] if made else []
    print(f"{count} pairs of images, seed {seed}; {unchanged} more pairs were not called by `ab`\n")
    print("| case | found in 5 (two: 9) | a wrong name | experiments: median, most | starts: median |")
    print("|---|---|---|---|---|")
    groups = {
        "all": trials,
        **{kind: [x for x in trials if x.kind == kind] for kind in KINDS},
        "effect below 20 %": [x for x in trials if x.effect < 0.2],
        "restart SD above 2 %": [x for x in trials if x.sd > 0.02],
    }
    for name, group in filter(all, groups.items()):
        numbers, starts = [x.experiments for x in group], [x.starts for x in group]
        rates = " | ".join(wilson(sum(map(is_so, group)), len(group)) for is_so in (is_found, is_wrong))
        print(f"| {name} | {rates} | {np.median(numbers):g}, {max(numbers)} | {np.median(starts):g} |")
    covered = [
        abs(x.finding.parts[0].share - x.share) <= x.finding.parts[0].half() for x in trials if is_found(x)
    ]
    print(f"\nthe true share is in the interval of 95 %: {wilson(sum(covered), len(covered))}")
    return sum(map(is_found, trials)) >= 0.9 * count and sum(map(is_wrong, trials)) <= 0.01 * count


REPOSITORY = "infercanary-bisect-benchmark"
SERVED = """import os, time
from pathlib import Path
import slowdown
from infercanary.probe import HostClock

class Work:
    def __init__(self):
        self.clock = HostClock()

    def open(self):
        waits = float(Path("/models/blocks").read_text()), float(os.environ.get("LOCK_SECONDS", 0))
        self.seconds = 0.03 + EXTRA + sum(waits) + slowdown.seconds()

    def run(self, phase):
        with phase("compute"):
            time.sleep(self.seconds)
            return sum(range(int(os.environ.get("LOOPS", 300_000))))

    def values(self, result):
        return [float(result)]

    def environment(self):
        return {}

    def close(self):
        pass
"""
CONFIG = 'canaries: {work: {target: "served:Work"}}\n'
WAIT = 0.06  # seconds of a slow component; the work sleeps for 30 ms, and computes for 2 ms (with a limit, for 40 ms)
LIMITS = {"cpus": ("2", "1.9"), "memory": ("2g", "1800m")}
HARMLESS = {**LIMITS, "env.MALLOC_ARENA_MAX": ("2", "4")}


class Case(NamedTuple):
    """Two images with six differing components: settings, a variable, a mounted file, a package, and the contents."""

    name: str
    guilty: tuple[str, ...]
    package: float = 0.0
    """Seconds that the package's version 2.0 waits."""
    weights: float = 0.0
    contents: float = 0.0
    only_if: str = ""
    """Variable without which the package does not wait."""
    settings: dict[str, tuple[str, str]] = HARMLESS


CASES = (
    Case("a package", ("slowdown",), package=WAIT),
    Case("a mounted file", ("volume",), weights=WAIT),
    Case("the image's contents", ("image contents",), contents=WAIT),
    Case("a variable", ("LOCK_SECONDS",), settings={**LIMITS, "env.LOCK_SECONDS": ("0", "0.06")}),
    Case("a limit", ("cpus",), settings={**HARMLESS, "cpus": ("2", "0.2"), "env.LOOPS": ("6000000", "6000000")}),
    Case(
        "a package and a variable, only together", ("EXACT", "slowdown"), package=WAIT, only_if="EXACT",
        settings={**LIMITS, "env.EXACT": ("0", "1")},
    ),
)  # fmt: skip


def wheel(folder: Path, version: str, seconds: float, only_if: str) -> None:
    """Write a wheel of the package `slowdown`."""
    condition = f"if os.environ.get({only_if!r}) == '1' " if only_if else "if True "
    info = f"slowdown-{version}.dist-info"
    with zipfile.ZipFile(folder / f"slowdown-{version}-py3-none-any.whl", "w") as file:
        file.writestr("slowdown.py", f"import os\ndef seconds(): return {seconds} {condition}else 0.0\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: slowdown\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@contextmanager
def images(case: Case, folder: Path) -> Iterator[tuple[str, str]]:
    """Build both images of a case; remove the images at the end of the block."""
    for version, seconds in (("1.0", 0.0), ("2.0", case.package)):
        wheel(folder, version, seconds, case.only_if)
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    names = []
    try:
        for version, extra in (("1.0", 0.0), ("2.0", case.contents)):
            (folder / "served.py").write_text(SERVED.replace("EXTRA", str(extra)))
            lines = [
                f"FROM {BASE}", "USER root", "COPY *.whl /wheels/", "COPY pip.conf /etc/", "COPY served.py /app/",
                f"RUN pip install slowdown=={version} && echo {version} > /app/VERSION",
                "USER 10001",
            ]  # fmt: skip
            (folder / "Dockerfile").write_text("\n".join(lines))
            names.append(f"{REPOSITORY}:{version}-{folder.name.lower()}")
            docker("build", "--quiet", "--tag", names[-1], str(folder))
        yield names[0], names[1]
    finally:
        docker("rmi", "--force", *names)


def bisect(case: Case) -> bool:
    """Bisect real images, and print a line of the table; return True if the finding names the right components."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with images(case, folder) as pair:
            (folder / "probe.yaml").write_text(CONFIG)
            options = [
                "--both",
                f"config={folder}/probe.yaml",
                "--both",
                "env.INFERCANARY_INTERVAL_SECONDS=0.1",
            ]
            for side, blocks, place in (("--a", 0.0, 0), ("--b", case.weights, 1)):
                models = folder / f"models{place}"
                models.mkdir(mode=0o755)
                (models / "blocks").write_text(str(blocks))
                options += [side, f"volume={models}:/models:ro"]
                for key, values in case.settings.items():
                    options += [side, f"{key}={values[place]}"]
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "infercanary", "bisect", *pair, *options, "--runs", "8", "--json"],
                stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    explained: Sequence[dict[str, Any]] = answer.get("explained", ())
    named = [
        text.partition(" ")[0] if "contents" not in text else text
        for text in (explained or [{"components": []}])[0]["components"]
    ]
    is_right = sorted(named) == sorted(case.guilty)
    experiments = len(answer.get("experiments", ()))
    print(
        f"| {case.name} | {'yes' if is_right else 'NO'} | {experiments} | {(time.monotonic() - begin) / 60:.0f} min "
        f"| {answer.get('sentence', f'exit code {done.returncode}')} |", flush=True,
    )  # fmt: skip
    return is_right


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=1000, help="simulated pairs of images (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=2026, help="seed of the simulation (default: %(default)s)"
    )
    parser.add_argument("--docker", action="store_true", help="also bisect real images")
    args = parser.parse_args()
    is_good = simulate(args.trials, args.seed)
    if args.docker:
        print("\n| guilty | found | experiments | time | sentence |\n|---|---|---|---|---|")
        for case in CASES:
            is_good &= bisect(case)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
