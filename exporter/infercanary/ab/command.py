"""``infercanary ab``: the command."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from infercanary.ab import answer, page, process, sides, text
from infercanary.ab import experiment as experiments
from infercanary.ab.answer import ArmSummary, CanaryAnswer
from infercanary.ab.conditions import Conditions
from infercanary.ab.daemon import Daemon, InspectedImage, RunningContainer
from infercanary.ab.experiment import Judged, Plan, Result, TurnPair
from infercanary.ab.interruption import ExperimentInterrupted, Interruption
from infercanary.ab.progress import Progress
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import Arm, Needed
from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode, worst
from infercanary.command.paths import unwritable
from infercanary.command.settings import UsageError
from infercanary.compare import junit, markdown, options
from infercanary.compare import page as pages
from infercanary.compare.measured import Gate
from infercanary.compare.terminal import say, width
from infercanary.judge.policy import EXPERIMENT, FILES, Policy


@click.command(
    name="ab",
    context_settings={
        "obj": sides.MOVED
    },  # former options, of which the command line says what to give instead
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
@options.form("`github` is Markdown for a change request.")
@options.report
@options.junit_file
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
    policy: Policy,
    claimed: float | None,
    gate: Gate,
    form: str,
    report: str,
    junit_path: str,
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
    for option, path in (("--html", report), ("--junit", junit_path)):
        if path and (why := unwritable(path)):
            raise UsageError(f"{option}: {why}")
    plan = Plan(restarts, budget, Needed(runs, canary, start_timeout))
    interruption, progress = Interruption(), Progress()
    with interruption.handled():
        try:
            result, arms = _experiment(
                pair,
                plan,
                partial(answer.decisions, most=restarts, policy=policy, claimed=claimed, gate=gate),
                interruption,
                progress,
            )
        except ExperimentInterrupted:
            progress.clear()
            return exit_codes.of_signal(interruption.number)
        finally:
            progress.clear()
        answers = [
            answer.summarize(name, result, *arms, restarts, policy, claimed, gate)
            for name in (answer.common(result.pairs) if result.pairs else ())
        ]
        if junit_path:
            junit.write(junit_path, [each.compared for each in answers])
        return _say(answers, result, interruption.number, form, report, policy)


class _Containers(NamedTuple):
    """An arm that is an image."""

    daemon: Daemon
    image: InspectedImage
    conditions: Conditions
    prefix: str

    @property
    def name(self) -> str:
        return self.image.name

    def start(self, number: int) -> RunningContainer:
        return self.daemon.start(self.image, self.conditions, f"{self.prefix}-{number}")


def _experiment(
    pair: tuple[Side, Side],
    plan: Plan,
    judged: Judged,
    interruption: Interruption,
    progress: Progress,
) -> tuple[Result, tuple[ArmSummary, ArmSummary]]:
    """Run the experiment, and remove everything that it started."""
    identity = uuid.uuid4().hex[:12]
    with ExitStack() as stack:
        daemon = Daemon(identity, plan.budget) if any(side.image for side in pair) else None
        if daemon is not None:
            stack.callback(daemon.close)
            if stale := daemon.sweep_stale():
                progress.note(
                    f"removed {stale} container(s) that an experiment before this one left when it was killed"
                )
        reaper = stack.enter_context(Reaper(identity))
        stack.enter_context(_swept(daemon, reaper))
        running: list[Arm] = []
        arms = []
        for letter, side in zip("ab", pair, strict=True):
            arm = ArmSummary(
                name=side.image, starts=0, failed_starts=0, runs=0, settings=dict(side.differing)
            )
            if daemon is None or side.python:
                host = process.Host(side.python, side.place, side.conditions, reaper)
                running.append(host)
                arms.append(replace(arm, name=host.name))
                continue
            daemon.check(side.conditions.volume)
            image = daemon.image(side.image, interruption, partial(progress.show, f"pull {side.image}"))
            prefix = f"infercanary-ab-{identity}-{letter}"
            running.append(_Containers(daemon, image, side.conditions, prefix))
            known = replace(arm, image_id=image.id, image_bytes=image.bytes, origin=image.origin)
            arms.append(replace(known, cold_start=image.pull))
        result = experiments.run(running[0], running[1], plan, judged, interruption, progress)
        return result, (arms[0], arms[1])


@contextmanager
def _swept(daemon: Daemon | None, reaper: Reaper) -> Iterator[None]:
    """Remove the experiment's containers however it ends; where Docker does not answer, the reaper does it later."""
    try:
        yield
    except Exception:
        if daemon is None or daemon.sweep():
            reaper.nothing_left()
        raise
    if daemon is None or daemon.sweep():
        reaper.nothing_left()


def _say(
    answers: Sequence[CanaryAnswer],
    result: Result,
    signal_number: int,
    form: str,
    report: str,
    policy: Policy = EXPERIMENT,
) -> int:
    """Print the answers, then write the report: if that fails, the answer has been printed."""
    code: int = worst([each.compared.exit_code for each in answers]) if answers else ExitCode.INCONCLUSIVE
    if signal_number:
        code = exit_codes.of_signal(signal_number)
    notes = _alone(result.pairs)
    series = [answer.series(result.pairs, each.compared.canary or "") for each in answers]
    if form == "json":
        say(_json(answers, result, code, notes))
    elif not answers:
        say(f"inconclusive: no pair of starts was complete ({text.ENDED[result.ended]})\n", "inconclusive")
    elif form == "github":
        say(markdown.document(map(_markdown, answers), notes))
    else:
        options.show_text(
            (
                (each.compared.verdict, text.experiment(each, a, b, width()))
                for each, (a, b) in zip(answers, series, strict=True)
            ),
            notes,
        )
    if report and answers:
        articles = [
            part for each, (a, b) in zip(answers, series, strict=True) for part in page.experiment(each, a, b)
        ]
        title = " → ".join(
            f"{arm.name} ({sides.words(arm.settings)})" if arm.settings else arm.name
            for arm in (answers[0].a, answers[0].b)
        )
        pages.write(report, pages.page(title, articles, notes, policy))
    return code


def _markdown(each: CanaryAnswer) -> str:
    return markdown.comparison(each.compared, (f"A: {each.a.name}", f"B: {each.b.name}"), text.facts(each))


def _alone(pairs: Sequence[TurnPair]) -> list[str]:
    if not pairs:
        return []
    names = [[*turn.starts] for turn in (pairs[0].a, pairs[0].b)]
    return [
        f"only in {side}, and so not judged: {', '.join(alone)}"
        for side, own, other in (("A", names[0], names[1]), ("B", names[1], names[0]))
        if (alone := [name for name in own if name not in other])
    ]


def _json(answers: Sequence[CanaryAnswer], result: Result, code: int, notes: Sequence[str]) -> str:
    """Return what `infercanary compare --json` prints, and what the experiment adds."""
    return options.answer(
        [_plain(each) for each in answers],
        notes,
        exit_code=code,
        ended=result.ended,
        seconds=result.seconds,
        finished_at=time.time(),
        failures=[failure._asdict() for failure in result.failures],
    )


def _plain(one: CanaryAnswer) -> dict[str, Any]:
    """Return the fields of `infercanary compare --json`, and those that the experiment adds."""
    fields = options.plain(one)
    return {**fields.pop("compared"), **fields}
