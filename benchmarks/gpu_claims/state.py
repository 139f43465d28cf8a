"""State of a run in one file: outcomes of the finished steps, by device.

Users can copy the file to another machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VERSION = 1


def read(path: Path) -> dict[str, Any]:
    """Read the state; a missing file gives an empty state.

    Raises SystemExit with one line if the file has no valid state.
    """
    if not path.exists():
        return {"version": VERSION, "devices": {}}
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["version"] != VERSION or not isinstance(found["devices"], dict):
            raise ValueError(f"version {found['version']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"{path}: no state of `make gpu` ({error}); name another file: STATE=gpu.json"
        ) from None
    return found


def write(path: Path, state: dict[str, Any]) -> None:
    """Write the state in one atomic step, so that a kill leaves the earlier state."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    with beside.open("w") as file:
        json.dump(state, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
