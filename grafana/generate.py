"""`make dashboards`: writes Grafana's files from the code and from Prometheus' rules."""

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
"""All dashboards. To add a dashboard, add its module here."""


def files() -> dict[Path, str]:
    """Return the content of all files by path: dashboards and alert rules."""
    dashboards = {JSON / f"{board.name}.json": render(board) for board in BOARDS}
    return dashboards | alerting.files()


def render(board: Board) -> str:
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
