"""How long a newcomer waits: from `docker compose up` to a green Fleet view, and from a slow image to its alert.

The shipped Compose file and its `broken` profile, as they are, from images that were built before; Grafana itself only
if its image is there: the queries of its panels are sent to Prometheus. Green is a Fleet view with the latency and
the verdict of each service, and with nothing in trouble. Exits with 1 where green takes longer than its goal, or where
another critical alert of the service comes before that of its slow image.

Needs Docker with Compose, and the file's ports. Everything that it starts is removed, with volumes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from images import docker

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from grafana.prometheus import Prometheus, Refused  # noqa: E402
from grafana.queries import Query, queries  # noqa: E402
from infercanary.command.settings import UsageError  # noqa: E402

T = TypeVar("T")

GREEN_GOAL_SECONDS = 90
ALERTS = "http://127.0.0.1:9093/api/v2/alerts"
EXPORTER = "http://127.0.0.1:9797"
PROMETHEUS = "http://127.0.0.1:9090"
COMPOSE_FILE = ROOT / "docker-compose.yml"
SERVICES = {"classify", "moderate"}
# Panels of the Fleet dashboard: those in which each service is to be seen, and those in which nothing is.
FILLED = {"Latency against before the upgrade"}
TROUBLE = {"Broken now", "Firing alerts"}
BASELINE_RUNS = 24  # with fewer the noise of the baseline is a guess, and the first look may be too blunt


def compose(*arguments: str) -> str:
    """`docker compose` on the shipped file, as a project of its own."""
    return docker(
        "compose", "--project-name", "infercanary-benchmark", "--file", str(COMPOSE_FILE), *arguments
    )


def within(seconds: float, what: str, check: Callable[[], T]) -> T:
    """The first truthy answer, asked for twice a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if answer := check():
                return answer
        except (OSError, UsageError, Refused):
            pass  # it starts
        time.sleep(0.5)
    raise SystemExit(f"not within {seconds:.0f} s: {what}")


def not_green(prometheus: Prometheus, fleet: list[Query]) -> str:
    """The first place of the Fleet view that is not as it should be, or nothing."""
    now = time.time()
    for query in fleet:
        if query.over_time:
            results = prometheus.over(query.expression, now - 300, now, 15).results
        else:
            results = prometheus.at(query.expression, now).results
        panel = query.place.removeprefix("panel ").rpartition(" ")[0]
        if panel in TROUBLE and any(value for row in results for _, value in row.points[-1:]):
            return f"{panel}: {results}"
        if panel in FILLED and {row.labels.get("service") for row in results} < SERVICES:
            return f"{panel}: {len(results)} series"
    return ""


def runs(service: str) -> float:
    """That the exporter has of a service's containers, of the one with fewest."""
    with urllib.request.urlopen(f"{EXPORTER}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    named = ("infercanary_runs_collected_total{", f'service="{service}"')
    return min(
        (float(line.split()[-1]) for line in lines if all(part in line for part in named)), default=0.0
    )


def alerts() -> list[dict[str, str]]:
    """The labels of those that Alertmanager has."""
    with urllib.request.urlopen(ALERTS, timeout=10) as response:
        return [alert["labels"] for alert in json.load(response)]


def main() -> None:
    """Both, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    here = docker("images", "--format", "{{ .Repository }}:{{ .Tag }}").split()
    known = json.loads(compose("config", "--format", "json"))["services"]
    chosen = [name for name in known if name != "grafana" or known[name]["image"] in here]
    without = "" if "grafana" in chosen else ", without Grafana, whose image is not here"
    print("building the images …", flush=True)
    compose("--profile", "broken", "build", "--quiet")
    compose("--profile", "broken", "down", "--volumes", "--remove-orphans", "--timeout", "2")
    prometheus = Prometheus(PROMETHEUS)
    fleet = [query for query in queries(span="5m") if query.dashboard == "fleet"]
    panels = {query.place.removeprefix("panel ").rpartition(" ")[0] for query in fleet}
    if gone := (FILLED | TROUBLE) - panels:
        raise SystemExit(f"panels that the Fleet dashboard no longer has: {', '.join(sorted(gone))}")
    waiting = ""

    def green() -> bool:
        nonlocal waiting
        waiting = not_green(prometheus, fleet)
        return not waiting

    try:
        begin = time.monotonic()
        compose("up", "--detach", "--wait", *chosen)
        healthy = time.monotonic() - begin
        print(f"docker compose up: {len(chosen)} services healthy after {healthy:.0f} s{without}", flush=True)
        try:
            within(300, "a green Fleet view", green)
        except SystemExit as late:
            raise SystemExit(f"{late}: {waiting}") from None
        seconds = time.monotonic() - begin
        print(f"Fleet view green after {seconds:.0f} s (goal: {GREEN_GOAL_SECONDS} s)", flush=True)

        within(600, "a baseline", lambda: runs("classify") >= BASELINE_RUNS)
        print(f"a baseline of {BASELINE_RUNS} runs after {time.monotonic() - begin:.0f} s", flush=True)
        begin = time.monotonic()
        compose("--profile", "broken", "up", "--detach", "broken-upgrade")
        within(600, "the first run of the slow image", lambda: 0 < runs("classify") < BASELINE_RUNS)
        first = within(
            900,
            "an alert of classify's image",
            lambda: [
                labels["alertname"]
                for labels in alerts()
                if labels.get("service") == "classify" and labels.get("severity") == "critical"
            ],
        )
        print(
            f"slow image started → {', '.join(first)} at Alertmanager: {time.monotonic() - begin:.0f} s, "
            f"{runs('classify'):.0f} runs of it"
        )
    finally:
        compose("--profile", "broken", "down", "--volumes", "--remove-orphans", "--timeout", "2")
    sys.exit(0 if seconds <= GREEN_GOAL_SECONDS and "InferCanaryImageRegressed" in first else 1)


if __name__ == "__main__":
    try:
        main()
    except urllib.error.URLError as error:
        sys.exit(f"the stack does not answer: {error}")
