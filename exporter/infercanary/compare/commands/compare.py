"""``infercanary compare``: the command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from infercanary.command import exit_codes
from infercanary.command.settings import UsageError
from infercanary.compare import junit, options, page, text, units
from infercanary.compare.comparison import compare_runs, judged, with_claim
from infercanary.compare.content import STANDARD_INPUT
from infercanary.compare.measured import Gate
from infercanary.compare.read import pick, read
from infercanary.compare.recording import Attempts, RecordedRuns, Recording, listed
from infercanary.compare.rows import Choice
from infercanary.compare.terminal import width
from infercanary.judge.policy import FILES, Policy

_NOTHING = RecordedRuns((), attempts=Attempts(0, 0))
_SMALL_SD = 0.1
"""Percent: below it, starts differ by less than any that were measured here (docs/ab.md has 1 to 2 %), so a ratio was
meant, as in Python's ``restart_sd=0.01``."""


@click.command(
    name="compare",
    context_settings={"obj": {"--level": "--confidence=…"}},  # former option → what to give instead
    epilog=exit_codes.epilog(
        exit_codes.COMPARED,
        exit_codes.CLAIMED,
        exit_codes.SEVERAL,
        "A canary without a run in CANDIDATE is inconclusive. So is one of which clearly more runs failed than before, "
        "unless it regressed.",
    ),
)
@click.argument("baseline", metavar="BASELINE")
@click.argument("candidate", metavar="CANDIDATE")
@click.option(
    "--more-baseline", multiple=True, metavar="FILE", help="Another file of the baseline; may be repeated."
)
@click.option(
    "--more-candidate", multiple=True, metavar="FILE", help="Another file of the candidate; may be repeated."
)
@click.option(
    "--baseline-id",
    multiple=True,
    metavar="ID",
    help="Environments or boots of the baseline's journals, by the beginning of their ids; may be repeated.",
)
@click.option("--candidate-id", multiple=True, metavar="ID", help="The same for the candidate's journals.")
@options.canary
@options.choice
@options.number(
    "--restart-sd",
    low=0,
    high=100,
    advice="give a percentage from 0 to 100, such as 1",
    metavar="PERCENT",
    help="Restart SD of one image; 0 if nothing was restarted. Without it, it is estimated from the starts.",
)
@click.option(
    "--same-unit",
    is_flag=True,
    help=f"Both files of numbers are in one unit, although one is more than {units.MOST_APART:g} times the other.",
)
@options.policy(FILES, "the interval")
@options.expect
@options.gate
@options.form("`github` is Markdown for a change request.")
@options.report
@options.junit_file
def command(
    baseline: str,
    candidate: str,
    more_baseline: tuple[str, ...],
    more_candidate: tuple[str, ...],
    baseline_id: tuple[str, ...],
    candidate_id: tuple[str, ...],
    canary: str,
    choice: Choice,
    restart_sd: float | None,
    same_unit: bool,
    policy: Policy,
    claimed: float | None,
    gate: Gate,
    form: str,
    report: str,
    junit_path: str,
) -> int:
    """Compare two files: is CANDIDATE slower than BASELINE, by how much, and why? Does it take more memory or energy?

    \b
      infercanary compare baseline.jsonl candidate.jsonl --html report.html
      infercanary compare old.csv new.csv --column latency_ms --restart-sd 1

    Both files are journals of probes (`journal:` in probe.yaml), or both are numbers: one number a line, a JSON array,
    JSON objects, CSV or TSV with a header, or single runs as load generators and benchmarks write them. The format is
    detected. Files may be packed with gzip. `-` is standard
    input.

    In a journal, the medians of steady runs count, start by start. The older file of a journal, FILE.1, is read with
    it. Two starts of one image differ, and the runs within one start do not show by how much: give several starts of
    each side, or --restart-sd. Two files of numbers count as one series without a restart between them, unless
    --restart-sd is given. Several files of numbers on a side count as one start each.
    """
    sides = ((baseline, *more_baseline), (candidate, *more_candidate))
    every = [path for side in sides for path in side]
    if every.count(STANDARD_INPUT) > 1:
        raise UsageError("compare: standard input (`-`) can be one file only; save the other")
    ids = (baseline_id, candidate_id)
    old, new = (
        read(paths, choice=choice, ids=picked, apart=every) for paths, picked in zip(sides, ids, strict=True)
    )
    both = _common(old, new, canary)
    if not (old.journal or same_unit):
        for before, after in both.values():
            if not (before.in_seconds and after.in_seconds):
                units.check_same(before.every, after.every, new.places[0])
    results = {
        name: with_claim(
            compare_runs(
                name,
                before,
                after,
                files=(old.places, new.places),
                restart_sd=None if restart_sd is None else restart_sd / 100,
                policy=policy,
                gate=gate,
            ),
            claimed,
            policy,
        )
        for name, (before, after) in both.items()
    }
    pictured = {
        name: (judged(before, policy), judged(after, policy)) for name, (before, after) in both.items()
    }
    notes = [*old.notes, *new.notes, *_alone(old, new, canary)]
    if restart_sd and restart_sd < _SMALL_SD:
        notes.append(f"--restart-sd {restart_sd:g} is {restart_sd:g} %: it is a percentage, so 1 % is 1")
    code = exit_codes.worst([each.exit_code for each in results.values()])
    if report:
        title = f"{' + '.join(old.places)} → {' + '.join(new.places)}"
        articles = [page.comparison(each, *pictured[name]) for name, each in results.items()]
        page.write(report, page.page(title, articles, notes, policy))
    if junit_path:
        junit.write(junit_path, results.values())
    texts = (text.comparison(each, *pictured[name], width()) for name, each in results.items())
    options.show(form, [*results.values()], texts, notes)
    return code


def _common(old: Recording, new: Recording, canary: str) -> dict[str, tuple[RecordedRuns, RecordedRuns]]:
    """Return the baseline's canaries with their runs on both sides; those that the candidate lacks come first.

    Raises:
        UsageError: The files are of different kinds, or have no canary in common.
    """
    if old.journal != new.journal:
        journal, numbers = (old, new) if old.journal else (new, old)
        raise UsageError(
            f"{journal.places[0]}: a journal, but {numbers.places[0]} holds numbers; give two of one kind"
        )
    before = pick(old, canary)
    after = pick(new, canary) if not canary or canary in new.canaries else {}
    if not old.journal and after.keys() == {""} and not after[""].runs:
        after = dict.fromkeys(before, after[""])  # all runs failed, of each column
    if not old.journal and before.keys() != after.keys():
        raise UsageError(
            f"{new.places[0]}: holds {_columns(after)}, and {old.places[0]} {_columns(before)}; give two files of "
            "one kind, or name a column with --column"
        )
    if not canary and not before.keys() & after.keys():
        raise UsageError(
            f"{new.places[0]}: no canary of {old.places[0]} is here; there: {listed(before)}; here: {listed(after)}"
        )
    # A canary that never ran or never opened must not go unnoticed before a deploy.
    order = sorted(before, key=lambda name: name in after)
    return {name: (before[name], after.get(name, _NOTHING)) for name in order}


def _columns(series: Mapping[str, RecordedRuns]) -> str:
    return "one series of numbers" if "" in series else listed(series)


def _alone(old: Recording, new: Recording, canary: str) -> list[str]:
    alone = [name for name in new.canaries if name not in old.canaries]
    if canary or not alone:
        return []
    return [f"{' and '.join(new.places)}: only here, and so not judged: {listed(alone)}"]
