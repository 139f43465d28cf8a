"""What becomes of a service on Kubernetes, and which verdict it must end in: the table below, scenarios side by side.

Canaries wait 40 ms with the old image and 120 ms with the new one, once a second. What is read is what a Prometheus has
that scrapes the exporters by the chart's PodMonitor and evaluates the shipped rules.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import GIVEN, STATE, Cluster, Object
from harness import eventually, get, run
from operated import Prometheus
from workloads import (
    CRASHING,
    NEW,
    OLD,
    REBUILT,
    REGISTRY,
    STORED,
    container,
    deployment,
    job,
    pod,
    stateful_set,
)

pytestmark = pytest.mark.takes(120)

BASELINE_RUNS, RUNS_AFTER = 16, 24
CALLED = {"regressed", "improved"}
SERVER = {"name": "server", "imagePullPolicy": "Never", "command": ["python", "/canary/serve.py"]}


def watched(image: str) -> Object:
    """A server without a probe, and a sidecar that asks it."""
    sidecar = container(command=["infercanary", "probe", "--config", "/canary/sidecar.yaml"], name="probe")
    return pod(sidecar, {**SERVER, "image": image}, watches="server")


BEFORE: dict[str, Object] = {
    "surge": deployment("surge", pod(container(OLD)), replicas=2),
    "undone": deployment("undone", pod(container(OLD))),
    "rebuilt": deployment("rebuilt", pod(container(OLD), nodes=(2,))),
    "scaled": deployment("scaled", pod(container(OLD), nodes=(2,))),
    "drained": deployment("drained", pod(container(OLD), nodes=(3, 2))),
    "moved": deployment("moved", pod(container(OLD), nodes=(1,))),
    "crashing": deployment("crashing", pod(container(OLD), nodes=(2,))),
    "stateful": stateful_set("stateful", pod(container(OLD), nodes=(2,))),
    "nightly": job("nightly-1", pod(container(OLD), service="nightly"), seconds=30),
    "sidecar": deployment("sidecar", watched(OLD)),
    "ml": deployment("one-name", pod(container(OLD))),
    "ads": deployment("one-name", pod(container(OLD)), "ads"),
    "pulled": deployment("pulled", pod(container(STORED), nodes=(2,))),
}
AFTER: dict[str, Object] = {
    "surge": deployment("surge", pod(container(NEW)), replicas=2),
    "undone": deployment("undone", pod(container(NEW))),
    "rebuilt": deployment("rebuilt", pod(container(REBUILT), nodes=(2,))),
    "scaled": deployment("scaled", pod(container(OLD), nodes=(2,)), replicas=2),
    "moved": deployment("moved", pod(container(NEW), nodes=(2,))),
    "crashing": deployment("crashing", pod(container(CRASHING), nodes=(2,)), minReadySeconds=10),
    "stateful": stateful_set("stateful", pod(container(NEW), nodes=(2,))),
    "nightly": job("nightly-2", pod(container(NEW), service="nightly"), seconds=90),
    "sidecar": deployment("sidecar", watched(NEW)),
    "ml": deployment("one-name", pod(container(NEW))),
    "pulled": deployment("pulled", pod(container(STORED, imagePullPolicy="Always"), nodes=(2,))),
}


class Row(NamedTuple):
    """A service on a node, and what it must end in."""

    service: str
    node: int
    verdicts: set[str]
    """One of them, for all of its pods."""
    namespace: str = "ml"
    pods: str = "min"
    """Which of its pods must have runs enough."""

    def labels(self, cluster: Cluster) -> str:
        node = cluster.nodes[self.node - 1]
        return f'namespace="{self.namespace}",service="{self.service}",instance="{node}"'


UNCHANGED = {"no_baseline"}  # one image was seen there
TABLE = {
    "a rolling upgrade with surge": Row("surge", 1, {"regressed"}),
    "two Jobs of one service": Row("nightly", 1, {"regressed"}),
    "a StatefulSet": Row("stateful", 2, {"regressed"}),
    "a server that a sidecar watches": Row("sidecar", 1, {"regressed"}),
    "one of two namespaces with one name": Row("one-name", 1, {"regressed"}),
    "the other namespace": Row("one-name", 1, UNCHANGED, namespace="ads"),
    "an identical rebuild": Row("rebuilt", 2, {"inconclusive", "equivalent"}),
    "a rollback": Row("undone", 1, {"improved"}),
    "a scale up": Row("scaled", 2, UNCHANGED),
    "a drain: the pod moves": Row("drained", 2, UNCHANGED),
    "a new image on another node": Row("moved", 2, UNCHANGED),
    "an image that crashes again and again": Row("crashing", 2, {"settling", "no_baseline"}, pods="max"),
    "an image that was loaded, and then pulled": Row("pulled", 2, UNCHANGED),
}


@contextmanager
def registry(folder: Path) -> Iterator[None]:
    """A real one (Debian's docker-registry), with an image that the nodes have already."""
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: {REGISTRY}}}\n"
    )
    server = subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually("the registry answers", 20, lambda: get(f"http://{REGISTRY}/v2/") is not None)
        socket = f"{STATE}/node-1/containerd.sock"
        run(*("ctr", "--address", socket, "--namespace", "k8s.io", "images", "push", "--plain-http", STORED))
        yield
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder / "data", ignore_errors=True)


