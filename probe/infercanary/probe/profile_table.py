"""``infercanary probe --profile``: which operators each canary's time goes to, as a table for a person."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from infercanary.command.exit_codes import ExitCode
from infercanary.contract.profile import NO_CUPTI, Profile
from infercanary.contract.text import printable, shortened
from infercanary.probe import shown
from infercanary.probe.loop import Probe
from infercanary.probe.shown import time_text

log = logging.getLogger("infercanary.probe")

_LEAST_WIDTH, _MOST_WIDTH = 120, 160
_SHAPES = 12  # columns at least, or they are left out
_STATES = {
    NO_CUPTI: "the driver does not let CUPTI time kernels: operators are shown by the host's time. On the host set "
    "NVreg_RestrictProfilingToAdminUsers=0 for the driver, or give the container CAP_SYS_ADMIN"
}


def show(probe: Probe, trace: Path | None) -> int:
    """Open every canary, profile each, and print the tables.

    Args:
        probe: One that was not opened yet.
        trace: Where the engine's trace is written; None for nowhere.

    Returns:
        The exit code: 3 where a canary has no profile.

    Raises:
        UsageError: A canary cannot be opened by the user's mistake; the others were profiled and printed before.
    """
    mistake = shown.opened(probe)
    log.info("profiling every canary")
    found = probe.profile(trace)
    shown.show(render(found, shown.columns(_LEAST_WIDTH, _MOST_WIDTH)))
    if mistake is not None:
        raise mistake
    return ExitCode.INCONCLUSIVE if any(isinstance(each, str) for each in found.values()) else ExitCode.FINE


def render(found: Mapping[str, Profile | str], width: int = _LEAST_WIDTH) -> str:
    """Write the profiles as text.

    Args:
        found: Canary → its profile, or why there is none.
        width: Columns.

    Returns:
        Lines that a terminal can show; the last one ends with a line end.
    """
    blocks = ["\n".join(_block(name, profile, width)) for name, profile in found.items()]
    text = "\n\n".join(blocks) + "\n"
    return "\n".join(printable(line.rstrip()) for line in text.replace("\xa0", " ").split("\n"))


def _block(name: str, profile: Profile | str, width: int) -> Iterator[str]:
    if isinstance(profile, str):
        yield f"canary {name}: no profile: {profile}"
        return
    wall = median(profile.wall)
    when = datetime.fromtimestamp(profile.taken_at, timezone.utc)
    repeats = f"{profile.repeats} repeat{'' if profile.repeats == 1 else 's'}"
    yield (
        f"canary {name}: {repeats} profiled by {profile.engine}, {when:%Y-%m-%d %H:%M:%S} UTC; "
        f"median {time_text(wall)} an inference, with what the profiler adds"
    )
    if profile.state in _STATES:
        yield f"  {_STATES[profile.state]}"
    rows = [("operator", "by", "device", "calls", "time", "share", "allocates", "shapes")]
    for row in profile.rows:
        by = "" if row.name == row.kind else row.name
        time, share = _both(row.seconds, wall)
        rows.append(
            (row.kind, by, row.device, f"{row.calls:g}", time, share, _size(row.allocated), row.shapes)
        )
    if any(profile.rest):
        rows.append(("other operators", "", "", "", *_both(profile.rest, wall), "", ""))
    rows.append(("outside operators", "", "", "", *_both(profile.outside, wall), "", ""))
    yield from _columns(rows, width)


def _both(seconds: Sequence[float], wall: float) -> tuple[str, str]:
    """The median, and its share of the whole."""
    middle = median(seconds)
    return time_text(middle), f"{100 * middle / wall:.1f} %" if wall > 0 else ""


def _size(allocated: float) -> str:
    return f"{allocated / 2**20:.3f} MiB" if allocated else ""


def _columns(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """In columns, numbers to the right; the last column has what is left of the width."""
    most = (32, 32, 24, 8, 10, 8, 12)
    widths = [min(most[i], max(len(row[i]) for row in rows)) for i in range(len(most))]
    left = width - sum(widths) - 2 * (len(most) + 1)
    for row in rows:
        cells = [
            f"{shortened(text, size):>{size}}" if i >= 3 else f"{shortened(text, size):<{size}}"
            for i, (text, size) in enumerate(zip(row, widths, strict=False))
        ]
        shapes = shortened(row[-1], left) if left >= _SHAPES and row[-1] else ""
        yield "  " + "  ".join([*cells, shapes])
