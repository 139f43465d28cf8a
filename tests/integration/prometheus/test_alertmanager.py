"""A real Alertmanager with the shipped configuration: who is notified, in which groups, and what is left out."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alertmanager import ALERTS, CONFIG, SECRET, Alertmanager, running
from harness import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_config_is_accepted(tool: Callable[..., str]) -> None:
    tool("amtool", "check-config", str(CONFIG))


def test_secrets_are_in_files() -> None:
    """The one file is a Docker secret, and what ships with the project is empty."""
    text = CONFIG.read_text()
    config = yaml.safe_load(text)
    urls = [hook for receiver in config["receivers"] for hook in receiver["webhook_configs"]]
    assert all(hook["url_file"] == SECRET and "url" not in hook for hook in urls)
    assert COMPOSE["services"]["alertmanager"]["secrets"] == ["webhook-url"]
    assert (ROOT / "prometheus/webhook-url").read_text() == ""


def test_without_a_webhook_its_receivers_are_empty(tool: Callable[..., str], tmp_path: Path) -> None:
    script = COMPOSE["services"]["alertmanager"]["entrypoint"][2]
    assert f"secret={SECRET}\n" in script
    [expression] = re.findall(r"sed '(.+?)'", script)
    made = tmp_path / "alertmanager.yml"
    made.write_bytes(subprocess.run(["sed", expression, str(CONFIG)], check=True, capture_output=True).stdout)
    tool("amtool", "check-config", str(made))
    with_it, without = yaml.safe_load(CONFIG.read_text()), yaml.safe_load(made.read_text())
    assert [*map(set, without["receivers"])] == [{"name"}] * 2
    for each in with_it["receivers"]:
        del each["webhook_configs"]
    assert with_it == without, "and nothing else is left out"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("http://127.0.0.1:9/hook?token=a%20b#c\n", ""),
        ("https://hooks.example/T0/B0/x", ""),
        (" http://127.0.0.1:9/hook \r\n \n", ""),
        ("\n", ""),
        ("", ""),
        ("hooks.example/T0\n", "must hold one line, a URL that begins with http:// or https://"),
        ("http://a/1\nhttp://a/2\n", "must hold one line"),
        ("ALERT_WEBHOOK_URL=http://a/1\n", "must hold one line"),
    ],
)
def test_a_webhook_file_that_alertmanager_could_not_use_stops_it(
    tmp_path: Path, written: str, said: str
) -> None:
    """Else it is reported with the first alert, by Alertmanager's log alone."""
    secret = tmp_path / "webhook-url"
    secret.write_bytes(written.encode())
    script = COMPOSE["services"]["alertmanager"]["entrypoint"][2].replace("$$", "$")
    script = script.replace(SECRET, str(secret)).replace("exec alertmanager", "echo started")
    made = tmp_path / "alertmanager.yml"
    script = script.replace("/etc/alertmanager/alertmanager.yml", str(CONFIG)).replace(
        "/tmp/alertmanager.yml", str(made)
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=10)
    assert (done.returncode, "started" in done.stdout) == ((1, False) if said else (0, True)), done
    assert said in done.stderr and "http://a" not in done.stderr
    assert made.exists() == (not written.strip()), "without a URL its receivers are empty"


def test_what_inhibition_names_exists() -> None:
    """By the labels that rules have: an alert that was renamed would inhibit nothing."""
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            name, _, value = next(matcher.partition(sign) for sign in ("=~", "!=", "=") if sign in matcher)
            value = value.strip('"')
            if name == "alertname" and value != "InferCanary.+":
                head, _, rest = value.partition("(")
                names = [head + each for each in rest.rstrip(")").split("|")] if rest else [value]
                assert set(names) <= ALERTS.keys(), matcher
            elif name == "layer":
                assert value in {labels["layer"] for labels in ALERTS.values()}, matcher


