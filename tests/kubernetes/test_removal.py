"""What Helm does to a chart that is installed: an upgrade, a rollback, and a removal that leaves nothing."""

from __future__ import annotations

import pytest
from cluster import GIVEN, Cluster
from harness import eventually
from operated import Prometheus
from workloads import OLD, container, deployment, pod

NAMESPACE = RELEASE = "infercanary"
CHART = ("charts/infercanary", "--namespace", NAMESPACE, "--reuse-values")
KINDS = "daemonset,serviceaccount,podmonitor,prometheusrule,networkpolicy,clusterrole,clusterrolebinding,priorityclass"


def round_of(cluster: Cluster) -> str:
    """What all pods are annotated with, once each node has a new one."""
    cluster.kubectl("rollout", "status", f"daemonset/{RELEASE}", "--namespace", NAMESPACE, "--timeout", "90s")
    annotations = [pod["metadata"].get("annotations", {}) for pod in cluster.pods(NAMESPACE)]
    assert len(annotations) == 3
    [value] = {each.get("round", "first") for each in annotations}
    return value


def identity(prometheus: Prometheus) -> list[tuple[str, ...]]:
    """Who the pod of this module is, as its node's exporter says."""
    labels = (
        "instance",
        "namespace",
        "pod",
        "container",
        "container_id",
        "image_id",
        "image_digest",
        "service",
    )
    series = prometheus.query('infercanary_container_info{service="asked-for"}')
    return [tuple(each.get(label, "") for label in labels) for each, _ in series]


def test_a_setting_that_is_wrong_is_refused_and_changes_nothing(
    cluster: Cluster, installed: Prometheus
) -> None:
    with pytest.raises(AssertionError, match="store: Additional property path is not allowed"):
        cluster.helm("upgrade", RELEASE, *CHART, "--set", "store.path=/x")
    assert round_of(cluster) == "first"


def test_an_upgrade_to_asking_the_kubelets_and_a_rollback(cluster: Cluster, installed: Prometheus) -> None:
    cluster.apply(deployment("asked-for", pod(container(OLD))))
    by_watch = eventually("its pod, by the watch", 60, lambda: identity(installed))
    kubelets = ["discovery.kubelet.enabled=true", "config.kubernetes.kubelet.poll_seconds=1"]
    if GIVEN:  # who signs certificates of its kubelets is not known
        kubelets.append("discovery.kubelet.insecureSkipVerify=true")
    settings = [word for each in kubelets for word in ("--set", each)]
    cluster.helm("upgrade", RELEASE, *CHART, "--set-string", "podAnnotations.round=second", *settings)
    assert round_of(cluster) == "second"
    assert cluster.rights(f"{NAMESPACE}:infercanary") == {"nodes/pods": "get"}
    asked = "infercanary_discovery_up == 1"
    eventually("an answer of each kubelet", 60, lambda: len(installed.query(asked)) == 3)
    eventually("the same pod, by its kubelet", 60, lambda: identity(installed) == by_watch)
    cluster.helm("rollback", RELEASE, "1", "--namespace", NAMESPACE)
    assert round_of(cluster) == "first"
    assert cluster.rights(f"{NAMESPACE}:infercanary") == {"pods": "list watch"}


def test_nothing_is_left(cluster: Cluster, installed: Prometheus) -> None:
    selector = ("--all-namespaces", "--selector", f"app.kubernetes.io/instance={RELEASE}", "--output", "name")
    assert len(cluster.kubectl("get", KINDS, *selector).split()) >= 8
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE)
    eventually("nothing is left", 60, lambda: not cluster.kubectl("get", f"{KINDS},pod,configmap", *selector))
