"""State file: keeps finished experiments, so that the same command can continue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from infercanary.bisect.search import Outcome
from infercanary.command.settings import UsageError
from infercanary.judge.shift import Shift
from infercanary.pages import html


class State(msgspec.Struct):
    """Finished experiments: the comparison of A and B, and the mixtures."""

    sides: str
    """Digest of both sides."""
    canary: str
    verdict: str
    shift: float
    """Ratio."""
    pairs: Sequence[Shift]
    """Shift of each pair of A and B."""
    outputs: Sequence[Sequence[float]]
    """Outputs of two pairs of starts: A, B, A, B."""
    outcomes: list[Outcome] = []


def read_state(path: str, sides: str) -> State | None:
    """Read the state from a file; None if the file does not exist.

    Args:
        path: Name of the file; may be empty.
        sides: Digest of both sides.

    Raises:
        UsageError: The file cannot be read, or has another digest.
    """
    if not os.path.exists(path):
        return None
    try:
        state = msgspec.json.decode(Path(path).read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--state {path}: cannot be read ({error}); name another file") from None
    if state.sides != sides:
        raise UsageError(f"--state {path}: belongs to other images or settings; name another file")
    return state


def write_state(path: str, state: State) -> None:
    """Replace the file ``path``; an empty path writes nothing."""
    if path:
        html.write(f"{path}.new", msgspec.json.encode(state).decode(), "--state")
        os.replace(f"{path}.new", path)
