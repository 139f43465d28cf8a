"""`python -m grafana.check`: lists the faults of the dashboards, panel by panel, in each situation."""

from __future__ import annotations

import logging
import sys

import click
import structlog

from grafana.check import asking, node, tables
from grafana.queries import dashboards
from grafana.situations import backfill
from grafana.situations.worlds import SITUATIONS


@click.command()
@click.option("--board", "boards", multiple=True, type=click.Choice([*dashboards()]), help="All by default.")
@click.option(
    "--situation", "situations", multiple=True, type=click.Choice([*SITUATIONS]), help="All by default."
)
@click.option("--panel", default="", help="Only panels whose title contains this text.")
@click.option("--library", type=click.Choice(node.VERSIONS), default="compose", show_default=True)
@click.option(
    "--page", "pages", multiple=True, type=int, default=node.PAGES, show_default=True, help="Width in pixels."
)
@click.option("--verbose", is_flag=True, help="Also print everything that a panel would show.")
def main(
    boards: tuple[str, ...],
    situations: tuple[str, ...],
    panel: str,
    library: str,
    pages: tuple[int, ...],
    verbose: bool,
) -> None:
    """Print the number and size of each dashboard's queries, and its faults; exit with 1 if there are faults."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if why := node.missing() or backfill.missing():
        click.echo(f"grafana.check: {why}", err=True)
        sys.exit(2)
    count = 0
    for name in situations or SITUATIONS:
        with backfill.prometheus(SITUATIONS[name]) as prometheus:
            for board in boards or dashboards():
                content = dashboards()[board]
                questions = [*asking.asked(content, SITUATIONS[name], prometheus)]
                faults, lines = [], []
                for question, shows in zip(questions, node.shown(questions, library, pages), strict=True):
                    title = question["panel"]["title"]
                    if panel in title:
                        faults += [f"{title}: {tables.fault(fault)}" for fault in shows["faults"]]
                        lines += ["", title, *tables.lines(shows)] if verbose else []
                queries, size = asking.load(content, questions)
                if queries > asking.QUERIES or size > asking.BYTES:
                    faults.append(f"sends more than {asking.QUERIES} queries or {asking.BYTES:,} bytes")
                first = ", ".join(tables.on_phone(content)[:3])
                click.echo(
                    f"{name}: {board}: {queries} queries, {size:,} bytes of PromQL; first on a phone: {first}"
                )
                click.echo(
                    "".join(f"{name}: {board}: {fault}\n" for fault in faults) + "\n".join(lines), nl=verbose
                )
                count += len(faults)
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
