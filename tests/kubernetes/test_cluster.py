"""The cluster that the other tests use: real nodes, and a machine that is afterwards as it was."""

from __future__ import annotations

from cluster import Cluster
from harness import eventually
from workloads import OLD


def test_it_has_three_nodes(cluster: Cluster) -> None:
    for name in cluster.nodes:
        node = cluster.get("node", name)
        [ready] = [state for state in node["status"]["conditions"] if state["type"] == "Ready"]
        assert ready["status"] == "True", name


def test_a_pod_runs_on_each(cluster: Cluster) -> None:
    labels = {"app": "hello"}
    sleeps = {"name": "hello", "image": OLD, "imagePullPolicy": "Never", "command": ["sleep", "infinity"]}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "hello", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [sleeps]}},
            },
        }
    )

    def running() -> set[str]:
        found = cluster.pods("default", "app=hello")
        return {pod["spec"]["nodeName"] for pod in found if pod["status"]["phase"] == "Running"}

    eventually("a pod on each node", 60, lambda: running() >= {*cluster.nodes})
    cluster.kubectl("delete", "daemonset", "hello", "--wait=false", "--namespace", "default")
