"""With `store.hostPath`, history stays on the node, so the baseline survives a rollout of the exporter."""

import shutil
from pathlib import Path

import pytest
from cluster import GIVEN
from harness import eventually
from workloads import NEW, OLD, container, deployment, namespace, pod

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(bool(GIVEN), reason="the folders of a given cluster's nodes are not accessible"),
]

NAME = "kept"
FOLDER = Path("/var/lib/infercanary-test-history")


@pytest.fixture
def release(cluster, tmp_path):
    """Install a second release on one node, in a namespace that permits the host folder."""
    cluster.apply(namespace(NAME))
    with cluster.release(NAME, tmp_path, store={"hostPath": str(FOLDER)}):
        yield NAME
    shutil.rmtree(FOLDER, ignore_errors=True)


def test_an_upgrade_after_a_rollout_of_the_exporter_has_its_baseline(cluster, release):
    def metrics():
        cluster.kubectl("rollout", "status", f"daemonset/{release}", "--namespace", NAME, "--timeout", "90s")
        [exporter] = cluster.pods(NAME, "app.kubernetes.io/name=infercanary")
        path = f"/api/v1/namespaces/{NAME}/pods/{exporter['metadata']['name']}:9797/proxy/metrics"
        return cluster.kubectl("get", "--raw", path).splitlines()

    def runs():
        found = [line for line in metrics() if line.startswith("infercanary_runs_collected_total{")]
        return sum(float(line.split()[-1]) for line in found)

    def has(verdict):
        return any(f'verdict="{verdict}"' in line and line.endswith(" 1.0") for line in metrics())

    cluster.apply(deployment("server", pod(container(OLD)), NAME))
    eventually("a baseline", 90, lambda: runs() >= 24)
    cluster.kubectl("delete", "pod", "--namespace", NAME, "--selector", "app.kubernetes.io/name=infercanary")
    cluster.apply(deployment("server", pod(container(NEW)), NAME))
    eventually("a verdict", 120, lambda: has("regressed"))
