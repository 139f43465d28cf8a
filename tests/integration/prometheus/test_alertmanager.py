"""A real Alertmanager with the shipped configuration: receivers, groups, and inhibited alerts."""

import re
import time
from collections import Counter

import pytest
import yaml
from alertmanager import ALERTS, CONFIG, SECRET, running
from harness import ROOT, eventually

from tests.programs import ended
from tests.scenarios import cases, scenarios

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SHIPPED = yaml.safe_load(CONFIG.read_text())


def test_secrets_are_in_files():
    urls = [hook for receiver in SHIPPED["receivers"] for hook in receiver["webhook_configs"]]
    assert all(hook["url_file"] == SECRET and "url" not in hook for hook in urls)
    assert COMPOSE["services"]["alertmanager"]["secrets"] == ["webhook-url"]
    assert (ROOT / "prometheus/webhook-url").read_text() == ""


def test_without_a_webhook_its_receivers_are_empty(tool, tmp_path):
    script = COMPOSE["services"]["alertmanager"]["entrypoint"][2]
    assert f"secret={SECRET}\n" in script
    [expression] = re.findall(r"sed '(.+?)'", script)
    made = tmp_path / "alertmanager.yml"
    made.write_text(ended("sed", expression, CONFIG).stdout)
    for config in (CONFIG, made):
        tool("amtool", "check-config", str(config))
    empty = [{"name": receiver["name"]} for receiver in SHIPPED["receivers"]]
    assert yaml.safe_load(made.read_text()) == {**SHIPPED, "receivers": empty}, (
        "only the webhooks are left out"
    )


@cases(
    [
        ("http://127.0.0.1:9/hook?token=a%20b#c\n", True, False),
        (" http://127.0.0.1:9/hook \r\n \n", True, False),
        ("\n", False, False),
        ("hooks.example/T0\n", False, True),
        ("http://a/1\nhttp://a/2\n", False, True),
        ("ALERT_WEBHOOK_URL=http://a/1\n", False, True),
    ],
)
def test_a_webhook_file_that_alertmanager_could_not_use_stops_it(written, is_used, is_refused, tmp_path):
    """Without this check, only Alertmanager's log would report a faulty webhook file, at the first alert."""
    secret, made = tmp_path / "webhook-url", tmp_path / "alertmanager.yml"
    secret.write_bytes(written.encode())
    script = COMPOSE["services"]["alertmanager"]["entrypoint"][2]
    for old, new in {
        "$$": "$",
        SECRET: str(secret),
        "exec alertmanager": "echo started",
        "/etc/alertmanager/alertmanager.yml": str(CONFIG),
        "/tmp/alertmanager.yml": str(made),
    }.items():
        script = script.replace(old, new)
    done = ended("sh", "-c", script, code=int(is_refused))
    assert ("started" in done.stdout) is not is_refused
    assert ("must hold one line" in done.stderr) is is_refused
    assert "http://a" not in done.stderr
    assert made.exists() == (not is_used and not is_refused), "without a URL the receivers must be empty"


