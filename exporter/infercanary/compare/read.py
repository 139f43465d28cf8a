"""Reads files into recordings. The content of a file, not its name, decides its kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from infercanary.command.settings import UsageError
from infercanary.compare import journal
from infercanary.compare.content import STANDARD_INPUT, content, named
from infercanary.compare.journal import entries, is_journal
from infercanary.compare.recording import Attempts, RecordedRuns, Recording, listed, shown
from infercanary.compare.rows import File
from infercanary.compare.table import numbers
from infercanary.contract.journal import JournalEntry


def read(
    paths: Sequence[str],
    *,
    column: str = "",
    where: Sequence[tuple[str, str]] = (),
    ids: Sequence[str] = (),
    apart: Collection[str] = (),
) -> Recording:
    """Read the files of one side. A file of numbers is one start; a journal names the start of each run.

    The older part of a journal, ``PATH.1``, is read with the journal.

    Args:
        paths: Files of one kind, journals or numbers; ``-`` is standard input.
        column: Column or key of the latencies; empty if there is only one column, or if the layout is known.
        where: Columns and values of the counted rows.
        ids: Prefixes of boot ids and environment ids. If given, only runs with these ids are read from a journal.
        apart: All files that the user named, which are not read again as the older part of a journal.

    Returns:
        The recording, with remarks on the files.

    Raises:
        UsageError: A file cannot be read, or has an unknown content.
    """
    places = [named(path) for path in paths]
    place = " and ".join(places)
    texts = {path: content(path) for path in dict.fromkeys(paths)}
    kinds = {is_journal(text): named(path) for path, text in texts.items()}
    if len(kinds) > 1:
        raise UsageError(
            f"{kinds[True]}: a journal, but {kinds[False]} contains numbers; give only journals, or only numbers"
        )
    notes: list[str] = []
    if True in kinds:
        if column or where:
            raise UsageError(f"{place}: a journal has no columns; remove --column and --where")
        return journal.recording(places, journal_lines(texts, apart, notes), notes, ids)
    if ids:
        raise UsageError(
            f"{place}: numbers have no ids of boots or environments; remove --baseline-id or --candidate-id"
        )
    files = [numbers(File(named(path), notes, column, where), text) for path, text in texts.items()]
    if any(series.keys() != files[0].keys() for series in files):
        raise UsageError(
            f"{place}: the files have different columns; name one column for each file with --column"
        )
    joined = {name: _joined([series[name] for series in files]) for name in files[0]}
    return Recording(places, False, joined, {}, notes)


def _joined(files: Sequence[RecordedRuns]) -> RecordedRuns:
    """Join the runs of several files of numbers. Each file is one start."""
    begun = [runs.attempts.begun for runs in files if runs.attempts]
    failed = sum(runs.left_out.get("failed", 0) for runs in files)
    return RecordedRuns(
        [start for runs in files for start in runs.points],
        left_out={"failed": failed} if failed else {},
        attempts=Attempts(sum(begun), failed) if begun else None,
        failure=max(runs.failure for runs in files),
        in_seconds=all(runs.in_seconds for runs in files),
    )


def pick(recording: Recording, canary: str) -> dict[str, RecordedRuns]:
    """Return the series to judge: all series, or only the series of ``canary``.

    Args:
        recording: Recording of one side.
        canary: Name of a canary; empty for all.

    Returns:
        Runs by canary; for numbers, the name of the canary is empty.

    Raises:
        UsageError: There is no such canary.
    """
    if not canary:
        return dict(recording.canaries)
    if canary in recording.canaries:
        return {canary: recording.canaries[canary]}
    names = listed(recording.canaries) or "none (a file of numbers)"
    raise UsageError(f"{' and '.join(recording.places)}: no canary `{shown(canary)}`; there are: {names}")


def journal_lines(
    texts: Mapping[str, bytes], apart: Collection[str], notes: list[str]
) -> Iterator[tuple[str, JournalEntry]]:
    """Yield the lines of journals. The older part of a journal (``PATH.1``) comes before the journal.

    Args:
        texts: Content of the journals, by path.
        apart: All files that the user named, which are not read again as the older part of a journal.
        notes: List that gets remarks on additional files and on left-out lines.

    Yields:
        ``FILE:LINE``, and the entry.

    Raises:
        UsageError: A line is not a journal line, or an older file cannot be read.
    """
    beside = {Path(path).absolute() for path in apart}
    for path, text in texts.items():
        older = Path(f"{path}.1")
        if path != STANDARD_INPUT and older.is_file() and older.absolute() not in beside:
            before = content(str(older)) if older.stat().st_size else b""
            if is_journal(before):
                yield from entries(str(older), before, notes)
                notes.append(f"{older}: also read, as the older part of {named(path)}")
        yield from entries(named(path), text, notes)
