"""Writes what Grafana reads, out of the code and out of Prometheus' rules: `make dashboards`."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import alerting
from grafana.dashboards import fleet, host, itself, service
from grafana.dashboards.board import Board

HERE = Path(__file__).parent
JSON = HERE / "dashboards/json"
BOARDS: tuple[Board, ...] = tuple(module.board() for module in (fleet, service, host, itself))
"""Every dashboard: a new one is a module and its name here."""


def files() -> dict[Path, str]:
    """Path → what is to be in it.

    Returns:
        Path → the whole text, of dashboards and of alert rules.
    """
    dashboards = {JSON / f"{board.name}.json": render(board) for board in BOARDS}
    return dashboards | alerting.files()


def render(board: Board) -> str:
    """A dashboard as JSON.

    Args:
        board: Not yet built.
    """
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write them all."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
