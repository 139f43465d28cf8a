"""A regression of a service on five hosts sends one alert and one notification, even if another exporter takes
over.

All parts are real: PostgreSQL, five exporters, Prometheus with the shipped rules, Alertmanager with the
shipped configuration, and a webhook.
"""

import shutil
import time
from contextlib import ExitStack

import alertmanager
import operated
import pytest
import yaml
from harness import ROOT

from tests.integration.fleet.world import SERVICE, eventually, fleet, location

ALERT = {"alertname": "InferCanaryImageRegressed", "service": SERVICE, "canary": "c", "severity": "critical"}
FIRES = 'ALERTS{alertname="InferCanaryImageRegressed",alertstate="firing"}'
BEGAN = 'ALERTS_FOR_STATE{alertname="InferCanaryImageRegressed"}'
# Longer than three times: the alert fires for 2 more minutes without a verdict; Alertmanager waits 1 minute
# to send new or resolved alerts of a group; Prometheus waits 1 minute to send a firing alert again.
WATCHED_SECONDS = 240


def prometheus_config(exporters, notified, folder):
    shipped = ROOT / "prometheus"
    config = yaml.safe_load((shipped / "prometheus.yml").read_text())
    config["rule_files"] = [str(shipped / "rules/*.yml")]
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [notified]}]}]}
    [job] = [job for job in config["scrape_configs"] if job["job_name"] == "infercanary"]
    job["static_configs"] = [
        {"targets": [f"127.0.0.1:{each.port}"], "labels": {"instance": each.host}} for each in exporters
    ]
    del job["dns_sd_configs"]  # this part of the configuration is only for Compose
    config["scrape_configs"] = [job]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def publishers(exporters):
    return [one.host for one in exporters if one.process and one.values("infercanary_verdict")]


@pytest.mark.campaign
def test_a_regression_is_one_notification_though_its_judge_is_killed(tmp_path, postgres):
    if not (shutil.which("prometheus") and shutil.which("alertmanager")):
        pytest.skip("not on PATH: prometheus, alertmanager")
    at = location(postgres, postgres.database(), tmp_path)
    with ExitStack() as stack:
        # A day by the probes' clocks takes ten minutes.
        world = fleet(tmp_path, at, hosts=5, replicas=10, began=time.time() - 86_400 * 1.5)
        probes, exporters = stack.enter_context(world)
        (tmp_path / "alertmanager").mkdir()
        manager = stack.enter_context(alertmanager.running(tmp_path / "alertmanager", {}))
        config = prometheus_config(exporters, manager.url.removeprefix("http://"), tmp_path)
        prometheus = stack.enter_context(operated.running(config))
        eventually(lambda: len(publishers(exporters)) == 1 and len(probes[0].made()) > 200)
        for probe in probes:
            probe.upgrade(0.04, "2")
        eventually(lambda: manager.received)
        sent = time.time()
        [host] = publishers(exporters)
        [holder] = [one for one in exporters if one.host == host]
        others = [one for one in exporters if one is not holder]
        holder.kill()
        killed = time.monotonic()
        eventually(lambda: publishers(others), 60)
        taken_over = time.monotonic() - killed
        eventually(lambda: len(others[0].values("infercanary_up")) and time.monotonic() > killed + 90)
        holder.start()
        eventually(lambda: time.time() > sent + WATCHED_SECONDS, WATCHED_SECONDS + 60)

        print(f"taken over after {taken_over:.1f} s; notifications: {manager.received}")
        assert taken_over < 30
        assert len(publishers(exporters)) == 1
        [notification] = manager.received
        assert notification["status"] == "firing"
        assert notification["receiver"] == "critical"
        [alert] = notification["alerts"]
        assert alert["labels"].items() >= ALERT.items()
        assert not {"instance", "container"} & alert["labels"].keys()
        watched = f"{time.time() - sent:.0f}s"
        for expression, expected in {
            f"min_over_time(count({FIRES})[{watched}:5s])": 1.0,
            f"max_over_time(count({FIRES})[{watched}:5s])": 1.0,
            f"sum(changes({BEGAN}[{watched}]))": 0.0,
        }.items():
            assert [value for _, value in prometheus.query(expression)] == [expected], expression
        since = f"{time.time() - sent + 60:.0f}s"  # the first publisher may have been killed
        shown = f'count_over_time(infercanary_verdict{{measure="latency", verdict="regressed"}}[{since}])'
        # several exporters published, one after another
        assert len({labels["instance"] for labels, _ in prometheus.query(shown)}) > 1
