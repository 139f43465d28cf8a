"""Reads a probe's journal into starts of canaries. Each run counts once, also if it was written twice."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.recording import Attempts, RecordedRuns, Recording, at_most, listed, shown
from infercanary.contract import bounds
from infercanary.contract.journal import MARK, JournalEntry, decode
from infercanary.contract.profile import is_sound
from infercanary.contract.report import Run
from infercanary.judge.model import Generation, Sample, Start, kept
from infercanary.judge.profiles import Packed, merged, of_runs

_MAX_LINES = 200_000  # three times what the two files of a probe's journal hold
_MAX_LINE_BYTES = 1 << 20  # a probe's longest have a profile or an environment, 64 KiB
_MAX_CANARIES = 1_000  # a probe has a few
_MAX_STARTS = 20_000  # a start an hour for two years
_MAX_COMPONENTS = 200_000  # of all environments; one has fewer than 100
_NAMED = 5  # runs that are left out have a note of their own
_DETAIL = 400  # characters, as a probe writes at most

_Runs: TypeAlias = "dict[int, tuple[Sample, str]]"
"""Of one canary in one boot: sequence → the run, and its environment."""


class _Named(msgspec.Struct):
    """What each line has; the rest is not taken apart, for it may be of any size."""

    boot_id: msgspec.Raw
    environment: msgspec.Raw


def is_journal(data: bytes) -> bool:
    """Return whether the first line is one of a journal, complete or truncated.

    Args:
        data: The whole file, or its beginning.
    """
    first = next((line for line in io.BytesIO(data) if line.strip()), b"").strip()
    if first.startswith(MARK):
        return True
    try:
        msgspec.json.decode(first, type=_Named)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def entries(place: str, data: bytes, notes: list[str]) -> Iterator[tuple[str, JournalEntry]]:
    """Yield each line with its place. Lines that a crash truncated are left out, and counted in ``notes``.

    Args:
        place: The file's name, for messages.
        data: The whole file.
        notes: Gets a remark on what was left out.

    Yields:
        ``FILE:LINE``, and the entry.

    Raises:
        UsageError: A line is not one of a journal.
    """
    truncated = 0
    for at, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        if len(line) > _MAX_LINE_BYTES or at > _MAX_LINES:  # read, each takes many times its size
            at_most(_MAX_LINES, at, place, "lines")
            raise UsageError(f"{place}:{at}: a line of more than 1 MiB, which no probe writes; take it out")
        try:
            yield f"{place}:{at}", decode(line)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{place}:{at}: not a line of a journal ({error}); keep other lines out of it"
            ) from None
        except msgspec.DecodeError:
            # A killed process or a lost write leaves the beginning of a line, or zeros.
            if not line.lstrip().startswith((b"{", b"\0")):
                raise UsageError(
                    f"{place}:{at}: not a line of a journal; keep other lines out of it"
                ) from None
            truncated += 1
    if truncated:
        notes.append(f"{place}: {truncated} truncated line{'s' if truncated > 1 else ''} left out")


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
        notes: Remarks on the files so far; they become the recording's.
        ids: Prefixes of ids; with them, only runs of those boots and environments.

    Returns:
        The starts of each canary, in order of time; the environments' components.

    Raises:
        UsageError: There is no run, or none with these ids, or a latency that cannot be one.
    """
    samples: dict[str, dict[str, _Runs]] = {}  # by canary and boot
    profiles: dict[str, Packed] = {}
    said: dict[str, str] = {}
    components: dict[str, dict[str, str]] = {}
    outputs: dict[str, dict[str, tuple[float, ...]]] = {}
    known: Counter[str] = Counter()
    boots: set[str] = set()
    unsound: list[str] = []
    described = 0
    for where, entry in lines:
        if entry.components is not None:
            described += len(entry.components) * (entry.environment not in components)
            components[entry.environment] = entry.components
            at_most(_MAX_COMPONENTS, described, where, "components of environments", "the journal")
            # Not replaced: files may be named in any order, and at first nothing is known.
            outputs.setdefault(entry.boot_id, {}).update(entry.outputs)
        if entry.run is None:
            continue
        boot_id = entry.run.boot_id or entry.boot_id
        known.update((entry.environment, boot_id))
        boots.add(boot_id)
        at_most(_MAX_STARTS, len(boots), where, "starts", "the journal")
        if ids and not (entry.environment.startswith(tuple(ids)) or boot_id.startswith(tuple(ids))):
            continue
        runs = samples.setdefault(entry.run.canary, {}).setdefault(boot_id, {})
        at_most(_MAX_CANARIES, len(samples), where, "canaries, each with its comparison", "the journal")
        if entry.run.profile is not None and is_sound(entry.run.profile):
            profiles[boot_id] = merged(profiles.get(boot_id, {}), of_runs([entry.run]))
        if wrong := bounds.fault(msgspec.structs.replace(entry.run, latencies=())):
            unsound.append(f"{where}: a run that cannot be is left out ({wrong})")
            continue
        sample = sample_of(where, entry.run)
        runs[entry.run.sequence] = sample, entry.environment
        if sample.failed and entry.run.detail:
            said[sample.canary] = shown(entry.run.detail, _DETAIL)
    place = " and ".join(places)
    notes += unsound[:_NAMED]
    if len(unsound) > _NAMED:
        notes.append(f"{place}: {len(unsound)} such runs in all")
    if not known:
        raise UsageError(f"{place}: a journal without a run; wait for some, or name another")
    if not samples:
        raise UsageError(
            f"{place}: no run of {listed(ids)}; its environments and boots are: {listed(known, 8)}"
        )
    canaries = {
        name: _series(boots, components, outputs, profiles)._replace(failure=said.get(name, ""))
        for name, boots in samples.items()
    }
    return Recording(places, True, canaries, components, notes)


