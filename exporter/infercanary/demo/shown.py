"""What the demo shows of the exporter's metrics, as any client of them would read it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich import box
from rich.table import Table

Values = list[Sample]
Condition = Callable[[Values], bool]


def scrape(url: str) -> Values:
    """Ask the exporter for its metrics.

    Args:
        url: Of our own exporter, on loopback.

    Returns:
        Every sample.

    Raises:
        OSError: It does not answer within 10 s.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:  # noqa: S310 - our own exporter
        text = response.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def runs(values: Values) -> float:
    """How many runs the server's canary has had.

    Args:
        values: As scraped.
    """
    return max((s.value for s in _of(values, "infercanary_runs_total", outcome="ok")), default=0.0)


def verdict(values: Values) -> str:
    """The state of the judge's verdict; empty before there is one.

    Args:
        values: As scraped.
    """
    return _label(values, "infercanary_verdict", "verdict")


def sentence(values: Values) -> str:
    """The judge's words; empty before there are any.

    Args:
        values: As scraped.
    """
    return _label(values, "infercanary_verdict_info", "sentence")


def _of(values: Values, name: str, **labels: str) -> Iterator[Sample]:
    return (s for s in values if s.name == name and labels.items() <= s.labels.items())


def _label(values: Values, name: str, label: str) -> str:
    return next((s.labels[label] for s in _of(values, name, measure="latency") if s.value), "")


def table(values: Values) -> Table:
    """Draw each canary that is known, with its latency, its runs and what they cost.

    Args:
        values: As scraped.

    Returns:
        A row for each canary; one without numbers where there is none yet.
    """
    drawn = Table("container", "canary", "state", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("median", "IQR", "runs", "every"):
        drawn.add_column(column, justify="right", no_wrap=True)
    for state in _of(values, "infercanary_canary_state"):
        known = {name: label for name, label in state.labels.items() if name != "state"}
        if not state.value:
            continue
        names = ("infercanary_run_median_seconds", "infercanary_run_iqr_seconds")
        times = [_of(values, name, **known) for name in names]
        ended = _of(values, "infercanary_runs_total", **known, outcome="ok")
        canary = known.pop("canary")
        interval = _of(values, "infercanary_interval_seconds", **known)
        drawn.add_row(
            known["container"],
            canary,
            state.labels["state"],
            *(next((f"{s.value * 1e3:.2f} ms" for s in found), "–") for found in times),
            next((f"{s.value:.0f}" for s in ended), "0"),
            next((f"{s.value:.1f} s" for s in interval), "0.0 s"),
        )
    if not drawn.rows:
        drawn.add_row("demo", "…", "no report", *["–"] * 4)
    return drawn
