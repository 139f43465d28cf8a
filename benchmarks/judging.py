"""What judging costs: 200 containers with 5 canaries each and their controls, a run of each every 10 s.

The runs go through the exporter's own judge into a store on disk, an hour of them, with an upgrade of every container
after a third of it; without waiting for the clock. Before that hour each container was restarted ten times: the
judge estimates the restart variance from these, and tries its rules on them. Prints the judge's CPU time over the
simulated time; goal: at most 2 % of a core. Exits with 1 where that is missed.
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
RESTARTS, RESTART_RUNS = 10, 24  # the first look at which a change can be called
PHASE_NAMES = tuple(name for name, phase in PHASES.items() if not phase.of_server)


def generation(number: int, image: int, at: float) -> Generation:
    """A start of a container that Docker found; two of a service."""
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
    """One of 10 repeats; of its four measures, throughput is in one run of ten."""
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
    """Feed the restarts and an hour of runs to the judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=360, help="of a run each (default: %(default)s)")
    rounds = parser.parse_args().rounds
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    settle_garbage()  # as the exporter does
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
