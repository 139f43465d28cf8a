"""The chart on a real cluster: permissions of its pods, and its objects in Prometheus."""

import re

import pytest
from harness import eventually

NAMESPACE = "infercanary"
SELECTOR = "app.kubernetes.io/name=infercanary"


@pytest.fixture(scope="module")
def exporter(installed, cluster):
    pods = cluster.pods(NAMESPACE, SELECTOR)
    assert {pod["spec"]["nodeName"] for pod in pods} == {*cluster.nodes}
    return pods[0]["metadata"]["name"]


def test_its_process_has_no_rights_on_the_node(cluster, exporter):
    inside = ("exec", exporter, "--namespace", NAMESPACE, "--", "sh", "-c")
    status = dict(
        re.findall(r"^(\w+):\s+(\S+)", cluster.kubectl(*inside, "cat /proc/1/status"), flags=re.MULTILINE)
    )
    assert (status["Uid"], status["Gid"]) == ("10002", "10002")
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"  # a filter
    write = "touch /x 2>/dev/null && echo written || echo refused"
    assert cluster.kubectl(*inside, write).strip() == "refused"


def test_its_token_may_list_and_watch_pods_and_nothing_else(cluster, exporter):
    assert cluster.rights(f"{NAMESPACE}:infercanary") == {"pods": "list watch"}


def test_each_node_is_an_instance_and_no_series_is_the_exporters_pods(cluster, installed):
    # alerts and recorded series have the labels of services
    scraped = '{job="infercanary",__name__!~"ALERTS.*|.*:.*"}'
    series = [labels for labels, _ in installed.query(scraped)]
    assert {labels["instance"] for labels in series} == {*cluster.nodes}
    ours = [labels for labels in series if labels["__name__"] == "infercanary_discovery_up"]
    assert len(ours) == 3
    for labels in ours:
        assert not labels.keys() & {"namespace", "pod", "container", "endpoint", "exported_service"}


def test_links_of_alerts_begin_where_the_values_say(installed):
    [(labels, _)] = eventually("links", 30, lambda: installed.query("infercanary:links:info"))
    assert labels["grafana"] == "https://grafana.example.com"


def test_dashboards_are_where_grafanas_sidecar_looks(cluster, installed):
    found = cluster.get("configmaps", "--namespace", NAMESPACE, "--selector", "grafana_dashboard=1")["items"]
    assert sorted(name for each in found for name in each["data"]) == [
        f"infercanary-{name}.json" for name in ("fleet", "host", "self", "service")
    ]
