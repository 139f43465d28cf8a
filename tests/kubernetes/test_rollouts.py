"""Real controllers of rollouts ask the exporter before they promote, by the templates of `deploy/` as they are shipped.

Of each controller: a slower image is aborted and the old one stays; an identical rebuild waits, and is promoted by
itself; with the exporter down nothing is promoted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import yaml
from cluster import GIVEN, NODE_LABEL, SCRIPT, Cluster, Object
from harness import ROOT, eventually, get, run
from node_images import EXPORTER
from prometheus_client.parser import text_string_to_metric_families
from workloads import NEW, OLD, REBUILT, container, deployment, namespace, pod

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(bool(GIVEN), reason="the controllers would be its own"),
]

GATE = "gate"
BASELINE_RUNS = 24
BASELINE_SECONDS = 900.0
EARLIER_STARTS = 8
VERDICT_SECONDS = 1800.0
AWAY = "infercanary.test/no-such-node"
SHIPPED = "http://infercanary.infercanary:9797"
"""The exporter's address in the templates. The controllers run beside the cluster, where its names mean nothing."""


class Exporter(NamedTuple):
    """The one exporter, on the node of all pods of this module."""

    cluster: Cluster
    url: str

    def runs(self, namespace: str, service: str) -> dict[str, float]:
        """Pod → its runs."""
        of = {"namespace": namespace, "service": service}
        return {
            sample.labels["pod"]: sample.value
            for family in text_string_to_metric_families(get(f"{self.url}/metrics").decode())
            for sample in family.samples
            if sample.name == "infercanary_runs_collected_total" and of.items() <= sample.labels.items()
        }

    def has_baseline(self, namespace: str, service: str, replicas: int) -> None:
        """Wait until each of its pods has runs enough."""

        def reported() -> bool:
            runs = self.runs(namespace, service)
            return len(runs) == replicas and min(runs.values()) >= BASELINE_RUNS

        eventually(f"a baseline of {service}", BASELINE_SECONDS, reported)

    def move(self, node: str | None) -> None:
        """Let it be on no node, or be back."""
        patch = {"spec": {"template": {"spec": {"nodeSelector": {AWAY: node}}}}}
        self.cluster.kubectl(
            *("patch", "daemonset", GATE, "--namespace", GATE, "--type", "merge"),
            *("--patch", yaml.safe_dump(patch)),
        )


@pytest.fixture(scope="module")
def exporter(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    repository, _, tag = EXPORTER.partition(":")
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "config": {"poll_seconds": 1},
        "nodeSelector": {NODE_LABEL: "1"},
        "monitoring": {"enabled": False},
        "dashboards": {"enabled": False},
    }
    path = tmp_path_factory.mktemp("gate") / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    cluster.apply(namespace(GATE))
    cluster.helm("install", GATE, "charts/infercanary", "--namespace", GATE, "--values", str(path))
    try:
        address = cluster.get("service", GATE, "--namespace", GATE)["spec"]["clusterIP"]
        cluster.kubectl("rollout", "status", f"daemonset/{GATE}", "--namespace", GATE, "--timeout", "90s")
        yield Exporter(cluster, f"http://{address}:9797")
    finally:
        cluster.helm("uninstall", GATE, "--namespace", GATE)


class Controller(NamedTuple):
    """One that rolls out, and what it says of a rollout, which has the name of its service."""

    cluster: Cluster
    exporter: Exporter
    namespace: str
    starts: Callable[[str, int], Object]
    """From a name and a number of replicas, what is rolled out first, with the old image."""
    primary: str
    """Added to the name: the `app` of the pods with the promoted image."""

    def begin(self, name: str, replicas: int = 2) -> None:
        """Run the old image until it has a baseline."""
        self.cluster.apply(*self.starts(name, replicas)["items"])
        self.exporter.has_baseline(self.namespace, name, replicas)

    def start_again(self, name: str, replicas: int = 2) -> None:
        """All pods of the old image are replaced, and have a baseline again."""
        label = f"app={name}{self.primary}"
        self.cluster.kubectl("delete", "pod", "--namespace", self.namespace, "--selector", label)
        self.exporter.has_baseline(self.namespace, name, replicas)

    def images(self, name: str) -> set[str]:
        """Those that the pods with the promoted image have."""
        pods = self.cluster.pods(self.namespace, f"app={name}{self.primary}")
        return {pod["spec"]["containers"][0]["image"] for pod in pods}


