"""The shipped Compose stack as a person would drive and read it: commands, the exporter, Prometheus, the probes."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PROJECT = "infercanary-test"
EXPORTER = "http://127.0.0.1:9797"
PROMETHEUS = "http://127.0.0.1:9090"
ALERTMANAGER = "http://127.0.0.1:9093"
OWN_LABEL = "infercanary.test=beside-the-stack"
# The legacy builder is in every Docker; BuildKit's needs a plug-in that Debian does not ship.
ENVIRONMENT = {**os.environ, "DOCKER_BUILDKIT": "0", "COMPOSE_PROJECT_NAME": PROJECT}


def run(*command: str, seconds: float = 120, text: str | None = None, **environment: str) -> str:
    """A command's standard output, given ``text``; its whole output in the failure where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**ENVIRONMENT, **environment}, input=text, capture_output=True, text=True,
        timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def compose(*arguments: str, seconds: float = 120, **environment: str) -> str:
    """`docker compose` on the shipped file."""
    return run("docker", "compose", *arguments, seconds=seconds, **environment)


def build(tag: str, dockerfile: str) -> None:
    """An image of a Dockerfile that needs no files."""
    run("docker", "build", "--quiet", "--tag", tag, "-", text=dockerfile)


def services() -> list[str]:
    """Those of the shipped file, without Grafana where no registry can be reached: no distribution packages it."""
    found = json.loads(compose("config", "--format", "json"))["services"]
    there = run("docker", "images", "--format", "{{ .Repository }}:{{ .Tag }}").split()
    return [name for name in found if name != "grafana" or found[name]["image"] in there]


def remove_containers() -> None:
    """Remove those that tests started beside the stack, also in a session that was killed."""
    if found := run("docker", "ps", "--all", "--quiet", "--filter", f"label={OWN_LABEL}").split():
        run("docker", "rm", "--force", "--volumes", *found)


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        body: bytes = response.read()
    return body


Series = dict[str, str]


class Stack:
    """The running stack, as a person would look at it; by another exporter in it, where one is named."""

    def __init__(self, exporter: str = EXPORTER) -> None:
        self.exporter = exporter

    def container(self, service: str) -> str:
        """The container's name."""
        return f"{PROJECT}-{service}-1"

    def samples(self, name: str, **labels: str) -> list[tuple[Series, float]]:
        """What the exporter serves now."""
        text = get(f"{self.exporter}/metrics").decode()
        return [
            (s.labels, s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The one value of a series at the exporter, or None."""
        found = self.samples(name, **labels)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def query(self, expression: str) -> list[tuple[Series, float]]:
        """What Prometheus answers now."""
        url = f"{PROMETHEUS}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        result = json.loads(get(url))["data"]["result"]
        return [(item["metric"], float(item["value"][1])) for item in result]

    def probe_report(self, service: str) -> dict[str, object]:
        """The probe's own report, asked for inside its container."""
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9798/report').read().decode())"
        report: dict[str, object] = json.loads(compose("exec", "-T", service, "python", "-c", code))
        return report


def eventually(what: str, seconds: float, check: Callable[[], T]) -> T:
    """The first truthy result of ``check``; connections that fail on the way are part of waiting."""
    deadline = time.monotonic() + seconds
    seen: object = None
    while time.monotonic() < deadline:
        try:
            if result := check():
                return result
            seen = result
        except (OSError, ValueError) as error:
            seen = error
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {seen!r}")
