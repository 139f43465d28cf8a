"""What the demo shows of the exporter's metrics, as any client of them would read it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families
from rich import box
from rich.table import Table

Values = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""Sample → labels → value."""
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
    values: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return values


def runs(values: Values) -> float:
    """How many runs the server's canary has had.

    Args:
        values: As scraped.
    """
    counts = values.get("infercanary_runs_total", {})
    return max((n for labels, n in counts.items() if ("outcome", "ok") in labels), default=0.0)


def verdict(values: Values) -> str:
    """The state of the judge's verdict; empty before there is one.

    Args:
        values: As scraped.
    """
    return _of_latency(values, "infercanary_verdict", "verdict")


def sentence(values: Values) -> str:
    """The judge's words; empty before there are any.

    Args:
        values: As scraped.
    """
    return _of_latency(values, "infercanary_verdict_info", "sentence")


def _of_latency(values: Values, name: str, label: str) -> str:
    series = ((dict(labels), holds) for labels, holds in values.get(name, {}).items())
    return next((labels[label] for labels, holds in series if holds and labels["measure"] == "latency"), "")


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
    for labels, active in values.get("infercanary_canary_state", {}).items():
        known = dict(labels)
        if not active:
            continue
        state = known.pop("state")
        canary = tuple(sorted(known.items()))
        container = tuple(item for item in canary if item[0] != "canary")

        def milliseconds(name: str, key: tuple[tuple[str, str], ...] = canary) -> str:
            value = values.get(name, {}).get(key)
            return "–" if value is None else f"{value * 1e3:.2f} ms"

        ended = values.get("infercanary_runs_total", {}).get(
            tuple(sorted({**known, "outcome": "ok"}.items())), 0
        )
        interval = values.get("infercanary_interval_seconds", {}).get(container, 0)
        drawn.add_row(
            known["container"],
            known["canary"],
            state,
            milliseconds("infercanary_run_median_seconds"),
            milliseconds("infercanary_run_iqr_seconds"),
            f"{ended:.0f}",
            f"{interval:.1f} s",
        )
    if not drawn.rows:
        drawn.add_row("demo", "…", "no report", *["–"] * 4)
    return drawn
