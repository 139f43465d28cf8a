"""``infercanary bisect``: the command."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import click

from infercanary.ab import command as ab
from infercanary.ab import sides as keys
from infercanary.ab.answer import CanaryPairs, ExperimentJudge, common
from infercanary.ab.daemon import UNREACHED, one_line, open_daemon
from infercanary.ab.estimate import PairDecision
from infercanary.ab.experiment import Result, TurnPair
from infercanary.ab.progress import show_progress
from infercanary.ab.sides import Side
from infercanary.ab.turn import Plan, StartFailed
from infercanary.bisect.document import bisect_document
from infercanary.bisect.mixture import mixture, read_sides
from infercanary.bisect.search import Components, Outcome, Search
from infercanary.bisect.state import State, read_state, write_state
from infercanary.command import exit_codes
from infercanary.command.interruption import Interrupted, Interruption
from infercanary.command.settings import UsageError
from infercanary.compare import options
from infercanary.compare.options import Output
from infercanary.contract.report import OUTPUT_TOLERANCE, relative_error
from infercanary.judge.policy import Policy
from infercanary.judge.shift import CHANGED, Shift


@click.command(
    name="bisect",
    epilog=keys.HELP
    + exit_codes.epilog(exit_codes.COMPARED, "A change without a guilty component is also inconclusive."),
)
@ab.experiment_options
@click.option(
    "--index", default="", metavar="URL", help="URL of an index that has the Python packages of both images."
)
@click.option(
    "--state",
    default="",
    callback=options.writable,
    metavar="FILE",
    help="Keep finished experiments in FILE, and continue from it.",
)
@options.output("github")
def command(
    pair: tuple[Side, Side], plan: Plan, policy: Policy, index: str, state: str, **output: Any
) -> int:
    """Find the difference that makes IMAGE_B slower or faster than IMAGE_A: a variable, a limit, a package?

    \b
      infercanary bisect search:1.4 search:1.5 --index https://pypi.org/simple
      infercanary bisect search:1.5 --b cpus=1 --b env.OMP_NUM_THREADS=4

    The images are compared as by `infercanary ab`. Then each experiment measures a mixture: A with some components of
    B. The guilty component is swapped in both directions.
    """
    if any(side.python for side in pair):
        raise UsageError("bisect: python: an interpreter has no components to swap; give images")
    interruption, judge, shown = Interruption(), ExperimentJudge(plan.restarts, policy), Output(**output)
    with interruption.handled(), closing(open_daemon()) as client, suppress(Interrupted):
        sides = read_sides(client, pair, index, interruption)
        digest = hashlib.sha256(repr([sides.recipes, plan]).encode()).hexdigest()
        kept = read_state(state, digest)
        if kept is None:
            result = ab.run_experiment(pair, plan, judge.decisions, interruption)
            kept = changed(result, judge, digest, plan.canary)
            if interruption.number or kept is None:
                return ab.show(result, judge, interruption.number, shown)
        plan = plan._replace(canary=kept.canary)
        search = Search(Components(sides.texts), kept.pairs, plan.restarts, [*sides.tags])

        def judged(turns: Sequence[TurnPair]) -> dict[str, PairDecision]:
            return {plan.canary: search.judge(CanaryPairs(turns, plan.canary).shifts)}

        while True:
            write_state(state, kept)
            taken = search.decide(kept.outcomes)
            if not isinstance(taken, frozenset):
                return shown.show([bisect_document(kept, sides.texts, search, taken)], title=pair[1].image)
            swapped = ", ".join(sides.texts.get(key, key) for key in sorted(taken))
            show_progress(
                f"experiment {len(kept.outcomes) + 1} of up to {search.experiments}, swapped in A: {swapped}"
            )
            try:
                with mixture(client, sides, taken, index) as side:
                    outcome = outcome_of(
                        taken, ab.run_experiment((pair[0], side), plan, judged, interruption), kept
                    )
            except (StartFailed, UsageError, *UNREACHED) as error:
                outcome = Outcome(taken, (), one_line(error))
            interruption.check()
            kept.outcomes.append(outcome)
    return exit_codes.of_signal(interruption.number)


def changed(result: Result, judge: ExperimentJudge, digest: str, canary: str) -> State | None:
    """Return the state after the comparison of A and B; None if latency did not change."""
    if result.pairs:
        canary = canary or common(result.pairs)[0][0]
        answer = judge.answer(canary, result)
        if answer.verdict in CHANGED:
            return State(digest, canary, answer.verdict, answer.shift or 0.0, *measured(result, canary))
    return None


def measured(result: Result, canary: str) -> tuple[Sequence[Shift], Sequence[Sequence[float]]]:
    """Return the shift of each pair, and the outputs of the first two pairs in the order A, B, A, B."""
    outputs = [
        turn.starts[canary].generation.outputs.get(canary, ()) for pair in result.pairs[:2] for turn in pair
    ]
    return CanaryPairs(result.pairs, canary).shifts, outputs


def outcome_of(taken: Components, result: Result, kept: State) -> Outcome:
    if not result.pairs:
        return Outcome(taken, (), "no pair of starts within --budget")
    shifts, outputs = measured(result, kept.canary)
    # Two starts of A may also have different outputs.
    most = max(OUTPUT_TOLERANCE, relative_error(kept.outputs[2], kept.outputs[0]))
    if min(relative_error(outputs[1], output) for output in kept.outputs) > most:
        return Outcome(taken, (), "its output differs from that of A and of B")
    return Outcome(taken, shifts)
