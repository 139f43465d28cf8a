"""Additional files of a release: bill of materials, hashes, and pinned images."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def pyproject() -> dict[str, Any]:
    # The import needs the name as text: tomllib exists only from Python 3.11 on, and mypy checks for 3.10.
    tomllib = import_module("tomllib")
    found: dict[str, Any] = tomllib.loads(
        (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    )
    return found