def wait(seconds: float, check: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def alertmanager(tool: Callable[..., str], tmp_path: Path) -> Iterator[Alertmanager]:
    tool("amtool", "check-config", str(CONFIG))
    # As shipped, but for the patience.
    impatient = {f"group_wait: {patience}": "group_wait: 1s" for patience in ("30s", "10s")}
    with running(tmp_path, impatient) as found:
        yield found


HOST = {"instance": "node-1:9797"}
SERVICE = {**HOST, "service": "search"}
CONTAINER = {**SERVICE, "container": "search-1"}
# A verdict is the service's, on whichever hosts.
CANARY = {"service": "search", "canary": "resnet"}


def test_an_upgrade_is_one_notification_for_each_service_and_severity(alertmanager: Alertmanager) -> None:
    alertmanager.send(
        {"alertname": "InferCanaryOutputChanged", **CANARY},
        {"alertname": "InferCanaryMeasureRegressed", "measure": "cold_start_load", **CANARY},
        {"alertname": "InferCanaryMeasureRegressed", "measure": "host_memory", **CANARY},
        {"alertname": "InferCanaryCudaMissing", "reason": "gpu_before_upgrade", **CANARY},
        {"alertname": "InferCanaryOutputChanged", "canary": "toxic", **HOST, "service": "moderate"},
    )
    wait(20, lambda: len(alertmanager.received) == 3)
    notified = {
        (each["receiver"], each["groupLabels"].get("service")): {
            a["labels"]["alertname"] for a in each["alerts"]
        }
        for each in alertmanager.received
    }
    assert notified == {
        ("critical", "search"): {"InferCanaryCudaMissing"},
        # Not the cold start, nor the memory: on a CPU that is the same news.
        ("warning", "search"): {"InferCanaryOutputChanged"},
        ("warning", "moderate"): {"InferCanaryOutputChanged"},
    }


def test_trouble_of_hosts_is_grouped_by_host(alertmanager: Alertmanager) -> None:
    alertmanager.send(
        {"alertname": "InferCanarySharedCores", **CONTAINER},
        {"alertname": "InferCanarySharedCores", **HOST, "service": "moderate", "container": "moderate-1"},
    )
    wait(20, lambda: alertmanager.received)
    [notification] = alertmanager.received
    assert notification["groupLabels"] == HOST
    assert len(notification["alerts"]) == 2


@pytest.mark.parametrize(
    ("why", "silenced", "sent"),
    [
        (
            {"alertname": "InferCanaryGpuThrottled", "gpu": "0", **CONTAINER},
            [{"alertname": "InferCanaryDriftWithoutUpgrade", "canary": "resnet", **CONTAINER}],
            [
                {"alertname": "InferCanaryOutputChanged", **CANARY},
                {"alertname": "InferCanaryMeasureRegressed", "measure": "cold_start_load", **CANARY, "service": "a"},
            ],
        ),
        # What the host explains is no verdict of these: the judge has separated the two.
        (
            {"alertname": "InferCanarySharedCores", **CONTAINER},
            [],
            [
                {"alertname": "InferCanaryImageRegressed", "severity": "warning", **CANARY},
                {"alertname": "InferCanaryRegressionUnexplained", "severity": "warning", **CANARY},
                # Nor of these: what waiting explains is taken out before they are called.
                {"alertname": "InferCanaryMeasureRegressed", "measure": "cold_start_load", **CANARY},
                {"alertname": "InferCanaryDriftWithoutUpgrade", "canary": "resnet", **CONTAINER},
            ],
        ),
        (
            {"alertname": "InferCanaryGpuFailing", "severity": "critical", "reason": "lost", **CONTAINER},
            [
                {"alertname": "InferCanaryImageRegressed", "severity": "critical", **CANARY},
                {"alertname": "InferCanaryGpuThrottled", "gpu": "0", **CONTAINER},
                {"alertname": "InferCanaryCanaryFailing", "severity": "critical", "canary": "resnet", **CONTAINER},
            ],
            [{"alertname": "InferCanaryCudaMissing", **CANARY}],
        ),
        # What the host explains of a start, and not of the memory that an image takes.
        (
            {"alertname": "InferCanaryHostRegressed", "since": "upgrade", **CANARY},
            [{"alertname": "InferCanaryMeasureRegressed", "measure": "cold_start_load", **CANARY}],
            [{"alertname": "InferCanaryImageRegressed", "severity": "warning", **CANARY}],
        ),
        (
            {"alertname": "InferCanaryHostRegressed", "since": "upgrade", **CANARY},
            [{"alertname": "InferCanaryDriftWithoutUpgrade", "canary": "resnet", **CONTAINER}],
            [{"alertname": "InferCanaryMeasureRegressed", "measure": "host_memory", **CANARY}],
        ),
        # Another host of the service, which drifts for another reason.
        (
            {"alertname": "InferCanaryGpuThrottled", "gpu": "0", **CONTAINER},
            [],
            [{"alertname": "InferCanaryDriftWithoutUpgrade", "canary": "resnet", **CONTAINER, "instance": "node-2"}],
        ),
        # Its own limits are no trouble of the host: a new image may need more of them.
        (
            {"alertname": "InferCanaryCpuThrottled", **CONTAINER},
            [],
            [{"alertname": "InferCanaryImageRegressed", "severity": "warning", **CANARY}],
        ),
        (
            {"alertname": "InferCanaryProbeDown", **CONTAINER},
            [{"alertname": "InferCanaryCpuThrottled", **CONTAINER}],
            [
                {"alertname": "InferCanaryImageRegressed", "severity": "warning", **CANARY},
                # Why it is down.
                {"alertname": "InferCanaryOutOfMemory", "reason": "killed", **CONTAINER},
                {"alertname": "InferCanaryCanaryStale", "canary": "resnet", **CONTAINER, "container": "search-2"},
            ],
        ),
        (
            {"alertname": "InferCanaryExporterDown", **HOST},
            [
                {"alertname": "InferCanaryProbeDown", **CONTAINER},
                {"alertname": "InferCanaryMonitoringImpaired", "reason": "store", **HOST},
            ],
            [
                {"alertname": "InferCanarySharedCores", "instance": "node-2:9797"},
                # Another exporter may show it by now; where none does, it ends by itself.
                {"alertname": "InferCanaryImageRegressed", "severity": "critical", **CANARY},
            ],
        ),
        (
            {"alertname": "InferCanaryExporterDown", "job": "infercanary"},
            [{"alertname": "InferCanaryProbeDown", **CONTAINER}],
            [],
        ),
        (
            {"alertname": "InferCanaryCanaryFailing", "severity": "critical", "canary": "resnet", **CONTAINER},
            [{"alertname": "InferCanaryOutputChanged", "since": "start", "canary": "resnet", **CONTAINER}],
            [{"alertname": "InferCanaryCanaryStale", "canary": "other", **CONTAINER}],
        ),
    ],
    ids=lambda value: value["alertname"].removeprefix("InferCanary") if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_another_alert_explains_is_left_out(
    alertmanager: Alertmanager,
    why: dict[str, str],
    silenced: list[dict[str, str]],
    sent: list[dict[str, str]],
) -> None:
    alertmanager.send(why, *silenced, *sent)
    expected = {alert["alertname"]: "suppressed" for alert in silenced}
    expected |= {alert["alertname"]: "active" for alert in (why, *sent)}
    wait(10, lambda: alertmanager.states() == expected)


def test_what_grafana_sends_again_and_again_is_one_notification(alertmanager: Alertmanager) -> None:
    """Its contact point sends an alert every minute without an end, with labels of its own, and is inhibited too."""
    grafanas = {"grafana_folder": "InferCanary alerts (critical)"}
    for _ in range(4):
        alertmanager.send(
            {
                "alertname": "InferCanaryCudaMissing",
                "reason": "no_device",
                **CONTAINER,
                "canary": "resnet",
                **grafanas,
            },
            {"alertname": "InferCanaryMeasureRegressed", "measure": "host_memory", **CANARY, **grafanas},
            ends_at="0001-01-01T00:00:00Z",
        )
        time.sleep(0.5)
    wait(20, lambda: alertmanager.received)
    [notification] = alertmanager.received
    assert [alert["labels"]["alertname"] for alert in notification["alerts"]] == ["InferCanaryCudaMissing"]
    assert alertmanager.states()["InferCanaryMeasureRegressed"] == "suppressed"
