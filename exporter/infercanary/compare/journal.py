"""Reads a probe's journal into starts of canaries. A run that was written twice counts once."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.recording import Attempts, RecordedRuns, Recording, at_most, listed, shown
from infercanary.contract import bounds
from infercanary.contract.journal import MARK, JournalEntry, decode
from infercanary.contract.profile import is_sound
from infercanary.contract.report import Run
from infercanary.contract.vocabulary import NOT_JUDGED
from infercanary.judge.model import Generation, Sample, Start, kept
from infercanary.judge.profiles import Packed, merged, of_runs
from infercanary.render.units import count

_MAX_LINES = 200_000  # three times the number of lines in a probe's two journal files
_MAX_LINE_BYTES = 1 << 20  # a probe's longest lines have a profile or an environment of 64 KiB
_MAX_CANARIES = 1_000  # a real probe has only a few canaries
_MAX_STARTS = 20_000  # two years with a start every hour
_MAX_COMPONENTS = 200_000  # sum over all environments; a real environment has fewer than 100


_Runs: TypeAlias = "dict[int, tuple[Sample, str]]"
"""Runs of one canary in one start: (run, environment id) by sequence number."""


class _Boot(msgspec.Struct):
    """Facts about one start that all its canaries share."""

    outputs: dict[str, tuple[float, ...]] = {}
    profiles: Packed = {}


def is_journal(data: bytes) -> bool:
    """True if the first line is a journal line, complete or truncated.

    Args:
        data: The whole file, or its beginning.
    """
    first = next((line for line in io.BytesIO(data) if line.strip()), b"").strip()
    is_other = first.startswith(b"{") and b'"boot_id"' in first and b'"environment"' in first
    return first.startswith(MARK) or is_other


def entries(place: str, data: bytes, notes: list[str]) -> Iterator[tuple[str, JournalEntry]]:
    """Yield each entry with its place. Lines truncated by a crash are left out and counted in a remark.

    Args:
        place: Name of the file, for messages.
        notes: List that gets a remark on left-out lines.

    Yields:
        ``FILE:LINE``, and the entry.

    Raises:
        UsageError: A line is not a journal line.
    """
    truncated = 0
    for at, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        at_most(_MAX_LINES, at, place, "lines")
        if len(line) > _MAX_LINE_BYTES:  # a decoded line takes many times the memory of its text
            raise UsageError(
                f"{place}:{at}: a line of more than 1 MiB, which no probe writes; remove the line"
            )
        try:
            yield f"{place}:{at}", decode(line)
        except msgspec.DecodeError as error:
            # After a killed process or a lost write, only the beginning of a line or zeros remain.
            if isinstance(error, msgspec.ValidationError) or not line.lstrip().startswith((b"{", b"\0")):
                raise UsageError(
                    f"{place}:{at}: not a line of a journal ({error}); remove the line"
                ) from None
            truncated += 1
    if truncated:
        notes.append(f"{place}: {count(truncated, 'truncated line')} left out")


def recording(
    places: Sequence[str],
    lines: Iterator[tuple[str, JournalEntry]],
    notes: list[str],
    ids: Sequence[str] = (),
) -> Recording:
    """Return the starts in ``lines``.

    Args:
        places: Names of the files, for messages.
        lines: Entries, each with its place.
        notes: Remarks on the files so far. The recording gets this list, with further remarks.
        ids: Prefixes of boot ids and environment ids. If given, only runs with these ids are read.

    Returns:
        The starts of each canary, in order of time, and the components of the environments.

    Raises:
        UsageError: There is no run, or no run with these ids.
    """
    samples: defaultdict[str, dict[str, _Runs]] = defaultdict(dict)  # starts by canary and boot
    boots: defaultdict[str, _Boot] = defaultdict(_Boot)
    components: dict[str, dict[str, str]] = {}
    failures: defaultdict[str, str] = defaultdict(str)
    known: dict[str, None] = {}
    unsound: list[str] = []
    described = 0
    for where, entry in lines:
        run = entry.run
        boot_id = (run and run.boot_id) or entry.boot_id
        boot = boots[boot_id]
        at_most(_MAX_STARTS, len(boots), where, "starts")
        if entry.components is not None:
            described += len(entry.components) * (entry.environment not in components)
            components[entry.environment] = entry.components
            at_most(_MAX_COMPONENTS, described, where, "components of environments")
            # Outputs are merged, because the first entries of a boot have no outputs and may be read last.
            boot.outputs.update(entry.outputs)
        if run is None:
            continue
        names = entry.environment, boot_id
        known |= dict.fromkeys(names)
        if ids and not any(name.startswith(tuple(ids)) for name in names):
            continue
        runs = samples[run.canary].setdefault(boot_id, {})
        at_most(_MAX_CANARIES, len(samples), where, "canaries")
        if run.profile is not None and is_sound(run.profile):
            boot.profiles = merged(boot.profiles, of_runs([run]))
        if not is_possible(where, run, unsound):
            continue
        sample = kept(run)
        runs[run.sequence] = sample, entry.environment
        if sample.failed and run.detail:
            failures[run.canary] = shown(run.detail, 400)  # the same limit as in the probe
    place = " and ".join(places)
    notes += summarized(unsound)
    if not samples:
        of = f" of {listed(ids)}; its environments and boots are: {listed(known, 8)}"
        raise UsageError(
            f"{place}: a journal without a run{of if known else '; wait for runs, or choose another file'}"
        )
    canaries = {
        name: _series(starts, boots, components)._replace(failure=failures[name])
        for name, starts in samples.items()
    }
    return Recording(places, True, canaries, components, notes)


def is_possible(where: str, run: Run, unsound: list[str]) -> bool:
    """True if a run's values are possible. Otherwise, add a remark to ``unsound``."""
    is_zero = min(run.latencies, default=1.0) < bounds.LEAST_SECONDS
    if wrong := bounds.fault(run) or "a latency of 0 s" * is_zero:
        unsound.append(f"{where}: an impossible run is left out ({wrong})")
    return not wrong


