"""The program in this folder: Grafana's library, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSIONS = ("compose", "newest")
"""Of Grafana's library: that of the Compose file, and the newest one that was checked (package.json)."""
PAGES = (1600, 420)
"""Pixels of a board's width: a screen and a phone."""


def missing() -> str:
    """What is missing to run it, and how to get it.

    Returns:
        One line; empty where nothing is.
    """
    if shutil.which("node") is None:
        return "node is not installed: apt-get install nodejs npm, then npm ci --prefix grafana/check"
    if not (HERE / "node_modules").is_dir():
        return "Grafana's library is not installed: npm ci --prefix grafana/check"
    return ""


def shown(
    panels: Sequence[Mapping[str, Any]], version: str = "compose", pages: Sequence[int] = PAGES
) -> list[dict[str, Any]]:
    """What Grafana would show.

    Args:
        panels: As :func:`.asking.asked` gives them.
        version: One of ``VERSIONS``.
        pages: Widths of the board in pixels; what is shown is that of the first one, the faults are of all.

    Returns:
        For each panel its kind, what it shows, and ``faults``: rule and line.

    Raises:
        RuntimeError: The program failed.
    """
    question = json.dumps({"library": version, "pages": pages, "panels": panels})
    command = ["node", str(HERE / "main.mjs")]
    done = subprocess.run(command, check=False, input=question, capture_output=True, text=True)  # noqa: S603
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["panels"]
    return found
