"""A node whose kubelet is stopped: its containers run on, and are polled on."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from cluster import GIVEN, SCRIPT, Cluster
from harness import eventually, run
from prometheus_client.parser import text_string_to_metric_families
from workloads import container, deployment, namespace, pod

NODE, NAMESPACE = "node-2", "kubelet-test"
COMMAND = """
import sys
from pathlib import Path
from infercanary.command.cli import main
from infercanary.exporter.discovery import kubernetes
kubernetes._ACCOUNT = Path(sys.argv.pop(1))
main()
"""


class Exporter:
    """As a process on this machine, following one node with the token of a service account."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        given = yaml.safe_load(Path(cluster.kubeconfig).read_text())["clusters"][0]["cluster"]
        (folder / "token").write_text(
            cluster.kubectl("create", "token", "exporter", "--namespace", NAMESPACE)
        )
        shutil.copy(given["certificate-authority"], folder / "ca.crt")
        server = urlsplit(given["server"])
        where = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "NODE_NAME": NODE,
        }
        config = {"listen": f"127.0.0.1:{self.port}", "poll_seconds": 0.5, "discovery": "kubernetes"}
        path = folder / "exporter.yaml"
        path.write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, folder, "exporter", "--config", path],
            stderr=subprocess.DEVNULL,
            env={**os.environ, **where},
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

    def runs(self) -> float:
        [(_, count)] = self.series("runs_collected_total", namespace=NAMESPACE)
        return count


@pytest.fixture
def exporter(cluster: Cluster, tmp_path: Path) -> Iterator[Exporter]:
    """Follows the node with the rights that the chart's has."""
    role = f"{NAMESPACE}-exporter"
    cluster.apply(
        namespace(NAMESPACE),
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "exporter", "namespace": NAMESPACE},
        },
        deployment("steady", pod(container(), nodes=(2,)), NAMESPACE),
    )
    cluster.kubectl("create", "clusterrole", role, "--verb=list,watch", "--resource=pods")
    cluster.kubectl(
        "create", "clusterrolebinding", role, f"--clusterrole={role}",
        f"--serviceaccount={NAMESPACE}:exporter",
    )  # fmt: skip
    started = Exporter(cluster, tmp_path)
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.wait(10)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", role)


def ready(cluster: Cluster) -> str:
    conditions = cluster.get("node", NODE)["status"]["conditions"]
    [state] = [each["status"] for each in conditions if each["type"] == "Ready"]
    return str(state)


@pytest.mark.skipif(
    bool(GIVEN), reason="whose kubelet may be stopped is not known of a cluster that is given"
)
def test_a_kubelet_that_is_stopped(cluster: Cluster, exporter: Exporter) -> None:
    def info() -> list[tuple[dict[str, str], float]]:
        return exporter.series("container_info", namespace=NAMESPACE)

    def is_pod_ready() -> bool:
        [steady] = cluster.pods(NAMESPACE)
        return {"type": "Ready", "status": "True"}.items() <= next(
            each for each in steady["status"]["conditions"] if each["type"] == "Ready"
        ).items()

    found = eventually("the pod", 60, info)
    [(labels, _)] = found
    assert (labels["service"], labels["container"]) == ("steady", "model")
    run(SCRIPT, "stop", "kubelet-2")
    try:
        eventually("the node is not ready", 120, lambda: ready(cluster) == "Unknown")
        eventually("that its pod is said not to be ready", 30, lambda: not is_pod_ready())
        runs = exporter.runs()
        eventually("that it is polled on", 30, lambda: exporter.runs() > runs)
        assert info() == found, "the same container"
        assert exporter.series("discovery_up") == [({}, 1.0)]
    finally:
        run(SCRIPT, "start", "kubelet-2")
    eventually("the node", 60, lambda: ready(cluster) == "True")
    assert info() == found
