"""A real Alertmanager with the shipped configuration, and a webhook that stores its notifications."""

from __future__ import annotations

import json
import urllib.request
from contextlib import contextmanager

import yaml
from answers import answering
from harness import ROOT, background, eventually
from ports import free_port

CONFIG = ROOT / "prometheus/alertmanager.yml"
SECRET = "/run/secrets/webhook-url"

# The last rule of each name. If an alert has two severities, a test sets the other one itself.
ALERTS = {
    rule["alert"]: rule["labels"]
    for group in yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}


class Alertmanager:
    """A running Alertmanager.

    Args:
        url: Address of the process.
        received: Notifications of the webhook, in order; the list grows.
    """

    def __init__(self, url, received):
        self.url = url
        self.received = received

    def send(self, *alerts, ends_at=""):
        """Send alerts in the form of Prometheus. Each has ``alertname``, and labels in addition to those of the
        rule.
        """
        end = {"endsAt": ends_at} if ends_at else {}
        body = [{"labels": {**ALERTS[alert["alertname"]], **alert}, **end} for alert in alerts]
        self._ask("POST", body)

    def states(self):
        """Return the state of each received alert, ``active`` or ``suppressed``, with its labels."""
        return {frozenset(alert["labels"].items()): alert["status"]["state"] for alert in self._ask("GET")}

    def _ask(self, method, body=None):
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as response:
            text = response.read()
        return json.loads(text) if text else None


@contextmanager
def running(folder, changed):
    """Run Alertmanager with the shipped configuration, except for the path of the secret.

    Args:
        folder: Empty folder.
        changed: Replacements by text of the configuration.
    """
    port = free_port()
    received = []

    def note(_path, body):
        received.append(json.loads(body))
        return 200, b""

    secret = folder / "webhook-url"
    config = folder / "alertmanager.yml"
    text = CONFIG.read_text()
    for old, new in {SECRET: str(secret), **changed}.items():
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    url = f"http://127.0.0.1:{port}"
    arguments = [
        f"--config.file={config}", f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=error",
    ]  # fmt: skip
    with answering(note) as webhook:
        secret.write_text(f"{webhook}/\n")
        found = Alertmanager(url, received)
        with background("alertmanager", *arguments):
            eventually("Alertmanager answers", 20, lambda: found.states() == {})
            yield found
