"""Real rollout controllers ask the exporter before they promote, with the shipped templates of `deploy/`.

Each controller aborts a slower image and keeps the old one; it waits for an identical rebuild and then
promotes it; without an exporter, it promotes nothing.
"""

import time
from typing import ClassVar, NamedTuple

import pytest
import yaml
from cluster import GIVEN, SCRIPT, Cluster
from harness import ROOT, eventually, get, run
from prometheus_client.parser import text_string_to_metric_families
from workloads import NEW, OLD, REBUILT, container, deployment, namespace, pod

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(bool(GIVEN), reason="a given cluster needs its own controllers"),
]

GATE = "gate"
BASELINE_RUNS = 24
BASELINE_SECONDS = 900.0
EARLIER_STARTS = 3
VERDICT_SECONDS = 1800.0
REPLICAS = 2
AWAY = "infercanary.test/no-such-node"
SHIPPED = "http://infercanary.infercanary:9797"
"""Address of the exporter in the templates. It is replaced, because the controllers run beside the cluster
and cannot resolve the cluster's names.
"""


class Exporter(NamedTuple):
    cluster: Cluster
    url: str

    def runs(self, namespace, service):
        of = {"namespace": namespace, "service": service}
        return {
            sample.labels["pod"]: sample.value
            for family in text_string_to_metric_families(get(f"{self.url}/metrics").decode())
            for sample in family.samples
            if sample.name == "infercanary_runs_collected_total" and of.items() <= sample.labels.items()
        }

    def has_baseline(self, namespace, service, replicas):
        """Wait until each pod of the service has enough runs for a baseline."""

        def reported():
            runs = self.runs(namespace, service)
            return len(runs) == replicas and min(runs.values()) >= BASELINE_RUNS

        eventually(f"a baseline of {service}", BASELINE_SECONDS, reported)

    def move(self, node):
        """Remove the exporter from all nodes, or let it return."""
        patch = {"spec": {"template": {"spec": {"nodeSelector": {AWAY: node}}}}}
        self.cluster.kubectl(
            *("patch", "daemonset", GATE, "--namespace", GATE, "--type", "merge"),
            *("--patch", yaml.safe_dump(patch)),
        )


@pytest.fixture(scope="module")
def exporter(cluster, tmp_path_factory):
    cluster.apply(namespace(GATE))
    with cluster.release(GATE, tmp_path_factory.mktemp("gate"), dashboards={"enabled": False}):
        address = cluster.get("service", GATE, "--namespace", GATE)["spec"]["clusterIP"]
        cluster.kubectl("rollout", "status", f"daemonset/{GATE}", "--namespace", GATE, "--timeout", "90s")
        yield Exporter(cluster, f"http://{address}:9797")


class Controller:
    """A rollout controller. A rollout has the name of its service.

    Args:
        exporter: The exporter that the controller's templates ask.
    """

    name: ClassVar[str]
    """Name of the controller and of its namespace."""
    kind: ClassVar[str]
    """Kind of the object with the image."""
    primary: ClassVar[str] = ""
    """Suffix of the label `app` of pods with the promoted image."""
    promoted: ClassVar[str]

    def __init__(self, exporter):
        self.exporter, self.cluster = exporter, exporter.cluster

    def first(self, name):
        raise NotImplementedError

    def phase(self, name):
        raise NotImplementedError

    def waits(self, name):
        """Return True if the controller asked, and no answer permitted a promotion."""
        raise NotImplementedError

    def begin(self, name):
        self.cluster.apply(*self.first(name))
        self.exporter.has_baseline(self.name, name, REPLICAS)

    def start_again(self, name):
        label = f"app={name}{self.primary}"
        self.cluster.kubectl("delete", "pod", "--namespace", self.name, "--selector", label)
        self.exporter.has_baseline(self.name, name, REPLICAS)

    def set_image(self, name, image):
        patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]
        self.cluster.kubectl(
            *("patch", self.kind, name, "--namespace", self.name, "--type", "json"),
            *("--patch", yaml.safe_dump(patch)),
        )

    def images(self, name):
        pods = self.cluster.pods(self.name, f"app={name}{self.primary}")
        return {pod["spec"]["containers"][0]["image"] for pod in pods}


def _template(path, exporter):
    return yaml.safe_load((ROOT / path).read_text().replace(SHIPPED, exporter.url))


