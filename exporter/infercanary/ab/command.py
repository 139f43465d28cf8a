"""``infercanary ab``: the command."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, get_args

import click
import msgspec

from infercanary.ab import sides
from infercanary.ab.answer import ArmSummary, CanaryPairs, ExperimentJudge, common
from infercanary.ab.container import Container
from infercanary.ab.daemon import Daemon
from infercanary.ab.document import ENDED, experiment_document
from infercanary.ab.experiment import ArmName, Experiment, Plan, Result
from infercanary.ab.interruption import ExperimentInterrupted, Interruption
from infercanary.ab.process import Host
from infercanary.ab.progress import Progress
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import Arm, Needed
from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode, worst
from infercanary.command.paths import unwritable
from infercanary.command.settings import UsageError
from infercanary.compare import options
from infercanary.compare.comparison import Gate
from infercanary.compare.options import Output
from infercanary.judge.policy import EXPERIMENT, FILES
from infercanary.render.document import Document


@click.command(
    name="ab",
    # Former options, of which the command line says what to give instead.
    context_settings={"obj": sides.MOVED},
    epilog=sides.HELP
    + exit_codes.epilog(
        exit_codes.COMPARED,
        exit_codes.CLAIMED,
        "It is 128 + N where signal N ended it: what is known by then is printed.",
    ),
)
@click.argument("images", nargs=-1, metavar="IMAGE_A IMAGE_B")
@options.number(
    "--restarts",
    low=3,
    high=FILES.pool.history,
    advice=f"give a number from 3 to {FILES.pool.history}",
    type=int,
    default=12,
    show_default=True,
    help="Starts of each side, at most; one more for a late change.",
)
@options.number(
    "--runs",
    low=EXPERIMENT.pool.fewest_runs,
    high=200,
    advice=f"give a number from {EXPERIMENT.pool.fewest_runs} to 200",
    type=int,
    default=12,
    show_default=True,
    help="Runs of each start.",
)
@options.number(
    "--budget",
    low=10,
    high=86_400,
    advice="give seconds from 10 to 86400",
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop after so long.",
)
@options.number(
    "--start-timeout",
    low=1,
    high=86_400,
    advice="give seconds from 1 to 86400",
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a start may take to its first steady run.",
)
@click.option("--canary", default="", metavar="NAME", help="Compare this canary only.")
@click.option("--experiment", default="", metavar="FILE", help="YAML with the keys below: both, a, b.")
@click.option("--both", multiple=True, metavar="KEY=VALUE", help="A setting of both sides; may be repeated.")
@click.option("--a", multiple=True, metavar="KEY=VALUE", help="A's own, in place of that of both.")
@click.option("--b", multiple=True, metavar="KEY=VALUE", help="B's own, in place of that of both.")
@options.policy(EXPERIMENT, "all looks at the experiment together")
@options.expect
@options.gate
@options.output("github")
def command(
    images: tuple[str, ...],
    restarts: int,
    runs: int,
    budget: float,
    start_timeout: float,
    canary: str,
    experiment: str,
    both: tuple[str, ...],
    a: tuple[str, ...],
    b: tuple[str, ...],
    smallest_effect: float | None,
    confidence: float | None,
    claimed: float | None,
    gate: Gate,
    **output: Any,
) -> int:
    """Compare two images on this host: is IMAGE_B slower than IMAGE_A, by how much, and why? Does it take more memory?

    \b
      infercanary ab search:1.4 search:1.5 --both cpus=2 --html report.html
      infercanary ab search:1.5 --both cpus=2 --b env.OMP_NUM_THREADS=1

    Both are started in turn, A B B A A B B A and so on: one fresh container at a time, under the same settings but for
    those of --a and --b. Each start gives some runs of its canaries, and is one replicate. It ends as soon as the
    answer is clear, and leaves nothing that it started.
    """
    pair = sides.read(images, experiment, both, a, b)
    shown = Output(**output)
    for option, path in (("--html", shown.html), ("--junit", shown.junit)):
        if path and (why := unwritable(path)):
            raise UsageError(f"{option}: {why}")
    judge = ExperimentJudge(
        restarts, options.adjusted(EXPERIMENT, smallest_effect, confidence), claimed, gate
    )
    plan = Plan(restarts, budget, Needed(runs, canary, start_timeout))
    interruption, progress = Interruption(), Progress()
    with interruption.handled():
        try:
            result, arms = run_experiment(pair, plan, judge, interruption, progress)
        except ExperimentInterrupted:
            return exit_codes.of_signal(interruption.number)
        finally:
            progress.clear()
        return show(result, arms, judge, interruption.number, shown)


def run_experiment(
    pair: tuple[Side, Side],
    plan: Plan,
    judge: ExperimentJudge,
    interruption: Interruption,
    progress: Progress,
) -> tuple[Result, list[ArmSummary]]:
    """Run the experiment, and remove everything that it started."""
    identity = uuid.uuid4().hex[:12]
    with ExitStack() as stack:
        daemon = None
        if any(side.image for side in pair):
            daemon = stack.enter_context(closing(Daemon(identity, plan.budget)))
            if stale := daemon.sweep_stale():
                progress.note(
                    f"removed {stale} container(s) that an experiment before this one left when it was killed"
                )
        reaper = stack.enter_context(Reaper(identity))

        @stack.callback
        def sweep() -> None:
            # Where Docker does not answer, and after a signal that cannot wait, the reaper does it.
            if daemon is None or daemon.sweep():
                reaper.send("done")

        running: dict[ArmName, Arm] = {}
        arms = []
        for letter, side in zip(get_args(ArmName), pair, strict=True):
            arm = ArmSummary(name=side.image, settings=dict(side.differing))
            if daemon is None or side.python:
                running[letter] = host = Host(side, reaper)
                arms.append(msgspec.structs.replace(arm, name=host.name))
                continue
            for mount in side.volume:
                if mount["Type"] == "volume":
                    daemon.check_volume(mount["Source"])
            image = daemon.image(side.image, interruption, partial(progress.show, f"pull {side.image}"))
            running[letter] = Container(daemon, image, side, f"infercanary-ab-{identity}-{letter.lower()}")
            arms.append(
                msgspec.structs.replace(
                    arm,
                    image_id=image.id,
                    image_bytes=image.bytes,
                    origin=image.origin,
                    cold_start=image.pull,
                )
            )
        return Experiment(running, plan, judge.decisions, interruption, progress).run(), arms


def show(
    result: Result, arms: list[ArmSummary], judge: ExperimentJudge, signal_number: int, output: Output
) -> int:
    """Show the answer on each canary; return the exit code."""
    names, notes = common(result.pairs) if result.pairs else ([], [])
    documents = [
        experiment_document(judge.answer(name, result, *arms), *CanaryPairs(result.pairs, name).series)
        for name in names
    ]
    if not documents:
        text = f"inconclusive: no pair of starts was complete ({ENDED[result.ended]})"
        documents = [Document(verdict="inconclusive", sentence=text, exit_code=ExitCode.INCONCLUSIVE)]
    code: int = worst(document.exit_code for document in documents)
    if signal_number:
        code = exit_codes.of_signal(signal_number)
    labels = [f"{arm.name} ({sides.words(arm.settings)})" if arm.settings else arm.name for arm in arms]
    output.show(
        documents,
        notes,
        title=" → ".join(labels),
        sides=(f"A: {arms[0].name}", f"B: {arms[1].name}"),
        exit_code=code,
        ended=result.ended,
        seconds=result.seconds,
        finished_at=time.time(),
        failures=[failure._asdict() for failure in result.failures],
    )
    return code
