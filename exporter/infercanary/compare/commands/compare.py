"""``infercanary compare``: the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from infercanary.command import exit_codes
from infercanary.command.settings import UsageError
from infercanary.compare import options
from infercanary.compare.comparison import Gate, compare_runs, judged
from infercanary.compare.content import STANDARD_INPUT
from infercanary.compare.document import comparison_document
from infercanary.compare.options import Output
from infercanary.compare.read import pick, read
from infercanary.compare.recording import Attempts, RecordedRuns, RecordedSide, Recording, listed
from infercanary.judge.identity import Digests
from infercanary.judge.policy import FILES, Policy

if TYPE_CHECKING:
    from infercanary.compare.record import Recorder

_NOTHING = RecordedRuns((), attempts=Attempts(0, 0))
_MOST_APART = 20.0
"""Largest plausible ratio between two files of numbers. A larger ratio probably means different units, such as ms and
s. For comparison, a CPU-only wheel made a service 3.5 times slower.
"""


@click.command(
    name="compare",
    epilog=exit_codes.epilog(
        exit_codes.COMPARED,
        exit_codes.CLAIMED,
        exit_codes.SEVERAL,
        "A canary without a run in CANDIDATE is inconclusive. So is a canary with clearly more failed runs than "
        "before, unless it regressed.",
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
    help="Select an environment or boot of the baseline's journals by the beginning of its id; may be repeated.",
)
@click.option(
    "--candidate-id",
    multiple=True,
    metavar="ID",
    help="As --baseline-id, for the candidate's journals.",
)
@options.canary
@options.choice
@options.number(
    "--restart-sd",
    low=0,
    high=100,
    advice="give a percentage from 0 to 100, such as 1",
    convert=lambda percent: None if percent is None else percent / 100,
    metavar="PERCENT",
    help="Restart SD of one image; 0 if nothing was restarted. By default, this SD is estimated from the starts.",
)
@options.policy(FILES)
@options.expect
@options.gate
@options.record
@options.image
@options.output("github")
def command(
    baseline: str,
    candidate: str,
    more_baseline: tuple[str, ...],
    more_candidate: tuple[str, ...],
    baseline_id: tuple[str, ...],
    candidate_id: tuple[str, ...],
    canary: str,
    column: str,
    where: Sequence[tuple[str, str]],
    restart_sd: float | None,
    policy: Policy,
    claimed: float | None,
    gate: Gate,
    recorder: Recorder | None,
    digests: Digests,
    **output: Any,
) -> int:
    """Compare two files: is CANDIDATE slower than BASELINE, by how much, and why? Does it take more memory or energy?

    \b
      infercanary compare baseline.jsonl candidate.jsonl --html report.html
      infercanary compare old.csv new.csv --column latency_ms --restart-sd 1

    Both files are journals of probes (`journal:` in probe.yaml), or both contain numbers: one number per line, JSON,
    CSV or TSV with a header, or single runs in the format of a load generator. Files may be compressed with gzip; `-`
    is standard input.

    From a journal, the medians of steady runs are compared, with each start as one replicate. Starts of one image
    differ, and a single start does not show by how much. So give several starts of each side, or --restart-sd. Two
    files of numbers count as one series before and after a change, unless --restart-sd is given. With several files of
    numbers on a side, each file is one start.
    """
    sides = ((baseline, *more_baseline), (candidate, *more_candidate))
    every = [path for side in sides for path in side]
    if every.count(STANDARD_INPUT) > 1:
        raise UsageError("compare: standard input (`-`) can be only one file; save the other to disk")
    ids = (baseline_id, candidate_id)
    old, new = (
        read(paths, column=column, where=where, ids=picked, apart=every)
        for paths, picked in zip(sides, ids, strict=True)
    )
    documents = []
    notes = [*old.notes, *new.notes]
    for name, (before, after) in _common(old, new, canary).items():
        result = compare_runs(
            name,
            before,
            after,
            restart_sd=restart_sd,
            policy=policy,
            gate=gate,
            claimed=claimed,
        )
        if result.unit is None and not 1 / _MOST_APART <= 1 + (result.shift or 0.0) <= _MOST_APART:
            raise UsageError(
                f"{new.places[0]}: median {result.candidate.median:g}, and {result.baseline.median:g} in "
                f"{old.places[0]}: are both in the same unit, such as ms? Convert one file, or write the unit "
                "after each number (20ms)"
            )
        kept = judged(before), judged(after)
        documents.append(comparison_document(result, *kept, (old.places, new.places)))
        if recorder:
            both = RecordedSide(kept[0].starts), RecordedSide(kept[1].starts, digests=digests)
            recorder.add("compare", name, both, result)
    if not canary and (alone := [name for name in new.canaries if name not in old.canaries]):
        notes.append(f"{' and '.join(new.places)}: only in this file, so not judged: {listed(alone)}")
    title = f"{' + '.join(old.places)} → {' + '.join(new.places)}"
    code = Output(**output).show(documents, notes, title=title)
    if recorder:
        recorder.save()
    return code


def _common(old: Recording, new: Recording, canary: str) -> dict[str, tuple[RecordedRuns, RecordedRuns]]:
    """Return each canary of the baseline with its runs on both sides. Canaries missing in the candidate come first.

    Raises:
        UsageError: The files are of different kinds, or have no canary in common.
    """
    before = pick(old, canary)
    after = pick(new, canary) if not canary or canary in new.canaries else {}
    if not old.journal and after.keys() == {""} and not after[""].runs:
        after = dict.fromkeys(before, after[""])  # all runs failed, so all columns are equal
    are_common = before.keys() & after.keys() if old.journal else before.keys() == after.keys()
    if old.journal != new.journal or not (are_common or canary):
        there, here = (
            f"{'canaries ' * side.journal}{listed(side.canaries) or 'one series of numbers'}"
            for side in (old, new)
        )
        raise UsageError(
            f"{new.places[0]}: contains {here}, but {old.places[0]} contains {there}; give two files of the "
            "same kind with a common canary, or choose a --column"
        )
    # Users should notice a canary without new runs before a deploy, so such canaries come first.
    order = sorted(before, key=lambda name: name in after)
    return {name: (before[name], after.get(name, _NOTHING)) for name in order}