def summarized(unsound: Sequence[str]) -> list[str]:
    """Return one remark on all impossible runs."""
    return [f"{unsound[0]}; {count(len(unsound), 'impossible run')} in all"] if unsound else []


def _series(
    starts: Mapping[str, _Runs],
    boots: Mapping[str, _Boot],
    components: Mapping[str, dict[str, str]],
) -> RecordedRuns:
    every = [sample for runs in starts.values() for _, (sample, _) in sorted(runs.items())]
    attempted = [sample.failed for sample in every if sample.outcome != "busy"]
    found = []
    for boot_id, runs in starts.items():
        # Sequence numbers give the order, because someone may have set the wall clock.
        counted = [(sample, id_) for _, (sample, id_) in sorted(runs.items()) if sample.is_settled]
        if not counted:
            continue
        samples, ids = zip(*counted, strict=True)
        generation = Generation(
            service="",
            container="",
            boot_id=boot_id,
            started_at=samples[0].started_at,
            environment=components.get(ids[-1], {}),
            outputs=boots[boot_id].outputs,
            profiles=boots[boot_id].profiles,
        )
        began = [(i, id_) for i, id_ in enumerate(ids) if not i or id_ != ids[i - 1]]
        found.append((Start(generation, [*samples]), began))
    found.sort(key=lambda start: start[0].generation.started_at)
    return RecordedRuns(
        [np.array([s.median for s in start.samples], dtype=np.float64) for start, _ in found],
        [start for start, _ in found],
        [began for _, began in found],
        dict(Counter(_why(sample) for sample in every if not sample.is_settled)),
        Attempts(len(attempted), sum(attempted)),
    )


def _why(sample: Sample) -> str:
    """Return the reason for excluding a run."""
    why = next(filter(NOT_JUDGED.__contains__, sample.tags), "without latencies")
    return shown((why if sample.outcome == "ok" else sample.outcome).replace("_", " "))
