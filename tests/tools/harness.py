"""The Compose stack: commands, exporter, Prometheus, probes and alerts."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PROJECT = "infercanary-test"
EXPORTER = "http://127.0.0.1:9797"
PROMETHEUS = "http://127.0.0.1:9090"
ALERTMANAGER = "http://127.0.0.1:9093"
EXAMPLE = "infercanary-example:dev"
PORTS = {"classify": 8001, "moderate": 8002}
GHOSTS = ROOT / "tests/stack/ghosts"
# In the webhook's address, and in the environment of a container that is watched: it is to be found nowhere else.
SECRET = "s3cr3t-t0k3n-0f-a-t3st"
LABEL = "infercanary.test"
# Of what a test starts beside the stack. Tests run side by side in processes (pytest-xdist): each removes its own only.
OWN_LABEL = f"{LABEL}={os.environ.get('PYTEST_XDIST_WORKER', 'one-process')}"
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


def replace_classify(tag: str, arenas: int) -> None:
    """The service `classify` gets another image, and another setting of its allocator."""
    up = ("up", "--detach", "--no-build", "--no-deps", "--wait")
    compose(*up, "classify", EXAMPLE_TAG=tag, TEST_ARENAS=str(arenas))


def make_images() -> None:
    """Those of the Compose file, as `make images` builds them; one after the other, for they share layers."""
    run("make", "images", seconds=900)


def build(tag: str, dockerfile: str) -> None:
    """An image of a Dockerfile that needs no files."""
    run("docker", "build", "--quiet", "--tag", tag, "-", text=dockerfile)


def services() -> list[str]:
    """Those of the shipped file, without Grafana where no registry can be reached: no distribution packages it."""
    found = json.loads(compose("config", "--format", "json"))["services"]
    there = run("docker", "images", "--format", "{{ .Repository }}:{{ .Tag }}").split()
    return [name for name in found if name != "grafana" or found[name]["image"] in there]


def webhook() -> dict[str, object]:
    """A service of the stack that keeps what Alertmanager sends to it, for :meth:`Stack.received`."""
    listens = "import socket; socket.create_connection(('127.0.0.1', 8080)).close()"
    return {
        "image": EXAMPLE,
        "command": ["python", "/app/webhook.py"],
        "volumes": [f"{GHOSTS / 'webhook.py'}:/app/webhook.py:ro"],
        "networks": ["monitoring"],
        "healthcheck": {"test": ["CMD", "python", "-c", listens], "interval": "2s"},
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": 64,
        "mem_limit": "64m",
        "cpus": 0.5,
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
    }


@contextmanager
def started(folder: Path, added: dict[str, Any]) -> Iterator[Stack]:
    """`docker compose up` of the shipped file, and a webhook that keeps what it receives; all is gone afterwards.

    Args:
        folder: For what is added; containers read in there as other users.
        added: Services, as a Compose file has them: what they have besides.
    """
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    secret, override = folder / "webhook-url", folder / "compose.yml"
    secret.write_text(f"http://alert-webhook:8080/{SECRET}\n")
    override.write_text(yaml.safe_dump({"services": {**added, "alert-webhook": webhook()}}))
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    down = ("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "2")
    compose(*down)
    ENVIRONMENT["COMPOSE_FILE"] = os.pathsep.join(map(str, (ROOT / "docker-compose.yml", override)))
    ENVIRONMENT["ALERT_WEBHOOK_URL_FILE"] = str(secret)
    try:
        make_images()
        compose("up", "--detach", "--wait", "--wait-timeout", "180", *services(), seconds=240)
        yield Stack()
    except BaseException:
        print(compose("logs", "--tail", "40"))
        raise
    finally:
        remove_containers()
        compose(*down)
        del ENVIRONMENT["COMPOSE_FILE"], ENVIRONMENT["ALERT_WEBHOOK_URL_FILE"]


def remove_containers(label: str = OWN_LABEL) -> None:
    """Remove those that tests of this process started beside the stack; of all processes where it is LABEL."""
    if found := run("docker", "ps", "--all", "--quiet", "--filter", f"label={label}").split():
        run("docker", "rm", "--force", "--volumes", *found)


def remove(*names: str) -> None:
    """Remove these containers, those of them that are there."""
    run("sh", "-c", f"docker rm --force --volumes {' '.join(names)} 2>/dev/null || true")


def get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise
    return body


Series = dict[str, str]


def query(prometheus: str, expression: str) -> list[tuple[Series, float]]:
    """What a Prometheus answers now."""
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    result = json.loads(get(url))["data"]["result"]
    return [(item["metric"], float(item["value"][1])) for item in result]


class Alert(NamedTuple):
    """One that the webhook received."""

    status: str
    labels: dict[str, str]
    text: str
    """Summary and description."""
    received_at: float
    began: str
    """When it began to fire, which distinguishes one that came back from one that is sent with others again."""

    @property
    def name(self) -> str:
        return self.labels["alertname"]


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
        return query(PROMETHEUS, expression)

    def runs(self, service: str, runs: int, seconds: float = 400) -> None:
        """Wait until every start of the service that is under way has given so many runs."""
        name = "infercanary_runs_total"

        def enough() -> bool:
            counts = [value for _, value in self.samples(name, service=service, outcome="ok")]
            return bool(counts) and min(counts) >= runs

        eventually(f"{runs} runs of {service}", seconds, enough)

    def starts(self, service: str) -> set[float]:
        """When the probes of its containers were started (Unix time)."""
        return {
            value for _, value in self.samples("infercanary_probe_start_timestamp_seconds", service=service)
        }

    def verdicts(self, service: str) -> set[str]:
        """Those that hold for its canaries."""
        return {
            labels["verdict"]
            for labels, on in self.samples("infercanary_verdict", service=service, measure="latency")
            if on
        }

    def received(self, service: str = "", name: str = "", status: str = "firing") -> list[Alert]:
        """What the webhook received so far, of a service, of an alert."""
        lines = run("docker", "logs", self.container("alert-webhook")).splitlines()
        messages = [json.loads(line) for line in lines if line.startswith("{")]
        alerts = [
            Alert(
                each["status"],
                each["labels"],
                " ".join(each["annotations"].values()),
                message["received_at"],
                each["startsAt"],
            )
            for message in messages
            for each in message["alerts"]
        ]
        return [
            alert
            for alert in alerts
            if service in ("", alert.labels.get("service"))
            and name in ("", alert.name)
            and alert.status == status
        ]

    def alert(
        self, name: str, service: str, status: str = "firing", seconds: float = 120, **labels: str
    ) -> Alert:
        """The first with these labels that the webhook received, once it did."""
        [first, *_] = eventually(
            f"{name} of {service}, {status}",
            seconds,
            lambda: [
                alert
                for alert in self.received(service, name, status)
                if labels.items() <= alert.labels.items()
            ],
        )
        print(f"{first.text}\n")
        return first

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
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {seen!r}")
