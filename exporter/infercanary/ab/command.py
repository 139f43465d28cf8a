"""``infercanary ab``: the command."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from infercanary.ab import answer, conditions, experiment, page, process, text, variant
from infercanary.ab.answer import ArmSummary, CanaryAnswer
from infercanary.ab.conditions import Conditions
from infercanary.ab.daemon import Daemon, InspectedImage, RunningContainer
from infercanary.ab.experiment import Judged, Plan, Result, TurnPair
from infercanary.ab.interruption import ExperimentInterrupted, Interruption
from infercanary.ab.progress import Progress
from infercanary.ab.reaper import Reaper
from infercanary.ab.turn import Arm, Needed
from infercanary.ab.variant import Variant, differing, words
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
    epilog=exit_codes.epilog(
        exit_codes.COMPARED,
        exit_codes.CLAIMED,
        options.GATED,
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
    help="Starts of each image, at most; one more if the last is the first to show a change.",
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
    help="How long the whole experiment may take.",
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
@click.option(
    "--config",
    "config",
    default="",
    metavar="FILE",
    help="Run `infercanary probe` with this probe.yaml in both images, instead of their own command.",
)
@click.option(
    "--model",
    default="",
    metavar="MODEL",
    help="The same with one canary of torch: module:factory, or a .pt or .pt2 file in the image.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE",
    help="An input of --model: 1x3x224x224, 1x128:int64; may be repeated.",
)
@click.option("--canary", default="", metavar="NAME", help="Compare this canary only.")
@click.option(
    "--command",
    "command_",
    default="",
    metavar="TEXT",
    help="Run this in both images, instead of their own command.",
)
@click.option("--cpus", type=float, metavar="NUMBER", help="As for `docker run`.")
@click.option("--cpuset-cpus", default="", metavar="LIST", help="As for `docker run`.")
@click.option("--memory", default="", metavar="SIZE", help="As for `docker run`.")
@click.option(
    "--gpus", default="", metavar="GPUS", help="As for `docker run`, by name: device=0 or device=0,1."
)
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="As for `docker run`; may be repeated.")
@click.option(
    "--volume", multiple=True, metavar="SOURCE:TARGET[:ro]", help="As for `docker run`; may be repeated."
)
@click.option(
    "--host-python",
    default="",
    metavar="PATH",
    help="Compare a manual install with a container: A is this interpreter on this host, and one image is given, B.",
)
@variant.options
@options.policy(EXPERIMENT, "all looks at the experiment together")
@options.expect
@options.gate
@options.form("How the answer is printed: `github` is Markdown, for a comment on a change request.")
@options.report
@options.junit_file
def command(
    images: tuple[str, ...],
    restarts: int,
    runs: int,
    budget: float,
    start_timeout: float,
    config: str,
    model: str,
    inputs: tuple[str, ...],
    canary: str,
    command_: str,
    cpus: float | None,
    cpuset_cpus: str,
    memory: str,
    gpus: str,
    env: tuple[str, ...],
    volume: tuple[str, ...],
    host_python: str,
    of_b: Variant,
    policy: Policy,
    claimed: float | None,
    gate: Gate,
    form: str,
    report: str,
    junit_path: str,
) -> int:
    """Compare two images on this host: is IMAGE_B slower than IMAGE_A, by how much, and why? Does it take more memory?

    Both are started in turn, A B B A A B B A and so on: one fresh container at a time, with the same limits but for the
    options that end in -b. With one of those, one image is compared under two settings. Each start gives some runs of
    its canaries, and counts as one replicate. The experiment ends as soon as the answer is clear, or at --restarts or
    --budget.

    An image starts its own server, which runs the probe; its report is read on port 9798 (or the port of its label
    infercanary.port). With --config or --model, the probe is started instead of the image's command.

    Nothing that it started is left behind.
    """
    names = _sides(images, host_python, of_b)
    settings = _settings(config, model, inputs, command_, "cuda" if gpus else "cpu")
    if host_python and settings is None:
        raise UsageError("--host-python: needs --config or --model, which say what to run on the host")
    if host_python and (cpus is not None or memory or volume):
        raise UsageError(
            "--host-python: --cpus, --memory and --volume cannot be kept on the host; leave them out, "
            "or use --cpuset-cpus"
        )
    same = Conditions(
        cpus=conditions.cpus(cpus),
        cpuset=conditions.cpuset(cpuset_cpus),
        memory=conditions.memory(memory),
        gpus=conditions.gpus(gpus),
        environment=conditions.environment(env),
        mounts=conditions.mounts(volume),
        command=conditions.command(command_),
        settings="" if settings is None else conditions.document(settings),
    )
    other = of_b.conditions(same)
    settings_of = differing(Variant(env, cpus, memory, command_, config), of_b)
    for option, path in (("--html", report), ("--junit", junit_path)):
        if path and (why := unwritable(path)):
            raise UsageError(f"{option}: {why}")
    python = process.python(host_python) if host_python else ""
    plan = Plan(restarts, budget, Needed(runs, canary, start_timeout))
    interruption, progress = Interruption(), Progress()
    with interruption.handled():
        try:
            result, arms = _experiment(
                names,
                python,
                settings,
                config or "--model",
                (same, other),
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
        a, b = (replace(arm, settings=own) for arm, own in zip(arms, settings_of, strict=True))
        answers = [
            answer.summarize(name, result, a, b, restarts, policy, claimed, gate)
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
    names: tuple[str, str],
    python: str,
    settings: Mapping[str, Any] | None,
    place: str,
    both: tuple[Conditions, Conditions],
    plan: Plan,
    judged: Judged,
    interruption: Interruption,
    progress: Progress,
) -> tuple[Result, tuple[ArmSummary, ArmSummary]]:
    """Run the experiment, and remove everything that it started."""
    identity = uuid.uuid4().hex[:12]
    with ExitStack() as stack:
        daemon = Daemon(identity, plan.budget)
        stack.callback(daemon.close)
        if stale := daemon.sweep_stale():
            progress.note(
                f"removed {stale} container(s) that an experiment before this one left when it was killed"
            )
        daemon.check(both[0].mounts)
        reaper = stack.enter_context(Reaper(identity))
        stack.enter_context(_swept(daemon, reaper))
        sides: list[Arm] = []
        arms = []
        for letter, name, own in zip("ab", names, both, strict=True):
            if not name:
                assert settings is not None
                sides.append(process.Host(python, settings, place, own, reaper))
                arms.append(ArmSummary(name=sides[-1].name, starts=0, failed_starts=0, runs=0))
                continue
            image = daemon.image(name, interruption, lambda what: progress.show("pull", what))
            sides.append(_Containers(daemon, image, own, f"infercanary-ab-{identity}-{letter}"))
            arms.append(
                ArmSummary(
                    name=name,
                    image_id=image.id,
                    image_bytes=image.bytes,
                    origin=image.origin,
                    starts=0,
                    failed_starts=0,
                    runs=0,
                )
            )
        result = experiment.run(sides[0], sides[1], plan, judged, interruption, progress)
        return result, (arms[0], arms[1])


@contextmanager
def _swept(daemon: Daemon, reaper: Reaper) -> Iterator[None]:
    """Remove the experiment's containers however it ends; where Docker does not answer, the reaper does it later."""
    try:
        yield
    except Exception:
        if daemon.sweep():
            reaper.nothing_left()
        raise
    if daemon.sweep():
        reaper.nothing_left()


def _sides(images: Sequence[str], host_python: str, of_b: Variant) -> tuple[str, str]:
    """Return the images' names; an empty name is the host."""
    if host_python and len(images) == 1:
        return "", images[0]
    if host_python:
        raise UsageError("ab: with --host-python give one image, which is B")
    if len(images) == 1 and of_b != Variant():
        return images[0], images[0]
    if len(images) != 2:
        raise UsageError(
            "ab: give two images: infercanary ab IMAGE_A IMAGE_B; or one image and a setting of B's, such as --cpus-b 1"
        )
    return images[0], images[1]


def _settings(
    config: str, model: str, inputs: Sequence[str], command_: str, device: str
) -> dict[str, Any] | None:
    given = [
        name for name, value in (("--config", config), ("--model", model), ("--command", command_)) if value
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]}: exclude each other; give one of them")
    if inputs and not model:
        raise UsageError("--input: belongs to --model; give that too")
    if config:
        return conditions.settings(config)
    return conditions.settings_of(model, inputs, device) if model else None


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
            f"{arm.name} ({words(arm.settings)})" if arm.settings else arm.name
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
