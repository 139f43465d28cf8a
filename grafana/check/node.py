"""Runs the program in this folder: Grafana's library, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSIONS = ("compose", "newest")
"""Versions of Grafana's library: the version in the Compose file, and the newest checked version (package.json)."""
PAGES = (1600, 420)
"""Widths of a dashboard in pixels: a screen and a phone."""


def missing() -> str:
    """Return the program's missing requirement and the command that installs it, or an empty text."""
    if shutil.which("node") is None:
        return "node is not installed: apt-get install nodejs npm, then npm ci --prefix grafana/check"
    if not (HERE / "node_modules").is_dir():
        return "Grafana's library is not installed: npm ci --prefix grafana/check"
    return ""


def shown(
    panels: Sequence[Mapping[str, Any]], version: str = "compose", pages: Sequence[int] = PAGES
) -> list[dict[str, Any]]:
    """Return the content that Grafana would render.

    Args:
        panels: Output of :func:`.asking.asked`.
        version: One of ``VERSIONS``.
        pages: Widths of the dashboard in pixels. The content is for the first width; the faults are for all
    widths.

    Returns:
        For each panel: its kind, its content, and ``faults`` (rule and line).

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
