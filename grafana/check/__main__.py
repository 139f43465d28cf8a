"""`python -m grafana.check`: what is wrong with the boards, panel by panel, in each situation."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import structlog

from grafana.check import asking, node, tables
from grafana.prometheus import Prometheus
from grafana.queries import dashboards
from grafana.situations import backfill
from grafana.situations.worlds import SITUATIONS, Situation


@click.command()
@click.option("--board", "boards", multiple=True, type=click.Choice([*dashboards()]), help="Default: all.")
@click.option(
    "--situation", "situations", multiple=True, type=click.Choice([*SITUATIONS]), help="Default: all."
)
@click.option("--panel", default="", help="Only panels whose title has this in it.")
@click.option("--library", type=click.Choice(node.VERSIONS), default="compose", show_default=True)
@click.option("--page", default=node.PAGE, show_default=True, help="Width of the board in pixels.")
@click.option("--verbose", is_flag=True, help="Print all that a panel would show, too.")
def main(
    boards: tuple[str, ...], situations: tuple[str, ...], panel: str, library: str, page: int, verbose: bool
) -> None:
    """Print the faults of the boards; exit with 1 where there are any."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if why := node.missing() or backfill.missing():
        click.echo(f"grafana.check: {why}", err=True)
        sys.exit(2)
    count = 0
    for name in situations or SITUATIONS:
        with backfill.prometheus(SITUATIONS[name]) as prometheus:
            questions = [*_asked(SITUATIONS[name], prometheus, boards or [*dashboards()], panel)]
        panels = [question for _, question in questions]
        for (board, question), shows in zip(questions, node.shown(panels, library, page), strict=True):
            place = f"{name}: {board}: {question['panel']['title']}"
            for fault in shows["faults"]:
                click.echo(f"{place}: {fault['line']} [{fault['rule']}]")
            count += len(shows["faults"])
            if verbose:
                click.echo("\n".join([place, *tables.lines(shows), ""]))
    sys.exit(1 if count else 0)


def _asked(
    situation: Situation, prometheus: Prometheus, boards: Sequence[str], panel: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Board, and what one of its panels asks."""
    for board in boards:
        for question in asking.asked(dashboards()[board], situation, prometheus):
            if panel in question["panel"]["title"]:
                yield board, question


if __name__ == "__main__":
    main()
