"""``infercanary ab``: the command."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, get_args

import click

from infercanary.ab import sides
from infercanary.ab.answer import CanaryPairs, ExperimentJudge, common
from infercanary.ab.container import Container
from infercanary.ab.daemon import open_daemon
from infercanary.ab.document import ENDED, experiment_document
from infercanary.ab.experiment import ArmName, Experiment, Judged, Result
from infercanary.ab.process import Host
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import Arm, Plan
from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode, worst
from infercanary.command.interruption import Interrupted, Interruption
from infercanary.compare import options
from infercanary.compare.comparison import Gate
from infercanary.compare.options import Output
from infercanary.compare.recording import RecordedSide
from infercanary.judge.policy import EXPERIMENT, FILES, Policy
from infercanary.render.document import Document

if TYPE_CHECKING:
    from infercanary.compare.record import Recorder

_NUMBERS = [
    options.number(
        name, low=low, high=high, advice=f"give {unit} from {low} to {high}", type=type(default), default=default,
        show_default=True, metavar=unit.split()[-1].upper(), help=text,
    )
    for name, low, high, default, unit, text in (
        ("--restarts", 3, FILES.pool.history, 12, "a number", "Starts of each side; 1 more to confirm a late change."),
        ("--runs", EXPERIMENT.pool.fewest_runs, 200, 12, "a number", "Runs of each start."),
        ("--budget", 10, 86_400, 1800.0, "seconds", "Time limit of the experiment."),
        ("--start-timeout", 1, 86_400, 300.0, "seconds", "Time limit for the first steady run of a start."),
    )
]  # fmt: skip


def experiment_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of an experiment. The command receives them as ``pair``, ``plan`` and ``policy``."""

    @click.argument("images", nargs=-1, metavar="IMAGE_A IMAGE_B")
    @options.together(*_NUMBERS)
    @click.option("--canary", default="", metavar="NAME", help="Compare this canary only.")
    @click.option(
        "--experiment", default="", metavar="FILE", help="YAML file: both, a, b, with the keys below."
    )
    @click.option(
        "--both", multiple=True, metavar="KEY=VALUE", help="A setting of both sides; may be repeated."
    )
    @click.option("--a", multiple=True, metavar="KEY=VALUE", help="A setting of A only; overrides --both.")
    @click.option("--b", multiple=True, metavar="KEY=VALUE", help="A setting of B only; overrides --both.")
    @options.policy(EXPERIMENT)
    @functools.wraps(function)
    def read(**given: Any) -> int:
        pair = sides.read(*map(given.pop, ("images", "experiment", "both", "a", "b")))
        plan = Plan(*map(given.pop, Plan._fields))
        return function(pair=pair, plan=plan, **given)

    return read


@click.command(
    name="ab",
    epilog=sides.HELP
    + exit_codes.epilog(
        exit_codes.COMPARED,
        exit_codes.CLAIMED,
        "After signal N, the exit code is 128 + N, and the results so far are printed.",
    ),
)
@experiment_options
@options.expect
@options.gate
@options.record
@options.output("github")
def command(
    pair: tuple[Side, Side],
    plan: Plan,
    policy: Policy,
    claimed: float | None,
    gate: Gate,
    recorder: Recorder | None,
    **output: Any,
) -> int:
    """Compare two images on this host: is IMAGE_B slower than IMAGE_A, by how much, and why? Does it take more memory?

    \b
      infercanary ab search:1.4 search:1.5 --both cpus=2 --html report.html
      infercanary ab search:1.5 --both cpus=2 --b env.OMP_NUM_THREADS=1

    The images take turns, A B B A A B B A and so on: one fresh container at a time, with the same settings except
    those of --a and --b. Each start is one replicate, with several runs of each canary. The experiment ends as soon as
    the answer is clear, and removes everything that it started.
    """
    shown = Output(**output)
    if recorder:
        recorder.check()
    judge = ExperimentJudge(plan.restarts, policy, claimed, gate)
    interruption = Interruption()
    with interruption.handled():
        try:
            result = run_experiment(pair, plan, judge.decisions, interruption)
        except Interrupted:
            return exit_codes.of_signal(interruption.number)
        return show(result, judge, interruption.number, shown, recorder)


def run_experiment(
    pair: tuple[Side, Side],
    plan: Plan,
    judged: Judged,
    interruption: Interruption,
) -> Result:
    """Run the experiment, then remove its containers and processes."""
    with ExitStack() as stack:
        client = None
        if any(side.image for side in pair):
            client = stack.enter_context(closing(open_daemon()))
        reaper = stack.enter_context(Reaper())
        arms: dict[ArmName, Arm] = {
            name: Container(client, side, plan.budget, reaper, interruption)
            if client and side.image
            else Host(side, reaper)
            for name, side in zip(get_args(ArmName), pair, strict=True)
        }
        return Experiment(arms, plan, judged, interruption).run()


def show(
    result: Result,
    judge: ExperimentJudge,
    signal_number: int,
    output: Output,
    recorder: Recorder | None = None,
) -> int:
    """Print the answer on each canary, and record it unless a signal came; return the exit code."""
    names, notes = common(result.pairs) if result.pairs else ([], [])
    documents = []
    for name in names:
        answer, series = judge.answer(name, result), CanaryPairs(result.pairs, name).series
        documents.append(experiment_document(answer, *series))
        if recorder and not signal_number:
            both = [
                RecordedSide(runs.starts, arm.name, arm.digests, arm.host)
                for runs, arm in zip(series, result.arms, strict=True)
            ]
            recorder.add("ab", name, both, answer)
    if not documents:
        text = f"inconclusive: no pair of starts was complete ({ENDED[result.ended]})"
        documents = [Document(verdict="inconclusive", sentence=text, exit_code=ExitCode.INCONCLUSIVE)]
    code: int = worst(document.exit_code for document in documents)
    if signal_number:
        code = exit_codes.of_signal(signal_number)
    a, b = (arm.name for arm in result.arms)
    output.show(
        documents,
        notes,
        title=f"{a} → {b}",
        exit_code=code,
        ended=result.ended,
        seconds=result.seconds,
        finished_at=time.time(),
    )
    if recorder:
        recorder.save()
    return code
