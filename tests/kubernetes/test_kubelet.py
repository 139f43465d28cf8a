"""A node whose kubelet is stopped: its containers run on, and are polled on."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import GIVEN, SCRIPT, Cluster, Object
from harness import eventually, run
from prometheus_client.parser import text_string_to_metric_families
from workloads import container, deployment, namespace, pod

NODE, NAMESPACE = "node-2", "kubelet-test"


class Exporter:
    """As a process on this machine, following one node with a service account's token: by a watch or by its kubelet."""

    def __init__(self, cluster: Cluster, folder: Path, *, by_kubelet: bool) -> None:
        account = "kubelet" if by_kubelet else "watch"
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        given = yaml.safe_load(Path(cluster.kubeconfig).read_text())["clusters"][0]["cluster"]
        (folder / account).write_text(cluster.kubectl("create", "token", account, "--namespace", NAMESPACE))
        config: dict[str, Any] = {
            "listen": f"127.0.0.1:{self.port}",
            "poll_seconds": 0.5,
            "docker": {"enabled": False},
            "kubernetes": {
                "enabled": True,
                "url": given["server"],
                "node": NODE,
                "token_file": str(folder / account),
                "ca_file": given["certificate-authority"],
            },
        }
        if by_kubelet:
            [address] = [
                each["address"]
                for each in cluster.get("node", NODE)["status"]["addresses"]
                if each["type"] == "InternalIP"
            ]
            config["kubernetes"] |= {
                "url": f"https://{address}:10250",
                "kubelet": {"enabled": True, "poll_seconds": 1},
            }
        path = folder / f"{account}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "exporter", "--config", str(path)],
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

    def has_more_than(self, runs: float) -> bool:
        return self.runs() > runs

    def runs(self) -> float:
        [(_, count)] = self.series("runs_collected_total", namespace=NAMESPACE)
        return count


RIGHTS = {"watch": ("pods", ["list", "watch"]), "kubelet": ("nodes/pods", ["get"])}


def account(name: str) -> list[Object]:
    """A service account that may do what the chart's may."""
    resource, verbs = RIGHTS[name]
    rbac = "rbac.authorization.k8s.io"
    role = f"{NAMESPACE}-{name}"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [{"apiGroups": [""], "resources": [resource], "verbs": verbs}],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        },
    ]


@pytest.fixture
def exporters(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Exporter, Exporter]]:
    """One that watches the API server, and one that asks the kubelet."""
    cluster.apply(
        namespace(NAMESPACE),
        *account("watch"),
        *account("kubelet"),
        deployment("steady", pod(container(), nodes=(2,)), NAMESPACE),
    )
    started = Exporter(cluster, tmp_path, by_kubelet=False), Exporter(cluster, tmp_path, by_kubelet=True)
    try:
        yield started
    finally:
        for each in started:
            each.process.terminate()
        for each in started:
            each.process.wait(10)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        for name in RIGHTS:
            cluster.kubectl("delete", "clusterrole,clusterrolebinding", f"{NAMESPACE}-{name}")


def ready(cluster: Cluster) -> str:
    conditions = cluster.get("node", NODE)["status"]["conditions"]
    [state] = [each["status"] for each in conditions if each["type"] == "Ready"]
    return str(state)


@pytest.mark.skipif(
    bool(GIVEN), reason="whose kubelet may be stopped is not known of a cluster that is given"
)
def test_a_kubelet_that_is_stopped(cluster: Cluster, exporters: tuple[Exporter, Exporter]) -> None:
    watching, asking = exporters

    def info(exporter: Exporter) -> list[tuple[dict[str, str], float]]:
        return exporter.series("container_info", namespace=NAMESPACE)

    def up(exporter: Exporter) -> float:
        [(_, value)] = exporter.series("discovery_up")
        return value

    def is_pod_ready() -> bool:
        [steady] = cluster.pods(NAMESPACE)
        return {"type": "Ready", "status": "True"}.items() <= next(
            each for each in steady["status"]["conditions"] if each["type"] == "Ready"
        ).items()

    found = eventually("the pod", 60, lambda: info(watching))
    [(labels, _)] = found
    assert (labels["service"], labels["container"]) == ("steady", "model")
    eventually("the same of the kubelet", 60, lambda: info(asking) == found)
    run(SCRIPT, "stop", "kubelet-2")
    try:
        eventually("that the kubelet does not answer", 30, lambda: up(asking) == 0.0)
        eventually("the node is not ready", 120, lambda: ready(cluster) == "Unknown")
        eventually("that its pod is said not to be ready", 30, lambda: not is_pod_ready())
        for exporter in exporters:
            eventually("that it is polled on", 30, partial(exporter.has_more_than, exporter.runs()))
            assert info(exporter) == found, "the same container"
        assert up(watching) == 1.0
    finally:
        run(SCRIPT, "start", "kubelet-2")
    eventually("the node", 60, lambda: ready(cluster) == "True")
    eventually("that the kubelet answers", 60, lambda: up(asking) == 1.0)
    assert [info(exporter) for exporter in exporters] == [found, found]
