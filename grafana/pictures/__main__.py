"""``python -m grafana.pictures``: a picture of each dashboard, from a Prometheus that has something to show."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from grafana.pictures.answers import Answers, Range, seconds
from grafana.pictures.sheet import sheet
from grafana.prometheus import Prometheus
from grafana.queries import dashboards, expression
from infercanary.command.settings import UsageError


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--prometheus", "url", default="http://127.0.0.1:9090", help="The Prometheus to ask.")
@click.option("--service", required=True, help="For dashboards that show one service; the others show all.")
@click.option("--canary", default="", help="Likewise; the service's first where none is named.")
@click.option("--range", "span", default="1h", help="How far back: 30m, 6h, 2d.")
@click.option(
    "--end", default="", help="The last moment shown, as 2026-01-31T12:00:00Z; now where none is named."
)
@click.option("--dashboard", "only", multiple=True, help="Only this one; may be repeated.")
@click.option("--out", default="docs/img", help="The folder for grafana-NAME.png.")
def command(
    url: str, service: str, canary: str, span: str, end: str, only: tuple[str, ...], out: str
) -> None:
    """Pictures of the dashboards, from a Prometheus that has something to show."""
    prometheus, found = Prometheus(url), dashboards()
    if unknown := {*only} - found.keys():
        raise UsageError(f"--dashboard {unknown.pop()}: there is none; known: {', '.join(found)}")
    last = _moment(end)
    shown = Range(last - seconds(span), last)
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        for name in only or found:
            chosen = _chosen(prometheus, found[name], service, canary, shown)
            answers = Answers(prometheus, name, _matched(found[name], chosen), shown)
            path = Path(out) / f"grafana-{name}.png"
            sheet(found[name], answers, chosen, shown, path)
            click.echo(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror}); name another folder") from None


def _moment(text: str) -> float:
    if not text:
        return time.time()
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise UsageError(f"--end {text}: not a moment; write it as 2026-01-31T12:00:00Z") from None


def _chosen(
    prometheus: Prometheus, dashboard: Mapping[str, Any], service: str, canary: str, shown: Range
) -> Mapping[str, str]:
    """Values of the variables that take one."""
    chosen: dict[str, str] = {}
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        if variable["type"] != "query" or variable.get("multi"):
            continue
        asked = expression(variable["query"], {key: _pattern(value) for key, value in chosen.items()})
        seen = prometheus.over(asked, *shown, max(5.0, (shown.end - shown.start) / 100)).results
        known = sorted({result.labels[name] for result in seen if result.labels.get(name)})
        wanted = {"service": service, "canary": canary}.get(name) or next(iter(known), "")
        if wanted not in known:
            there = ", ".join(known) or "none; does it scrape an exporter?"
            raise UsageError(
                f"--{name} {wanted}: {prometheus.url} has none of that name then; it has {there}"
            )
        chosen[name] = wanted
    return chosen


def _matched(dashboard: Mapping[str, Any], chosen: Mapping[str, str]) -> Mapping[str, str]:
    """Values of all variables as patterns: what was chosen, what a list begins with, and else all."""
    listed = {
        variable["name"]: str(variable["current"]["value"])
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "custom"
    }
    return listed | {name: _pattern(value) for name, value in chosen.items()}


def _pattern(value: str) -> str:
    """That matches the value alone; the backslash is PromQL's own sign too, hence two."""
    return re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value)


def main() -> None:
    """The entry point: a mistake of the user's is one line on standard error, and exit code 2."""
    try:
        code = command(standalone_mode=False)
    except UsageError as error:
        click.echo(f"grafana.pictures: {error}", err=True)
        code = 2
    except click.ClickException as error:
        error.show()
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
