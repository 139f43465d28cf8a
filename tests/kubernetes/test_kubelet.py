"""A node's kubelet is stopped, or the API server: containers continue, and the exporter still polls them."""

import time

import pytest
from cluster import GIVEN, SCRIPT
from harness import eventually, run
from workloads import container, deployment, pod

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(bool(GIVEN), reason="a given cluster may not permit stopping its parts"),
]
NODE, STEADY = "node-2", '{service="steady"}'
OUTAGE_SECONDS = 180
"""Longer than an exporter waits for an event of a watch."""


class Steady:
    def __init__(self, prometheus):
        self.prometheus = prometheus

    def identity(self):
        found = self.prometheus.query("infercanary_container_info" + STEADY)
        return {str(sorted(labels.items())) for labels, _ in found}

    def runs(self):
        return sum(count for _, count in self.prometheus.query("infercanary_runs_collected_total" + STEADY))

    def is_polled_on(self):
        before = self.runs()
        eventually("further polls", 30, lambda: self.runs() > before)

    def discovery(self):
        [(_, up)] = self.prometheus.query(f'infercanary_discovery_up{{instance="{NODE}"}}')
        return up


@pytest.fixture
def steady(cluster, installed):
    """Start the service, and check at the end that its container is still the same."""
    cluster.apply(deployment("steady", pod(container(), nodes=(2,))))
    service = Steady(installed)
    eventually("runs", 60, service.runs)
    before = service.identity()
    yield service
    assert service.identity() == before


def ready(found):
    [state] = [each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready"]
    return str(state)


def test_a_kubelet_that_is_stopped(cluster, steady):
    run(SCRIPT, "stop", "kubelet-2")
    try:
        eventually("the node is not ready", 120, lambda: ready(cluster.get("node", NODE)) == "Unknown")
        of_pod = lambda: ready(cluster.pods("ml", "app=steady")[0])  # noqa: E731
        eventually("the pod is not ready", 30, lambda: of_pod() != "True")
        steady.is_polled_on()
        assert steady.discovery() == 1
    finally:
        run(SCRIPT, "start", "kubelet-2")
    eventually("the node is ready", 60, lambda: ready(cluster.get("node", NODE)) == "True")


def test_an_api_server_that_is_stopped(cluster, steady):
    run(SCRIPT, "stop", "kube-apiserver")
    try:
        eventually("the outage is known", 60, lambda: steady.discovery() == 0)
        time.sleep(OUTAGE_SECONDS)  # duration of the outage
        steady.is_polled_on()
    finally:
        run(SCRIPT, "start", "apiserver")
    eventually("the API server answers again", 90, lambda: steady.discovery() == 1)
    cluster.apply(deployment("later", pod(container(), nodes=(2,))))
    later = 'infercanary_up{service="later"} == 1'
    eventually("a later pod is found", 90, lambda: steady.prometheus.query(later))
