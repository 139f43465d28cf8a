"""Helm operations on an installed chart: upgrade, rollback, and complete removal."""

import pytest
from harness import eventually

NAMESPACE = RELEASE = "infercanary"
CHART = ("charts/infercanary", "--namespace", NAMESPACE, "--reuse-values")
KINDS = "daemonset,serviceaccount,podmonitor,prometheusrule,networkpolicy,clusterrole,clusterrolebinding,priorityclass"


def round_of(cluster):
    cluster.kubectl("rollout", "status", f"daemonset/{RELEASE}", "--namespace", NAMESPACE, "--timeout", "90s")
    annotations = [pod["metadata"].get("annotations", {}) for pod in cluster.pods(NAMESPACE)]
    assert len(annotations) == 3
    [value] = {each.get("round", "first") for each in annotations}
    return value


def test_a_setting_that_is_wrong_is_refused_and_changes_nothing(cluster, installed):
    with pytest.raises(AssertionError, match="store: Additional property path is not allowed"):
        cluster.helm("upgrade", RELEASE, *CHART, "--set", "store.path=/x")
    assert round_of(cluster) == "first"


def test_an_upgrade_and_a_rollback(cluster, installed):
    cluster.helm("upgrade", RELEASE, *CHART, "--set-string", "podAnnotations.round=second")
    assert round_of(cluster) == "second"
    eventually("each exporter is up", 60, lambda: len(installed.query("infercanary_discovery_up == 1")) == 3)
    cluster.helm("rollback", RELEASE, "1", "--namespace", NAMESPACE)
    assert round_of(cluster) == "first"


def test_nothing_is_left(cluster, installed):
    selector = ("--all-namespaces", "--selector", f"app.kubernetes.io/instance={RELEASE}", "--output", "name")
    assert len(cluster.kubectl("get", KINDS, *selector).split()) >= 8
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE)
    eventually("nothing is left", 60, lambda: not cluster.kubectl("get", f"{KINDS},pod,configmap", *selector))
