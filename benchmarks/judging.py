"""Measures the CPU time of judging: 200 containers with 5 canaries each and their controls, with a run every 10 s.

An hour of runs goes through the exporter's own judge into a store on disk, without waiting for the clock. After a
third of the hour, every container is upgraded. Before the hour, each container is restarted ten times, because the
judge estimates the restart variance from restarts and tests itself on them.

Prints the judge's CPU time divided by the simulated time; goal: at most 2 % of a core. Exits with 1 if the goal is
missed.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

import structlog

from infercanary.contract.measures import DEVICE_MEMORY, ENERGY, HOST_MEMORY, throughput_of
from infercanary.contract.report import Run
from infercanary.contract.vocabulary import CONTROLS, PHASES
from infercanary.exporter.__main__ import settle_garbage
from infercanary.exporter.judging.worker import Judging
from infercanary.judge.model import Generation

GOAL = 0.02
CONTAINERS, CANARIES, CADENCE = 200, 5, 10.0
CONTROL_NAMES = tuple(CONTROLS)
RESTARTS, RESTART_RUNS = 10, 24  # after 24 runs, the judge can report a change
PHASE_NAMES = tuple(name for name, phase in PHASES.items() if not phase.of_server)


def generation(number: int, image: int, at: float) -> Generation:
    """Return a start of a container with a digest and 40 components; two containers form a service."""
    return Generation(
        service=f"service-{number // 2}",
        container=f"container-{number}",
        boot_id=f"boot-{number}-{at}",
        started_at=at,
        image=f"registry.example.com/model:{image}",
        image_id=f"sha256:{number // 2:032x}{image:032x}",
        environment={f"component_{i}": f"{image}.{i}" for i in range(40)},
    )


def run(rng: random.Random, sequence: int, canary: str, at: float) -> Run:
    """Return a run of 10 repeats with three measures; one of ten runs also has a throughput."""
    measures = {
        HOST_MEMORY: 2.0**29 + 4096 * rng.randrange(9),
        DEVICE_MEMORY: 2.0**30,
        ENERGY: rng.lognormvariate(0, 0.02),
    }
    if rng.random() < 0.1:
        measures[throughput_of(8, 1)] = 900 * rng.lognormvariate(0, 0.02)
    return Run(
        sequence=sequence,
        canary=canary,
        scheduled_at=at,
        started_at=at,
        outcome="ok",
        latencies=tuple(0.02 * rng.lognormvariate(0, 0.01) for _ in range(10)),
        phases={name: 0.004 * rng.lognormvariate(0, 0.01) for name in PHASE_NAMES},
        controls={name: 0.0004 * rng.lognormvariate(0, 0.01) for name in CONTROL_NAMES},
        measures=measures,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=360, help="number of runs of each canary (default: %(default)s)"
    )
    rounds = parser.parse_args().rounds
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    settle_garbage()  # before the judge is created, as in the exporter
    rng = random.Random(1)
    spent = slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        judging = Judging(Path(folder) / "judge.sqlite")
        begin = time.time() - rounds * CADENCE
        before_it = RESTARTS * RESTART_RUNS
        for number in range(-before_it, rounds):
            at = begin + number * CADENCE
            is_restart = number <= 0 and number % RESTART_RUNS == 0
            if is_restart or number == rounds // 3:
                starts = [generation(i, int(not is_restart), at) for i in range(CONTAINERS)]
            for start in starts:
                sequence = (number + before_it) * CANARIES
                runs = [run(rng, sequence + i, f"canary-{i}", at) for i in range(CANARIES)]
                judging.submit(start, runs)
            before = time.process_time()
            judging.turn()
            took = time.process_time() - before
            if number >= 0:
                spent, slowest = spent + took, max(slowest, took)
            if number % 60 == 0:
                print(f"{number * CADENCE / 60:4.0f} min  {spent:6.2f} s of CPU", flush=True)
        stored = {f.name: f.points[0].value for f in judging.families() if f.points}
        judging.stop()
    share = spent / rounds / CADENCE
    taken, errors = (stored[f"infercanary_{name}_total"] for name in ("stored_runs", "store_errors"))
    print(
        f"{CONTAINERS} containers × {CANARIES} canaries, a run every {CADENCE:.0f} s: {share:.2%} of a core "
        f"(goal: at most {GOAL:.0%}); longest turn {slowest:.2f} s; {taken:,.0f} runs stored, {errors:.0f} errors"
    )
    sys.exit(0 if share <= GOAL and not errors else 1)


if __name__ == "__main__":
    main()