class Argo(Controller):
    """Argo Rollouts: during the analysis, half of the pods have the new image."""

    name, kind, promoted = "argo-rollouts", "rollouts.argoproj.io", "Successful"

    def first(self, name):
        template = _template("deploy/argo-rollouts/analysis-template.yaml", self.exporter)
        template["metadata"]["namespace"] = self.name
        image = "spec.template.spec.containers[0].image"
        arguments = [
            {"name": "service", "value": name},
            {"name": "namespace", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "image", "valueFrom": {"fieldRef": {"fieldPath": image}}},
            {"name": "exporter", "value": self.exporter.url},
        ]
        analysis = {"templates": [{"templateName": "infercanary"}], "args": arguments}
        made = deployment(name, pod(container(OLD)), self.name, REPLICAS)
        made |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
        made["spec"]["strategy"] = {"canary": {"steps": [{"setWeight": 50}, {"analysis": analysis}]}}
        return [template, made]

    def _measured(self, name):
        for analysis in self.cluster.get("analysisruns", "--namespace", self.name)["items"]:
            if analysis["metadata"]["ownerReferences"][0]["name"] == name:
                status = analysis.get("status", {})
                return {**(status.get("metricResults") or [{}])[0], "phase": status.get("phase", "")}
        return {}

    def phase(self, name):
        return str(self._measured(name).get("phase", ""))

    def waits(self, name):
        found = self._measured(name)
        return found.get("phase") == "Running" and (
            found.get("inconclusive", 0) or found.get("error", 0) >= 4
        )


class Flagger(Controller):
    """Flagger copies the target to a primary, which runs alone. The target's pods run only during the analysis."""

    name, kind, primary, promoted = "flagger", "deployment", "-primary", "Succeeded"

    def first(self, name):
        made = _template("deploy/flagger/canary.yaml", self.exporter)
        made["metadata"] = {"name": name, "namespace": self.name}
        made["spec"]["targetRef"]["name"] = name
        for webhook in made["spec"]["analysis"]["webhooks"]:
            webhook["metadata"]["service"] = name
        return [deployment(name, pod(container(OLD), service=name), self.name, REPLICAS), made]

    def begin(self, name):
        super().begin(name)
        eventually("the primary is ready", 900, lambda: self.phase(name) == "Initialized")
        self.exporter.has_baseline(self.name, name, REPLICAS)

    def phase(self, name):
        canary = self.cluster.get("canaries.flagger.app", name, "--namespace", self.name)
        return str(canary["status"].get("phase", ""))

    def waits(self, name):
        # Flagger asks after four intervals, and waits no longer if there is a verdict.
        return bool(self.cluster.pods(self.name, f"app={name}")) and self.phase(name) != "Failed"


@pytest.fixture(scope="module", params=[Argo, Flagger])
def controller(request, cluster, exporter):
    made = request.param(exporter)
    # At its start, Flagger looks for a Prometheus, which this test does not need.
    run(SCRIPT, "start", made.name, PROMETHEUS="http://127.0.0.1:9")
    cluster.apply(namespace(made.name))
    try:
        yield made
    finally:
        cluster.kubectl("delete", "namespace", made.name, seconds=300)
        run(SCRIPT, "stop", made.name)


def test_a_slower_image_is_undone_and_the_old_one_stays(controller):
    controller.begin("slow")
    controller.set_image("slow", NEW)
    eventually("the rollout failed", VERDICT_SECONDS, lambda: controller.phase("slow") == "Failed")
    eventually("only the old image runs", 60, lambda: controller.images("slow") == {OLD})


def test_an_identical_rebuild_waits_and_is_promoted_by_itself(controller):
    controller.begin("rebuilt")
    for _ in range(EARLIER_STARTS):
        controller.start_again("rebuilt")
    controller.set_image("rebuilt", REBUILT)
    eventually("the controller waits", 900, lambda: controller.waits("rebuilt"))
    assert OLD in controller.images("rebuilt")
    eventually(
        "the rollout is promoted", VERDICT_SECONDS, lambda: controller.phase("rebuilt") == controller.promoted
    )
    eventually("only the new image runs", 120, lambda: controller.images("rebuilt") == {REBUILT})


def test_nothing_is_promoted_while_the_exporter_is_down(controller):
    controller.begin("silent")
    controller.exporter.move("away")
    try:
        controller.set_image("silent", REBUILT)
        eventually("the controller waits", 900, lambda: controller.waits("silent"))
        time.sleep(150)  # several intervals; the controller asks in each of them
        assert controller.waits("silent")
        assert controller.phase("silent") != controller.promoted
        assert OLD in controller.images("silent")
    finally:
        controller.exporter.move(None)
