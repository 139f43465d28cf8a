"""A node whose kubelet is stopped: its containers run on, and are polled on."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from cluster import GIVEN, SCRIPT, Cluster
from harness import eventually, run
from prometheus_client.parser import text_string_to_metric_families

NODE, NAMESPACE = "node-2", "kubelet-test"


class Exporter:
    """As a process on this machine, following one node with a service account's token."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        given = yaml.safe_load(Path(cluster.kubeconfig).read_text())["clusters"][0]["cluster"]
        (folder / "token").write_text(
            cluster.kubectl("create", "token", "exporter", "--namespace", NAMESPACE)
        )
        config = {
            "listen": f"127.0.0.1:{self.port}",
            "poll_seconds": 0.5,
            "docker": {"enabled": False},
            "kubernetes": {
                "enabled": True,
                "url": given["server"],
                "node": NODE,
                "token_file": str(folder / "token"),
                "ca_file": given["certificate-authority"],
            },
        }
        (folder / "exporter.yaml").write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "exporter", "--config", str(folder / "exporter.yaml")],
            stderr=subprocess.DEVNULL,
        )

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
            text = response.read().decode()
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"infercanary_{name}" and labels.items() <= sample.labels.items()
        ]

    def polls(self) -> float:
        """The container has no probe, so each poll fails."""
        [(_, count)] = self.series("failed_polls_total", namespace=NAMESPACE)
        return count


@pytest.fixture
def exporter(cluster: Cluster, tmp_path: Path) -> Iterator[Exporter]:
    name = {"name": "exporter", "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAMESPACE}
    labels = {"app": "steady"}
    container = {"name": "server", "image": "docker.io/infercanary/pause:1", "imagePullPolicy": "Never"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAMESPACE},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAMESPACE},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **name}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "steady", "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels, "annotations": {"infercanary.io/enable": "true"}},
                    "spec": {
                        "nodeSelector": {"kubernetes.io/hostname": NODE},
                        "terminationGracePeriodSeconds": 0,
                        "containers": [container],
                    },
                },
            },
        },
    )
    started = Exporter(cluster, tmp_path)
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.wait(10)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", NAMESPACE)


def ready(cluster: Cluster) -> str:
    conditions = cluster.get("node", NODE)["status"]["conditions"]
    [state] = [each["status"] for each in conditions if each["type"] == "Ready"]
    return str(state)


@pytest.mark.skipif(
    bool(GIVEN), reason="whose kubelet may be stopped is not known of a cluster that is given"
)
def test_a_kubelet_that_is_stopped(cluster: Cluster, exporter: Exporter) -> None:
    found = eventually("the pod", 60, lambda: exporter.series("container_info", namespace=NAMESPACE))
    [(labels, _)] = found
    assert (labels["service"], labels["container"]) == ("steady", "server")
    events = sum(count for _, count in exporter.series("kubernetes_events_total", type="modified"))
    run(SCRIPT, "stop", "kubelet-2")
    try:
        eventually("the node is not ready", 120, lambda: ready(cluster) == "Unknown")
        eventually(
            "that its pod is said not to be ready", 30,
            lambda: sum(n for _, n in exporter.series("kubernetes_events_total", type="modified")) > events,
        )  # fmt: skip
        polls = exporter.polls()
        eventually("that it is polled on", 90, lambda: exporter.polls() > polls)
        assert exporter.series("container_info", namespace=NAMESPACE) == found, "the same container"
        assert [value for _, value in exporter.series("discovery_up")] == [1.0]
    finally:
        run(SCRIPT, "start", "kubelet-2")
    eventually("the node", 60, lambda: ready(cluster) == "True")
    assert exporter.series("container_info", namespace=NAMESPACE) == found
