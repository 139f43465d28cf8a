"""`python -m grafana.check`: what is wrong with the boards, panel by panel, in each situation."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path

import click
import structlog

from grafana.check import asking, node
from grafana.queries import dashboards
from grafana.situations import backfill
from grafana.situations.worlds import SITUATIONS


@click.command()
@click.option("--board", "boards", multiple=True, type=click.Choice([*dashboards()]), help="Default: all.")
@click.option(
    "--situation", "situations", multiple=True, type=click.Choice([*SITUATIONS]), help="Default: all."
)
@click.option("--panel", default="", help="Only panels whose title has this in it.")
@click.option("--library", type=click.Choice(node.VERSIONS), default="compose", show_default=True)
@click.option("--page", default=node.PAGE, show_default=True, help="Width of the board in pixels.")
@click.option("--verbose", is_flag=True, help="Print all that a panel would show, as JSON.")
def main(
    boards: tuple[str, ...], situations: tuple[str, ...], panel: str, library: str, page: int, verbose: bool
) -> None:
    """Print the faults of the boards; exit with 1 where there are any."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if why := node.missing() or ", ".join(f"{program} is not installed" for program in backfill.missing()):
        click.echo(f"grafana.check: {why}", err=True)
        sys.exit(2)
    count = 0
    for name in situations or SITUATIONS:
        situation = SITUATIONS[name]
        with (
            tempfile.TemporaryDirectory() as folder,
            backfill.prometheus(situation, Path(folder)) as prometheus,
        ):
            for board, content in dashboards().items():
                if boards and board not in boards:
                    continue
                asked = [
                    a for a in asking.asked(content, situation, prometheus) if panel in a["panel"]["title"]
                ]
                for question, shows in zip(asked, node.shown(asked, library, page), strict=True):
                    title = question["panel"]["title"]
                    for fault in shows["faults"]:
                        click.echo(f"{name}: {board}: {title}: {fault['line']} [{fault['rule']}]")
                    count += len(shows["faults"])
                    if verbose:
                        click.echo(json.dumps(shows, indent=1, ensure_ascii=False))
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
