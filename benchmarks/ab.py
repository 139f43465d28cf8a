"""Measures `infercanary ab` with real Docker: share of correct verdicts, and time until a verdict.

An image is compared with itself, with an image that is 5 % slower, and with an image that is 30 % slower. The first two
comparisons are repeated beside a container that uses all CPUs from time to time. At the end, a manual install on the
host is compared with the image. The benchmark prints a table. It exits with 1 after a wrong verdict: `regressed` or
`improved` for the same image, `equivalent` or `improved` for a slower image. `inconclusive` is never wrong.

Needs Docker, and the image ``infercanary-example:dev`` of this checkout (``docker compose build``). All started
containers are removed. The default settings take an hour or more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from images import BASE, docker, slower

ROOT = Path(__file__).parents[1]
REPOSITORY = "infercanary-ab-benchmark"
HOG = f"{REPOSITORY}-hog"
CONFIG = """
canaries:
  resnet18:
    target: torch
    options: {model: "model:build", inputs: [{shape: [1, 3, 224, 224]}], device: cpu}
"""


class Case(NamedTuple):
    """Comparison of the base image with an image that is slower by ``share``, repeated ``times`` times."""

    name: str
    share: float
    times: int
    hog: bool = False

    @property
    def wrong(self) -> tuple[str, str]:
        return ("equivalent" if self.share else "regressed", "improved")


def build(tag: str, seconds: float) -> str:
    """Build an image whose model waits ``seconds`` before each inference; return the image's name."""
    lines = [f"FROM {BASE}", "ENV OMP_NUM_THREADS=1", f"LABEL built-for={tag}"]
    if seconds:
        lines.append(slower(seconds))
    docker("build", "--quiet", "--tag", f"{REPOSITORY}:{tag}", "-", text="\n".join(lines) + "\n")
    return f"{REPOSITORY}:{tag}"


@contextmanager
def hog() -> Iterator[None]:
    """Run a container that uses all CPUs for 5 to 30 s, then none for 5 to 30 s, and so on."""
    ended = threading.Event()
    loops = " & ".join(["while :; do :; done"] * len(os.sched_getaffinity(0)))

    def come_and_go() -> None:
        rng = random.Random(1)
        while not ended.is_set():
            docker("run", "--detach", "--name", HOG, BASE, "sh", "-c", loops)
            ended.wait(rng.uniform(5, 30))
            docker("rm", "--force", "--volumes", HOG)
            ended.wait(rng.uniform(5, 30))

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def ab(*arguments: str) -> dict[str, Any]:
    """Run one experiment, and return its JSON output."""
    command = [sys.executable, "-m", "infercanary", "ab", *arguments, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT / "examples/resnet18"
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"ab ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def row(case: Case, answers: Sequence[dict[str, Any]]) -> str:
    """Return a line of the table."""
    # an experiment without a pair of starts has no canaries
    answers = [answer for answer in answers if answer["canaries"]]
    if not answers:
        return f"| {case.name} | no pair of starts in time | | | | | |"
    said = Counter(str(answer["verdict"]) for answer in answers)
    shifts = [answer["shift"] for answer in answers if answer["shift"] is not None]
    seconds = [answer["seconds"] for answer in answers]
    starts = [answer["a"]["starts"] for answer in answers if answer.get("a")]
    sds = [answer["restart_sd"] for answer in answers if answer.get("restart_sd")]
    words = ", ".join(f"{count} {verdict}" for verdict, count in said.most_common())
    wrong = sum(said[verdict] for verdict in case.wrong)
    return (
        f"| {case.name} | {words} | {wrong} of {len(answers)} | {median(shifts):+.1%} "
        f"[{min(shifts):+.1%}, {max(shifts):+.1%}] | {median(sds):.1%} | {median(starts):g} | "
        f"{median(seconds):.0f} s, "
        f"{max(seconds):.0f} s at most |"
    )


def against_host(answer: dict[str, Any]) -> str:
    """Compare a manual install with the image: mean, SD, steps of a cold start, and verdict."""
    lines = []
    for side in (answer["a"], answer["b"]):
        steps = ", ".join(f"{step} {seconds:.2f} s" for step, seconds in side["cold_start"].items())
        lines.append(f"{side['name']}: {side['mean'] * 1e3:.2f} ms ± {side['sd'] * 1e3:.2f}; {steps}")
    return "\n".join([*lines, str(answer["sentence"])])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--times",
        type=int,
        default=10,
        help="number of experiments with the same image; half as many with each other image",
    )
    parser.add_argument("--restarts", default="12", help="starts of each image (default: %(default)s)")
    parser.add_argument(
        "--budget", default="600", help="time limit of an experiment, in seconds (default: %(default)s)"
    )
    args = parser.parse_args()
    wrong = 0
    options = ("--restarts", args.restarts, "--budget", args.budget)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "probe.yaml"
        config.write_text(CONFIG)
        base = build("base", 0)
        given = ("--both", f"config={config}", "--both", "env.OMP_NUM_THREADS=1", *options)
        pilot = ab(base, base, *given, "--restarts", "3", "--runs", "8")
        level = pilot["a"]["mean"]
        print(
            f"ResNet-18, {level * 1e3:.1f} ms, one thread; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC\n"
        )
        print(
            "| case | verdicts | wrong | shift, median and range | restart SD | starts per image | duration |"
        )
        print("|---|---|---|---|---|---|---|")
        cases = [
            Case("the same image", 0.0, args.times),
            Case("5 % slower", 0.05, args.times // 2),
            Case("30 % slower", 0.30, args.times // 2),
            Case("the same image, a CPU hog comes and goes", 0.0, args.times // 2, hog=True),
            Case("5 % slower, a CPU hog comes and goes", 0.05, args.times // 2, hog=True),
        ]
        try:
            for case in cases:
                candidate = build(f"slower-{case.share:g}", case.share * level) if case.share else base
                with hog() if case.hog else nullcontext():
                    answers = [ab(base, candidate, *given) for _ in range(case.times)]
                wrong += sum(answer["verdict"] in case.wrong for answer in answers)
                print(row(case, answers), flush=True)
            print("\n" + against_host(ab(base, "--a", f"python={sys.executable}", *given)))
        finally:
            tags = docker("images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split()
            if tags:
                docker("rmi", "--force", *tags)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