@pytest.fixture(scope="module")
def prometheus(
    cluster: Cluster, installed: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """One that has seen all of it: a baseline of each service, then what is done to it."""

    def ran(pods: int, least: int) -> bool:
        """Over time, for the Job's pod may have ended before the last one begins."""
        found = installed.query('max_over_time(infercanary_runs_total{outcome="ok"}[5m])')
        return len(found) >= pods and min(count for _, count in found) >= least

    with nullcontext() if GIVEN else registry(tmp_path_factory.mktemp("registry")):
        before, after = (
            [each for name, each in objects.items() if not (GIVEN and name == "pulled")]
            for objects in (BEFORE, AFTER)
        )
        cluster.apply(*before)
        pods = sum(each["spec"].get("replicas", 1) for each in before)
        eventually("a baseline of each", 180, lambda: ran(pods, BASELINE_RUNS))
        cluster.apply(*after)
        cluster.kubectl("drain", cluster.nodes[2], "--ignore-daemonsets", "--timeout=60s")
        # Back to the old image once the new one has runs enough to be compared with.
        new = 'and on (pod) infercanary_container_info{image=~".+:new"}'
        undone = f'(infercanary_runs_total{{outcome="ok",service="undone"}} {new}) >= 12'
        eventually("runs of the image that is undone", 120, lambda: installed.query(undone))
        cluster.kubectl("rollout", "undo", "deployment/undone", "--namespace", "ml")
        yield installed
    cluster.kubectl("uncordon", cluster.nodes[2])


@pytest.mark.parametrize("name", TABLE)
def test_a_service_ends_in(cluster: Cluster, prometheus: Prometheus, name: str) -> None:
    row = TABLE[name]
    if GIVEN and row.service == "pulled":
        pytest.skip("no containerd is at hand that could push to a registry")
    labels = row.labels(cluster)

    def ended() -> set[str]:
        found = prometheus.query(f"infercanary_verdict{{{labels},measure='latency'}} == 1")
        return {series["verdict"] for series, _ in found}

    def sentences() -> set[str]:
        found = prometheus.query(f"infercanary_verdict_info{{{labels},measure='latency'}}")
        return {f"{series['pod']}: {series['sentence']}" for series, _ in found}

    if not row.verdicts & CALLED:  # it holds after more runs than a change needs to be called
        runs = f"infercanary_runs_total{{outcome='ok',{labels}}}"
        eventually("runs of each pod", 180, lambda: prometheus.query(f"{row.pods}({runs}) >= {RUNS_AFTER}"))

    def is_as_expected() -> bool:
        """Where a host is too noisy for one start to tell, the verdict's sentence asks for another: it gets one."""
        found = ended()
        if found == {"unconfirmed"} and time.monotonic() > patient_until and not asked:
            asked.append(row.service)
            cluster.kubectl("delete", "pod", "--namespace", row.namespace, "--selector", f"app={row.service}")
        return len(found) == 1 and found <= row.verdicts

    asked: list[str] = []
    patient_until = time.monotonic() + 60
    try:
        eventually(f"one of {row.verdicts}", 180, is_as_expected)
    finally:
        print(f"{name}: {sentences()}")
    if not row.verdicts & CALLED:
        called = f"infercanary_verdict{{{labels},measure='latency',verdict=~'{'|'.join(CALLED)}'}}"
        assert not prometheus.query(f"max_over_time({called}[15m]) == 1"), "it was called in between"


def test_crashes_were_seen(cluster: Cluster, prometheus: Prometheus) -> None:
    def restarts() -> int:
        pods = cluster.pods("ml", "app=crashing")
        return max(pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods)

    assert eventually("a second restart", 60, lambda: restarts() >= 2)


def test_the_drained_node_has_nothing_left(cluster: Cluster, prometheus: Prometheus) -> None:
    _, second, third = cluster.nodes
    assert not prometheus.query(f'infercanary_up{{instance="{third}"}}')
    assert prometheus.query(f'infercanary_up{{instance="{second}",service="drained"}} == 1')


def test_the_image_that_was_pulled_has_another_form_of_its_id(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    """Otherwise the row of the table would show nothing."""
    if GIVEN:
        pytest.skip("no containerd is at hand that could push to a registry")
    found = prometheus.query('last_over_time(infercanary_container_info{service="pulled"}[15m])')
    forms = {(series["image"], "image_digest" in series) for series, _ in found}
    assert forms == {(STORED, False), (STORED, True)}  # an id alone, and with the digest in its registry


def test_alerts_fire_for_the_slower_ones_alone(prometheus: Prometheus) -> None:
    """Where the machine was too busy to know whether the host had a part in it, another one fires."""
    slower = {row.service for row in TABLE.values() if row.verdicts == {"regressed"}} - {
        "nightly"
    }  # it has ended
    alerts = (
        'ALERTS{alertname=~"InferCanaryImageRegressed|InferCanaryRegressionUnexplained",alertstate="firing"}'
    )

    def firing() -> set[str]:
        return {labels["service"] for labels, _ in prometheus.query(alerts)} - {"nightly"}

    eventually(f"alerts of {slower}", 120, lambda: firing() == slower)


def test_every_shipped_rule_is_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert len(rules) > 50
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