# Argo Rollouts ------------------------------------------------------------------------------------------------------


def _template(path: str) -> Object:
    found: Object = yaml.safe_load((ROOT / path).read_text())
    return found


@pytest.fixture(scope="module")
def argo(cluster: Cluster, exporter: Exporter) -> Iterator[Controller]:
    there = "argo"
    arguments: list[Any] = [
        {"name": "namespace", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "image", "valueFrom": {"fieldRef": {"fieldPath": "spec.template.spec.containers[0].image"}}},
        {"name": "exporter", "value": exporter.url},
    ]

    def rollout(name: str, replicas: int) -> Object:
        analysis = {
            "templates": [{"templateName": "infercanary"}],
            "args": [{"name": "service", "value": name}, *arguments],
        }
        made = deployment(name, pod(container(OLD)), there, replicas)
        made |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
        # Half of the pods have the new image while it is asked for.
        made["spec"]["strategy"] = {"canary": {"steps": [{"setWeight": 50}, {"analysis": analysis}]}}
        return {"items": [made]}

    run(SCRIPT, "start", "argo-rollouts")
    template = _template("deploy/argo-rollouts/analysis-template.yaml")
    template["metadata"]["namespace"] = there
    cluster.apply(namespace(there))
    cluster.apply(template)
    try:
        yield Controller(cluster, exporter, there, rollout, "")
    finally:
        cluster.kubectl("delete", "rollouts.argoproj.io", "--all", "--namespace", there)
        run(SCRIPT, "stop", "argo-rollouts")


def set_image(controller: Controller, kind: str, name: str, image: str) -> None:
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]
    controller.cluster.kubectl(
        *("patch", kind, name, "--namespace", controller.namespace, "--type", "json"),
        *("--patch", yaml.safe_dump(patch)),
    )


def state(controller: Controller, name: str) -> Object:
    status: Object = controller.cluster.get("rollouts.argoproj.io", name, "--namespace", controller.namespace)
    return status["status"]


def measured(controller: Controller, name: str) -> Object:
    """How many measurements of its analysis ended in which way, and its phase."""
    items = controller.cluster.get("analysisruns", "--namespace", controller.namespace)["items"]
    for each in items:
        if each["metadata"]["ownerReferences"][0]["name"] == name:
            [result] = each.get("status", {}).get("metricResults") or [{}]
            return {**result, "phase": each.get("status", {}).get("phase", "")}
    return {"phase": ""}


def test_argo_aborts_a_slower_image_and_the_old_one_stays(argo: Controller) -> None:
    argo.begin("slow")
    set_image(argo, "rollouts.argoproj.io", "slow", NEW)
    eventually("an abort", VERDICT_SECONDS, lambda: state(argo, "slow").get("abort"))
    assert measured(argo, "slow")["phase"] == "Failed"
    eventually("the old image alone", 60, lambda: argo.images("slow") == {OLD})
    assert state(argo, "slow")["phase"] == "Degraded", "which it is until somebody undoes the change"


