"""`make dashboards-page`: what each board shows after an upgrade, in docs/dashboards.md below its marker."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog

from grafana.check import asking, node, tables
from grafana.queries import dashboards
from grafana.situations import backfill
from grafana.situations.worlds import SITUATIONS

PAGE = Path(__file__).parents[2] / "docs/dashboards.md"
MARKER = "<!-- Below here: make dashboards-page -->\n"
SITUATION = "upgraded"


def render() -> str:
    """All boards.

    Returns:
        Markdown.
    """
    situation = SITUATIONS[SITUATION]
    made = []
    with backfill.prometheus(situation) as prometheus:
        for board in dashboards().values():
            questions = [*asking.asked(board, situation, prometheus)]
            titles = [question["panel"]["title"] for question in questions]
            made.append(tables.board(board["title"], [*zip(titles, node.shown(questions), strict=True)]))
    return "\n".join(made)


def main() -> None:
    """Write it; exit with 2 where a program is missing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if why := node.missing() or backfill.missing():
        print(f"grafana.check.page: {why}", file=sys.stderr)
        sys.exit(2)
    above, marker, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    PAGE.write_text(f"{above}{marker}\n{render()}", encoding="utf-8")


if __name__ == "__main__":
    main()
