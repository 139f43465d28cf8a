"""A real Kubernetes cluster of three nodes, made once for all tests of this folder. Without a cluster, they are
skipped.
"""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
import yaml
from cluster import CHART_IMAGE, GIVEN, LOAD, NODE_LABEL, SCRIPT, Cluster, missing
from folders import NeedyFolder
from harness import eventually, run
from node_images import EXPORTER, archive
from operated import PROMETHEUS, configuration, running
from workloads import FILES, IMAGES, namespace


def pytest_configure(config):
    needs = "the tests on a cluster need a Kubernetes"
    config.pluginmanager.register(NeedyFolder(Path(__file__).parent, "kubernetes", needs, missing))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    lock = os.open(Path(tempfile.gettempdir(), "infercanary-kubernetes.lock"), os.O_CREAT | os.O_WRONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # Sessions on one machine take turns, because they use the same cluster.
    run("docker", "build", "--quiet", "--tag", EXPORTER, "--file", "exporter/Dockerfile", ".", seconds=600)
    archive(folder / "images.tar", IMAGES, FILES)
    try:
        if GIVEN:
            run("docker", "load", "--input", str(folder / "images.tar"), seconds=300)
            run("sh", "-c", f"{os.environ[LOAD]} {EXPORTER} {' '.join(IMAGES)}", seconds=600)
        else:
            print(run(SCRIPT, "up", "3", str(folder / "images.tar"), seconds=300))
        (folder / "images.tar").unlink()
        started = Cluster(folder)
        for number, name in enumerate(started.nodes, 1):
            started.kubectl("label", "--overwrite", "node", name, f"{NODE_LABEL}={number}")
        yield started
    finally:
        if GIVEN:
            given_back(Cluster(folder))
        else:
            run(SCRIPT, "down", seconds=120)
        os.close(lock)


def given_back(cluster):
    cluster.kubectl("delete", "namespace", "--ignore-not-found", RELEASE, *NAMESPACES, seconds=300)
    cluster.kubectl("label", "node", *cluster.nodes, f"{NODE_LABEL}-")


RELEASE = "infercanary"
NAMESPACES = ("monitoring", "ml", "ads")
VALUES = {
    "image": CHART_IMAGE,
    "config": {"poll_seconds": 1},
    "links": {"grafana": "https://grafana.example.com", "runbooks": "https://runbooks.example.com"},
    "monitoring": {"interval": "1s"},
    "networkPolicy": {"enabled": True},
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 3}},
}


@pytest.fixture(scope="session")
def installed(cluster, tmp_path_factory):
    """Install the chart with Pod Security `restricted`, and run a Prometheus with the operator's configuration."""
    if not GIVEN:
        run(SCRIPT, "start", "prometheus-operator")
    cluster.apply(
        namespace(RELEASE, {"pod-security.kubernetes.io/enforce": "restricted"}),
        *(namespace(name) for name in NAMESPACES),
        PROMETHEUS,
    )
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "values.yaml").write_text(yaml.safe_dump(VALUES))
    chart = ("charts/infercanary", "--namespace", RELEASE, "--values", str(folder / "values.yaml"))
    print(cluster.helm("install", RELEASE, *chart))
    cluster.kubectl("rollout", "status", f"daemonset/{RELEASE}", "--namespace", RELEASE, "--timeout", "90s")
    with running(configuration(cluster, f"podMonitor/{RELEASE}/{RELEASE}/0", folder)) as prometheus:
        eventually(
            "a scrape of each node", 60, lambda: len(prometheus.query('up{job="infercanary"} == 1')) == 3
        )
        yield prometheus