def test_argo_waits_for_an_identical_rebuild_and_promotes_it_by_itself(argo: Controller) -> None:
    argo.begin("rebuilt")
    for _ in range(EARLIER_STARTS // 2 - 1):
        argo.start_again("rebuilt")
    set_image(argo, "rollouts.argoproj.io", "rebuilt", REBUILT)
    eventually("that it waits", 900, lambda: measured(argo, "rebuilt").get("inconclusive", 0))
    assert argo.images("rebuilt") == {OLD, REBUILT}
    eventually("its promotion", VERDICT_SECONDS, lambda: measured(argo, "rebuilt")["phase"] == "Successful")
    eventually("the new image alone", 120, lambda: argo.images("rebuilt") == {REBUILT})
    assert state(argo, "rebuilt")["phase"] == "Healthy"


def test_argo_waits_while_the_exporter_is_down(argo: Controller) -> None:
    argo.begin("silent")
    argo.exporter.move("away")
    try:
        set_image(argo, "rollouts.argoproj.io", "silent", REBUILT)
        eventually("errors of its analysis", 900, lambda: measured(argo, "silent").get("error", 0) >= 4)
        status = state(argo, "silent")
        assert (measured(argo, "silent")["phase"], status.get("abort")) == ("Running", None)
        assert status["phase"] in ("Progressing", "Paused")
        assert argo.images("silent") == {OLD, REBUILT}
    finally:
        argo.exporter.move(None)


# Flagger ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flagger(cluster: Cluster, exporter: Exporter) -> Iterator[Controller]:
    there = "flagger"

    def canary(name: str, replicas: int) -> Object:
        text = (ROOT / "deploy/flagger/canary.yaml").read_text()
        made = yaml.safe_load(text.replace(SHIPPED, exporter.url))
        made["metadata"] = {"name": name, "namespace": there}
        made["spec"]["targetRef"]["name"] = name
        for webhook in made["spec"]["analysis"]["webhooks"]:
            webhook["metadata"]["service"] = name
        target = deployment(name, pod(container(OLD), service=name), there, replicas)
        return {"items": [target, made]}

    # It asks whether there is a Prometheus, which nothing here needs.
    run(SCRIPT, "start", "flagger", PROMETHEUS="http://127.0.0.1:9")
    cluster.apply(namespace(there))
    try:
        yield Controller(cluster, exporter, there, canary, "-primary")
    finally:
        cluster.kubectl("delete", "namespace", there, seconds=300)
        run(SCRIPT, "stop", "flagger")


def phase(flagger: Controller, name: str) -> str:
    status = flagger.cluster.get("canaries.flagger.app", name, "--namespace", flagger.namespace)["status"]
    return str(status.get("phase", ""))


def initialized(flagger: Controller, name: str, replicas: int = 2) -> None:
    """Flagger has copied the target to a primary, which alone runs."""
    flagger.begin(name, replicas)
    eventually("its primary", 900, lambda: phase(flagger, name) == "Initialized")
    flagger.exporter.has_baseline(flagger.namespace, name, replicas)


def test_flagger_rolls_a_slower_image_back_and_the_old_one_stays(flagger: Controller) -> None:
    initialized(flagger, "slow")
    set_image(flagger, "deployment", "slow", NEW)
    eventually("a rollback", VERDICT_SECONDS, lambda: phase(flagger, "slow") == "Failed")
    assert flagger.images("slow") == {OLD}
    eventually("no pod of the new image", 60, lambda: not flagger.cluster.pods("flagger", "app=slow"))


def test_flagger_waits_for_an_identical_rebuild_and_promotes_it_by_itself(flagger: Controller) -> None:
    initialized(flagger, "rebuilt")
    for _ in range(EARLIER_STARTS // 2 - 1):
        flagger.start_again("rebuilt")
    set_image(flagger, "deployment", "rebuilt", REBUILT)
    # It asks after four intervals; where there is a verdict by then, it does not wait longer.
    eventually("that it runs beside the old one", 300, lambda: flagger.cluster.pods("flagger", "app=rebuilt"))
    assert flagger.images("rebuilt") == {OLD}
    eventually("its promotion", VERDICT_SECONDS, lambda: phase(flagger, "rebuilt") == "Succeeded")
    assert flagger.images("rebuilt") == {REBUILT}


def test_flagger_waits_while_the_exporter_is_down(flagger: Controller) -> None:
    initialized(flagger, "silent")
    flagger.exporter.move("away")
    try:
        set_image(flagger, "deployment", "silent", REBUILT)
        eventually("that it waits", 600, lambda: phase(flagger, "silent") == "WaitingPromotion")
        time.sleep(60)  # two of its intervals, in each of which it asks
        assert phase(flagger, "silent") == "WaitingPromotion"
        assert flagger.images("silent") == {OLD}
    finally:
        flagger.exporter.move(None)
