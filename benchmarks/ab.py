"""`infercanary ab` in real Docker, repeated: how often it is right, and after how long.

The same image against itself, an image 5 % and one 30 % slower, each on a quiet machine and beside a CPU hog that
comes and goes; and a manual install on the host against the image. It prints a table, and exits with 1 where an answer
is wrong: `regressed` or `improved` of the same image, `equivalent` or `improved` of one 5 % slower. `inconclusive` is
never wrong, and is counted.

Needs Docker, and the image ``infercanary-example:dev`` of this checkout (``docker compose build``). Everything that it
starts is removed. It takes an hour or more by default.
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
    """What is compared, and which answers are wrong."""

    name: str
    share: float
    wrong: tuple[str, ...]
    times: int
    hog: bool = False


def build(tag: str, seconds: float) -> str:
    """An image whose model waits so long before each inference: its name."""
    lines = [f"FROM {BASE}", "ENV OMP_NUM_THREADS=1", f"LABEL built-for={tag}"]
    if seconds:
        lines.append(slower(seconds))
    docker("build", "--quiet", "--tag", f"{REPOSITORY}:{tag}", "-", text="\n".join(lines) + "\n")
    return f"{REPOSITORY}:{tag}"


@contextmanager
def hog() -> Iterator[None]:
    """A container that takes every CPU for 5 to 30 s, and leaves them for as long."""
    ended = threading.Event()
    loops = " & ".join(["while :; do :; done"] * (os.cpu_count() or 1))

    def come_and_go() -> None:
        rng = random.Random(1)
        while not ended.is_set():
            subprocess.run(
                ["docker", "run", "--rm", "--detach", "--name", HOG, BASE, "sh", "-c", loops],
                capture_output=True,
                check=False,
            )
            ended.wait(rng.uniform(5, 30))
            subprocess.run(["docker", "rm", "--force", "--volumes", HOG], capture_output=True, check=False)
            ended.wait(rng.uniform(5, 30))

    thread = threading.Thread(target=come_and_go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)
        subprocess.run(["docker", "rm", "--force", "--volumes", HOG], capture_output=True, check=False)


def ab(*arguments: str) -> dict[str, Any]:
    """One experiment: what it says, as JSON."""
    command = [sys.executable, "-m", "infercanary", "ab", *arguments, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT / "examples" / "resnet18"
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"ab ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def left() -> int:
    """Containers of experiments that are still there."""
    return len(docker("ps", "--all", "--quiet", "--filter", "label=infercanary.ab").split())


def row(case: Case, answers: Sequence[dict[str, Any]]) -> str:
    """A line of the table."""
    answers = [answer for answer in answers if answer["canaries"]]  # without a pair there is nothing to show
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
        f"[{min(shifts):+.1%}, {max(shifts):+.1%}] | {median(sds):.1%} | {median(starts):g} | {median(seconds):.0f} s, "
        f"{max(seconds):.0f} s at most |"
    )


def against_host(answer: dict[str, Any]) -> str:
    """A table of a manual install beside the image, and the verdict."""
    lines = [
        "| manual install against the image | mean | SD | first answer | first run |",
        "|---|---|---|---|---|",
    ]
    for side in ("a", "b"):
        arm = answer[side]
        cells = [arm["name"].partition(" ")[0], f"{arm['mean'] * 1e3:.2f} ms", f"{arm['sd'] * 1e3:.2f} ms"]
        cells += [
            f"{arm['cold_start'][step]:.2f} s ± {arm['swing'].get(step, 0):.0%}"
            for step in ("first_answer", "first_run")
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", str(answer["sentence"])])


def main() -> None:
    """Run every case, and print what was said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10, help="of the same image (default: %(default)s)")
    parser.add_argument("--slower", type=int, default=5, help="of each other case (default: %(default)s)")
    parser.add_argument("--restarts", default="12", help="starts of each image (default: %(default)s)")
    parser.add_argument("--budget", default="600", help="seconds for each (default: %(default)s)")
    args = parser.parse_args()
    wrong = 0
    options = ("--restarts", args.restarts, "--budget", args.budget)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "probe.yaml"
        config.write_text(CONFIG)
        base = build("base", 0)
        given = ("--both", f"config={config}", "--both", "env.OMP_NUM_THREADS=1", *options)
        pilot = ab(base, base, *given, "--restarts", "3", "--runs", "8")
        if not pilot["canaries"]:
            raise SystemExit("no pair of starts in time; give more --budget")
        level = pilot["a"]["mean"]
        print(
            f"ResNet-18, {level * 1e3:.1f} ms, one thread; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC\n"
        )
        print("| case | said | wrong | shift, median and range | starts differ (SD) | starts a side | took |")
        print("|---|---|---|---|---|---|---|", flush=True)
        same = ("regressed", "improved")
        cases = [
            Case("the same image", 0.0, same, args.times),
            Case("5 % slower", 0.05, ("equivalent", "improved"), args.slower),
            Case("30 % slower", 0.30, ("equivalent", "improved"), args.slower),
            Case("the same image, a CPU hog comes and goes", 0.0, same, args.slower, hog=True),
            Case(
                "5 % slower, a CPU hog comes and goes",
                0.05,
                ("equivalent", "improved"),
                args.slower,
                hog=True,
            ),
        ]
        try:
            for case in cases:
                candidate = build(f"slower-{case.share:g}", case.share * level) if case.share else base
                with hog() if case.hog else nullcontext():
                    answers = [ab(base, candidate, *given) for _ in range(case.times)]
                wrong += sum(answer["verdict"] in case.wrong for answer in answers)
                print(row(case, answers), flush=True)
            print("\n" + against_host(ab(base, "--a", f"python={sys.executable}", *given)))
            print(f"\ncontainers left behind: {left()}")
        finally:
            tags = docker("images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split()
            if tags:
                docker("rmi", "--force", *tags)
    sys.exit(1 if wrong or left() else 0)


if __name__ == "__main__":
    main()