def _series(
    boots: dict[str, _Runs],
    components: dict[str, dict[str, str]],
    outputs: dict[str, dict[str, tuple[float, ...]]],
    profiles: dict[str, Packed],
) -> RecordedRuns:
    left_out: Counter[str] = Counter()
    begun = failed = 0
    found = []
    for boot_id, runs in boots.items():
        # By sequence: the wall clock may have been set meanwhile.
        ordered = [run for _, run in sorted(runs.items())]
        attempted = [sample for sample, _ in ordered if sample.outcome != "busy"]
        begun += len(attempted)
        failed += sum(sample.failed for sample in attempted)
        left_out.update(_why(sample) for sample, _ in ordered if not sample.is_settled)
        counted = [(sample, environment) for sample, environment in ordered if sample.is_settled]
        if not counted:
            continue
        began = [(i, now) for i, (_, now) in enumerate(counted) if not i or now != counted[i - 1][1]]
        generation = Generation(
            service="",
            container="",
            boot_id=boot_id,
            started_at=counted[0][0].started_at,
            environment=components.get(began[-1][1], {}),
            outputs=outputs.get(boot_id, {}),
            profiles=profiles.get(boot_id, {}),
        )
        found.append((Start(generation, [sample for sample, _ in counted]), began))
    found.sort(key=lambda start: start[0].generation.started_at)
    points = [np.array([s.median for s in start.samples], dtype=np.float64) for start, _ in found]
    return RecordedRuns(
        points,
        [start for start, _ in found],
        [began for _, began in found],
        dict(left_out),
        Attempts(begun, failed),
    )


def sample_of(where: str, run: Run) -> Sample:
    """Return a run as the judge takes it.

    Args:
        where: Its place, for messages.
        run: As it was written.

    Returns:
        The sample; its median is None where it has no latency.

    Raises:
        UsageError: A latency cannot be one.
    """
    for seconds in run.latencies:
        if not bounds.LEAST_SECONDS <= seconds <= bounds.MOST_SECONDS:
            raise UsageError(
                f"{where}: {seconds:g} s is not a latency: those are finite and above zero; take it out"
            )
    return kept(run)


def _why(sample: Sample) -> str:
    """Return why a run does not count."""
    if sample.outcome != "ok":
        return shown(sample.outcome.replace("_", " "))
    alone = (tag for tag in sample.tags if not msgspec.structs.replace(sample, tags=(tag,)).is_settled)
    return next(alone, "without latencies").replace("_", " ")
