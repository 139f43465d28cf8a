"""The Compose stack: commands, exporter, Prometheus, probes and alerts."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
PROJECT = "infercanary-test"
EXPORTER = "http://127.0.0.1:9797"
PROMETHEUS = "http://127.0.0.1:9090"
ALERTMANAGER = "http://127.0.0.1:9093"
EXAMPLE = "infercanary-example:dev"
PORTS = {"classify": 8001, "moderate": 8002}
GHOSTS = ROOT / "tests/stack/ghosts"
# This text is only in the webhook's address and in the environment of a watched container. No other place may
# contain it.
SECRET = "s3cr3t-t0k3n-0f-a-t3st"
LABEL = "infercanary.test"
# Label of the containers that a test starts beside the stack. pytest-xdist runs tests in several processes,
# and each process removes only its own containers.
OWN_LABEL = f"{LABEL}={os.environ.get('PYTEST_XDIST_WORKER', 'one-process')}"
# Every Docker has the legacy builder; BuildKit needs a plug-in that Debian does not package.
ENVIRONMENT = {**os.environ, "DOCKER_BUILDKIT": "0", "COMPOSE_PROJECT_NAME": PROJECT}


def run(*command, seconds=120, text=None, **environment):
    """Run a command with ``text`` as its input, and return its standard output. A failure prints the whole output."""
    done = subprocess.run(
        command, cwd=ROOT, env={**ENVIRONMENT, **environment}, input=text, capture_output=True, text=True,
        timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def background(*command, **options):
    """Run a program during the block. Its output is discarded, unless ``options`` of ``Popen`` name a file for it."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet | options)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def compose(*arguments, seconds=120, **environment):
    return run("docker", "compose", *arguments, seconds=seconds, **environment)


def replace_classify(tag, arenas):
    up = ("up", "--detach", "--no-build", "--no-deps", "--wait")
    compose(*up, "classify", EXAMPLE_TAG=tag, TEST_ARENAS=str(arenas))


def make_images():
    """Build the Compose file's images one after another, because they share layers."""
    run("make", "images", seconds=900)


def build(tag, dockerfile):
    run("docker", "build", "--quiet", "--tag", tag, "-", text=dockerfile)


def services():
    """Return the services of the shipped Compose file, without Grafana if its image cannot be downloaded."""
    found = json.loads(compose("config", "--format", "json"))["services"]
    there = run("docker", "images", "--format", "{{ .Repository }}:{{ .Tag }}").split()
    return [name for name in found if name != "grafana" or found[name]["image"] in there]


def webhook():
    """Return a Compose service that logs Alertmanager's notifications, for :meth:`Stack.received`."""
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
def started(folder, added):
    """Run `docker compose up` with the shipped file and a webhook, and remove everything afterwards.

    Args:
        folder: Folder for additional files, which containers read as other users.
        added: Additional keys of services, in the form of a Compose file.
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


def remove_containers(label=OWN_LABEL):
    """Remove the containers that tests of this process started. With the label LABEL, remove those of all processes."""
    if found := run("docker", "ps", "--all", "--quiet", "--filter", f"label={label}").split():
        run("docker", "rm", "--force", "--volumes", *found)


def remove(*names):
    run("sh", "-c", f"docker rm --force --volumes {' '.join(names)} 2>/dev/null || true")


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            body = response.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise
    return body


def query(prometheus, expression):
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    result = json.loads(get(url))["data"]["result"]
    return [(item["metric"], float(item["value"][1])) for item in result]


class Alert(NamedTuple):
    status: str
    labels: dict[str, str]
    text: str
    """Summary and description."""
    received_at: float
    began: str
    """Time at which the alert began to fire. It distinguishes a new alert from a repeated notification."""

    @property
    def name(self):
        return self.labels["alertname"]


class Stack:
    """The running stack from the side of a user. With the address of another exporter: the stack of that exporter."""

    def __init__(self, exporter=EXPORTER):
        self.exporter = exporter

    def container(self, service):
        return f"{PROJECT}-{service}-1"

    def samples(self, name, **labels):
        text = get(f"{self.exporter}/metrics").decode()
        return [
            (s.labels, s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]

    def value(self, name, **labels):
        found = self.samples(name, **labels)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def query(self, expression):
        return query(PROMETHEUS, expression)

    def runs(self, service, runs, seconds=400):
        """Wait until each running start of the service has this number of runs."""
        name = "infercanary_runs_total"

        def enough():
            counts = [value for _, value in self.samples(name, service=service, outcome="ok")]
            return bool(counts) and min(counts) >= runs

        eventually(f"{runs} runs of {service}", seconds, enough)

    def starts(self, service):
        return {
            value for _, value in self.samples("infercanary_probe_start_timestamp_seconds", service=service)
        }

    def verdicts(self, service):
        return {
            labels["verdict"]
            for labels, on in self.samples("infercanary_verdict", service=service, measure="latency")
            if on
        }

    def received(self, service="", name="", status="firing"):
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

    def alert(self, name, service, status="firing", seconds=120, **labels):
        """Wait for an alert with these labels, and return the first one that the webhook received."""
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

    def probe_report(self, service):
        """Return the probe's report, read inside its container."""
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9798/report').read().decode())"
        return json.loads(compose("exec", "-T", service, "python", "-c", code))


def eventually(what, seconds, check):
    """Wait for a truthy result of ``check``, and return it. Failed connections are retried."""
    deadline = time.monotonic() + seconds
    seen = None
    while time.monotonic() < deadline:
        try:
            if result := check():
                return result
            seen = result
        except (OSError, ValueError) as error:
            seen = error
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {seen!r}")