def test_names_in_inhibition_rules_exist():
    """Inhibition rules match labels of alerts: a renamed alert would inhibit nothing."""
    layers = {labels["layer"] for labels in ALERTS.values()}
    for rule in SHIPPED["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            name, value = re.split("=~|!=|=", matcher, maxsplit=1)
            value = value.strip('"')
            if name == "alertname" and value != "InferCanary.+":
                head, _, rest = value.partition("(")
                assert {head + each for each in rest.rstrip(")").split("|")} <= ALERTS.keys(), matcher
            assert name != "layer" or value in layers, matcher


# A real Alertmanager ---------------------------------------------------------------------------------------------


@pytest.fixture
def alertmanager(tool, tmp_path):
    # The shipped configuration, with shorter waits.
    impatient = {f"group_wait: {patience}": "group_wait: 1s" for patience in ("30s", "10s")}
    with running(tmp_path, impatient) as found:
        yield found


PLACES = {
    "host": ("instance",),
    "service": ("instance", "service"),
    "container": ("instance", "service", "container"),
    "canary": ("service", "canary"),  # a verdict covers the service on all hosts
    "fleet": (),
}


def alert(text, scene="search"):
    """Return the labels of an alert such as ``GpuThrottled container gpu=0``. Host and service belong to the scene."""
    name, place, *more = text.split()
    known = {"instance": f"{scene}-node:9797", "service": scene, "container": "c-1", "canary": "resnet"}
    labels = {label: known[label] for label in PLACES[place]}
    return {"alertname": f"InferCanary{name}", **labels, **dict(word.split("=", 1) for word in more)}


def test_an_upgrade_is_one_notification_for_each_service_and_severity_and_trouble_of_hosts_for_each_host(
    alertmanager,
):
    alertmanager.send(
        alert("OutputChanged canary"),
        # on a CPU, Alertmanager inhibits this alert
        alert("MeasureRegressed canary measure=cold_start_load"),
        alert("MeasureRegressed canary measure=host_memory"),
        alert("CudaMissing canary reason=gpu_before_upgrade"),
        alert("OutputChanged canary", "moderate"),
        alert("SharedCores container instance=node"),
        alert("SharedCores container instance=node", "moderate"),
    )
    # Grafana's contact point sends an alert every minute, without an end and with additional labels.
    # Alertmanager must inhibit this alert as well.
    for _ in range(4):
        alertmanager.send(
            alert("CudaMissing container reason=no_device canary=resnet grafana_folder=f", "grafana"),
            alert("MeasureRegressed canary measure=host_memory grafana_folder=f", "grafana"),
            ends_at="0001-01-01T00:00:00Z",
        )
        time.sleep(0.5)
    eventually("five notifications", 20, lambda: len(alertmanager.received) >= 5)
    notified = Counter(
        (
            each["receiver"],
            *each["groupLabels"].values(),
            *sorted(one["labels"]["alertname"] for one in each["alerts"]),
        )
        for each in alertmanager.received
    )
    cuda, changed, cores = (f"InferCanary{name}" for name in ("CudaMissing", "OutputChanged", "SharedCores"))
    assert notified == Counter([
        ("critical", "search", cuda),
        ("warning", "search", changed),
        ("warning", "moderate", changed),
        ("warning", "node", cores, cores),
        ("critical", "grafana", cuda),
    ])  # fmt: skip


# Alert | inhibited alerts | other alerts that Alertmanager sends
INHIBITED = """
# A drift on another host has another cause.
GpuThrottled container gpu=0 | DriftWithoutUpgrade container canary=resnet | OutputChanged canary; \
MeasureRegressed canary measure=cold_start_load service=another; \
DriftWithoutUpgrade container canary=resnet instance=node-2
# These verdicts are not explained by the host: the judge has subtracted host slowdown and CPU wait.
SharedCores container |  | ImageRegressed canary severity=warning; RegressionUnexplained canary severity=warning; \
MeasureRegressed canary measure=cold_start_load; DriftWithoutUpgrade container canary=resnet
GpuFailing container severity=critical reason=lost | ImageRegressed canary severity=critical; \
GpuThrottled container gpu=0; CanaryFailing container severity=critical canary=resnet | CudaMissing canary
# The host may explain a slow start, but not an image's memory.
HostRegressed canary since=upgrade | MeasureRegressed canary measure=cold_start_load; \
DriftWithoutUpgrade container canary=resnet | ImageRegressed canary severity=warning; \
MeasureRegressed canary measure=host_memory
# The container's limits are not the host's trouble: a new image may need higher ones.
CpuThrottled container |  | ImageRegressed canary severity=warning
# A memory kill explains why the container is down.
ProbeDown container | CpuThrottled container | ImageRegressed canary severity=warning; \
OutOfMemory container reason=killed; CanaryStale container canary=resnet container=c-2
# Another exporter may show the image's verdict meanwhile.
ExporterDown host | ProbeDown container; MonitoringImpaired host reason=store | \
SharedCores fleet instance=node-2:9797; ImageRegressed canary severity=critical
CanaryFailing container severity=critical canary=resnet | OutputChanged container since=start canary=resnet | \
CanaryStale container canary=other
"""


def test_explained_alerts_are_inhibited(alertmanager):
    expected = {}

    def send(scene, why, silenced, sent):
        silenced = [*silenced]
        for text in (why, *silenced, *sent):
            labels = alert(text, scene)
            alertmanager.send(labels)
            state = "suppressed" if text in silenced else "active"
            expected[frozenset({**ALERTS[labels["alertname"]], **labels}.items())] = state

    for number, (why, *others) in enumerate([row for row in scenarios(INHIBITED) if len(row) > 1]):
        send(f"s{number}", why, *(filter(None, cell.split("; ")) for cell in others))
    eventually("explained alerts are suppressed", 10, lambda: alertmanager.states() == expected)
    send("last", "ExporterDown fleet job=infercanary", ["ProbeDown container"], [])  # no known host
    [down] = [labels for labels in expected if ("job", "infercanary") in labels]
    expected |= {
        labels: "suppressed" for labels in expected if ("alertname", "InferCanaryExporterDown") not in labels
    }
    assert expected[down] == "active"
    eventually("all alerts are suppressed", 10, lambda: alertmanager.states() == expected)
