"""Give the shipped Compose stack its own troubles, each alone and all at once, twice in a row: what is said of each.

The stack keeps its store from the first trouble to the last, so that what one trouble taught the judge is there for the
next one. A trouble ends when everything that is expected of it was seen, and the rest of its time is not waited for.
Each change of a service's verdict and each alert is a line, and the table at the end is for the results folder. Exits
with 1 where an expected alert did not come, or where an image was blamed that is the same as before.

Needs Docker with Compose, and the file's ports. Everything that it starts is removed, with volumes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from stack import ALERTS, BASELINE_RUNS, EXPORTER, compose, runs, within

REGRESSED, CUDA, SHARED = "InferCanaryImageRegressed", "InferCanaryCudaMissing", "InferCanarySharedCores"
BASE = ("socket-proxy", "exporter", "prometheus", "alertmanager", "classify", "moderate")
TICK_SECONDS = 5.0
LEAST_SECONDS = 150.0  # what fires longer than this fires for this trouble, not only for the one before it
LEAST_RUNS = 12  # of each container of a service whose image is to be blamed
SETTLE_SECONDS = 60.0  # after what was expected came, and after a trouble is removed


class Trouble(NamedTuple):
    """What is started, and what must be said within ``seconds``."""

    name: str
    services: tuple[str, ...]
    alerts: frozenset[tuple[str, str]]
    """Service and alert."""
    seconds: float


UPGRADE = Trouble("upgrade", ("broken-upgrade",), frozenset({("classify", REGRESSED)}), 600)
WHEEL = Trouble("wheel", ("broken-wheel",), frozenset({("broken-wheel", CUDA)}), 300)
NEIGHBOUR = Trouble(
    "neighbour", ("broken-crowded", "broken-neighbour"), frozenset({("broken-crowded", SHARED)}), 900
)
ALL = Trouble(
    "all at once",
    UPGRADE.services + WHEEL.services + NEIGHBOUR.services,
    UPGRADE.alerts | WHEEL.alerts | NEIGHBOUR.alerts,
    900,
)
TROUBLES = (UPGRADE, WHEEL, NEIGHBOUR, ALL)


class Row(NamedTuple):
    """What was said of a service while a trouble lasted."""

    trouble: str
    service: str
    sentence: str
    alerts: dict[str, float]
    """Name → seconds after the trouble began."""

    def __str__(self) -> str:
        alerts = ", ".join(f"{name} ({after:.0f} s)" for name, after in self.alerts.items()) or "none"
        return f"| {self.trouble} | {self.service} | {self.sentence} | {alerts} |"


def sentences() -> dict[str, str]:
    """Service → the sentence of its last upgrade, with its state."""
    with urllib.request.urlopen(f"{EXPORTER}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return {
        sample.labels["service"]: sample.labels.get("sentence", "")
        for family in families
        for sample in family.samples
        if sample.name == "infercanary_verdict_info" and sample.labels["measure"] == "latency"
    }


def firing() -> set[tuple[str, str]]:
    """Service and name of the alerts that Alertmanager has now."""
    with urllib.request.urlopen(f"{ALERTS}?active=true", timeout=10) as response:
        return {
            (alert["labels"].get("service", ""), alert["labels"]["alertname"])
            for alert in json.load(response)
        }


def watch(trouble: Trouble, label: str) -> list[Row]:
    """Start a trouble, write what is said of it until all expected alerts came, and remove it."""
    begin = time.monotonic()
    said = sentences()
    before = firing()
    came: dict[tuple[str, str], float] = {}
    compose("--profile", "broken", "up", "--detach", *trouble.services)
    end, complete = begin + trouble.seconds, False
    while time.monotonic() < end:
        time.sleep(TICK_SECONDS)
        after = time.monotonic() - begin
        try:
            now, alerts, fewest = sentences(), firing(), runs("classify")
        except OSError as error:
            print(f"{after:5.0f} s: no answer: {error}", flush=True)
            continue
        for service, sentence in now.items():
            if said.get(service) != sentence:
                said[service] = sentence
                print(f"{after:5.0f} s {service}: {sentence}", flush=True)
        if after < LEAST_SECONDS:
            alerts -= before
        for each in sorted(alerts - came.keys()):
            came[each] = after
            print(f"{after:5.0f} s ALERT {' '.join(each)}", flush=True)
        judged = fewest >= LEAST_RUNS or not trouble.alerts & UPGRADE.alerts
        if not complete and judged and trouble.alerts <= came.keys():
            complete, end = True, min(end, time.monotonic() + SETTLE_SECONDS)
    compose("--profile", "broken", "rm", "--force", "--stop", *trouble.services)
    services = sorted({*said, *(service for service, _ in came)} - {""})
    return [
        Row(
            label,
            service,
            said.get(service, "") or "no verdict",
            {name: after for (owner, name), after in came.items() if owner == service},
        )
        for service in services
    ]


def wrong(rows: list[Row], troubles: dict[str, Trouble]) -> list[str]:
    """What was expected and did not come, and images that were blamed without a change."""
    found = []
    for label, trouble in troubles.items():
        alerts = {(row.service, name) for row in rows if row.trouble == label for name in row.alerts}
        found += [f"{label}: {' '.join(each)} did not come" for each in sorted(trouble.alerts - alerts)]
        blamed = {service for service, name in alerts if name == REGRESSED} - {"classify"}
        found += [f"{label}: the image of {service} was blamed" for service in sorted(blamed)]
    return found


def main() -> int:
    """Every trouble, so many times; the table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=2, help="how often each trouble is made (default: 2)")
    parser.add_argument("--seconds", type=float, help="the most that each trouble lasts")
    parser.add_argument("--only", choices=[trouble.name for trouble in TROUBLES], help="one trouble alone")
    arguments = parser.parse_args()
    chosen = [
        trouble._replace(seconds=min(trouble.seconds, arguments.seconds or trouble.seconds))
        for trouble in TROUBLES
        if arguments.only in (None, trouble.name)
    ]
    print("building the images …", flush=True)
    for built in ("classify", "exporter", "broken-upgrade"):
        compose("--profile", "broken", "build", "--quiet", built)
    compose("--profile", "broken", "down", "--volumes", "--remove-orphans", "--timeout", "2")
    rows: list[Row] = []
    troubles: dict[str, Trouble] = {}
    try:
        compose("up", "--detach", "--wait", *BASE)
        within(900, "a baseline", lambda: runs("classify") >= BASELINE_RUNS)
        for number in range(1, arguments.times + 1):
            for trouble in chosen:
                label = f"{trouble.name}, {number}"
                print(f"\n{label}: {', '.join(trouble.services)}", flush=True)
                troubles[label] = trouble
                rows += watch(trouble, label)
                time.sleep(SETTLE_SECONDS)
    finally:
        compose("--profile", "broken", "down", "--volumes", "--remove-orphans", "--timeout", "2")
    print("\n| trouble | service | last sentence | alerts, after |\n|---|---|---|---|")
    print(*rows, sep="\n")
    mistakes = wrong(rows, troubles)
    print(*(f"WRONG: {mistake}" for mistake in mistakes), sep="\n")
    return int(bool(mistakes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except urllib.error.URLError as error:
        sys.exit(f"the stack does not answer: {error}")
