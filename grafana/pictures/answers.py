"""What Prometheus answers to a dashboard: to each panel's queries, and where upgrades are marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grafana import empty
from grafana.prometheus import Answer, Prometheus, Refused
from grafana.queries import expression
from infercanary.command.settings import UsageError

SCRAPE_SECONDS = 5.0  # `timeInterval` of the provisioned data source
_STEPS = (5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
_POINTS = 600
_LENGTHS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Range(NamedTuple):
    """From when to when, in Unix time."""

    start: float
    end: float


class Series(NamedTuple):
    """A line, or a number: its query, its name in the legend, and its points (Unix time and value)."""

    reference: str
    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """A moment that is marked on time axes."""

    name: str
    at: float
    colour: str


class Answers:
    """Of one dashboard, with its variables as chosen.

    Args:
        prometheus: Where it is asked.
        name: The dashboard's, for messages.
        chosen: Variable → value.
        shown: The time range.
    """

    def __init__(self, prometheus: Prometheus, name: str, chosen: Mapping[str, str], shown: Range) -> None:
        self._prometheus, self._name, self._chosen, self._range = prometheus, name, chosen, shown

    def of(self, panel: Mapping[str, Any]) -> Sequence[Series]:
        """The series of a panel, query by query.

        Args:
            panel: Its JSON.

        Returns:
            Series with their names, also those without points.
        """
        step = interval(self._range, panel.get("interval"))
        return [
            Series(target["refId"], _legend(target, result.labels), result.labels, result.points)
            for target in panel["targets"]
            for result in self._ask(
                f"panel {panel['title']} {target['refId']}",
                target["expr"],
                None if target.get("instant") else step,
                step,
            ).results
        ]

    def why_empty(self, panel: Mapping[str, Any]) -> str:
        """Why a panel of which no query gave anything is empty where there is no GPU and no trouble.

        Args:
            panel: Its JSON.

        Returns:
            Reasons with commas between them; empty where it should not be empty.
        """
        places = (f"panel {panel['title']} {target['refId']}" for target in panel["targets"])
        reasons = {empty.why(f"{self._name}: {place}") for place in places}
        return ", ".join(sorted(filter(None, reasons)))

    def marks(self, annotations: Sequence[Mapping[str, Any]]) -> Sequence[Mark]:
        """What the annotations mark in the range, each moment once.

        Args:
            annotations: Their JSON.

        Returns:
            Marks with their moments in Unix seconds.
        """
        found = {}
        for annotation in annotations:
            step = interval(self._range, annotation["target"].get("interval"))
            answer = self._ask(f"annotation {annotation['name']}", annotation["target"]["expr"], step, step)
            for at in _moments(answer, step, bool(annotation.get("useValueForTime"))):
                if self._range.start <= at <= self._range.end:
                    mark = Mark(annotation["name"], at, annotation["iconColor"])
                    found[mark.name, round(at)] = mark
        return [*found.values()]

    def _ask(self, place: str, raw: str, step: float | None, resolution: float) -> Answer:
        start, end = self._range
        rate = max(resolution + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)
        values = {
            "__range": f"{end - start:.0f}s",
            "__interval": f"{resolution:.0f}s",
            "__rate_interval": f"{rate:.0f}s",
        }
        asked = expression(raw, {**values, **self._chosen})
        try:
            if step is None:
                return self._prometheus.at(asked, end)
            # Grafana's ranges begin and end at whole steps.
            return self._prometheus.over(asked, start // step * step, end // step * step, step)
        except Refused as error:
            raise UsageError(f"{self._name}: {place}: {error}; {asked}") from None


def seconds(text: str) -> float:
    """A length of time as Prometheus writes it: 90s, 30m, 6h, 2d.

    Args:
        text: One whole number with its unit.

    Raises:
        UsageError: It is none, or zero.
    """
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found or int(found[1]) == 0:
        raise UsageError(f"{text}: not a length of time; write it as 30m, 6h or 2d")
    return float(found[1]) * _LENGTHS[found[2]]


def interval(shown: Range, least: str | None) -> float:
    """Seconds between points, no less than the panel's own least.

    Args:
        shown: The range that is shown.
        least: As Prometheus writes it; None for the time between scrapes.

    Returns:
        One of a few round steps.
    """
    wanted = max((shown.end - shown.start) / _POINTS, seconds(least) if least else SCRAPE_SECONDS)
    return next((float(step) for step in _STEPS if step >= wanted), float(_STEPS[-1]))


def _legend(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    form = str(target.get("legendFormat") or "__auto")
    if form == "__auto":
        return ", ".join(labels.values()) or str(target["refId"])
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), form).strip()


def _moments(answer: Answer, step: float, by_value: bool) -> Iterator[float]:
    """When something began: a series' value, or the first of points that follow one another."""
    for result in answer.results:
        before = float("-inf")
        for at, value in result.points:
            if by_value:
                yield value / 1000
            elif at - before > 1.5 * step:
                yield at
            before = at
