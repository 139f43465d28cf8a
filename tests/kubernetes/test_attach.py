"""A probe without a new image: the patch of `infercanary attach` adds it to a Deployment that lacks a probe."""

import os
import time

import pytest
import yaml
from attached import IMAGE, attach, filled_volume, steady_seconds
from cluster import GIVEN, LOAD, SCRIPT
from harness import eventually, run
from node_images import small_copy
from workloads import deployment, namespace, pod

from infercanary.contract.report import decode

NAMESPACE = "attached"
SERVER, PROBE = "docker.io/infercanary/plain:test", "docker.io/infercanary/volume:test"
BASE = "python:3.11-slim-bookworm"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SETTINGS = {"canaries": {"search": {"target": "http", "options": {"url": "http://127.0.0.1:8000/"}}}}
REPORT = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9798/report').read().decode())"


@pytest.fixture
def patch(cluster):
    with filled_volume():
        small_copy(BASE, SERVER, 'CMD ["python", "-m", "http.server", "8000"]')
        small_copy(IMAGE, PROBE, "USER 10003")
        program = os.environ[LOAD] if GIVEN else f"{SCRIPT} load"
        run("sh", "-c", f"{program} {SERVER} {PROBE}", seconds=600)
        _, made = attach(SERVER)
    made["metadata"]["name"] = "search"
    spec = made["spec"]["template"]["spec"]
    spec["initContainers"][0]["image"] = PROBE
    spec["containers"][0]["name"] = "server"
    yield made
    run("docker", "rmi", SERVER, PROBE)


def test_from_the_patch_to_a_steady_run_and_back(cluster, patch, tmp_path):
    server = {
        "name": "server",
        "image": SERVER,
        "imagePullPolicy": "Never",
        "workingDir": "/tmp",
        "securityContext": RESTRICTED,
    }
    within = ("--namespace", NAMESPACE)
    cluster.apply(
        namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"}),
        deployment("search", pod(server), NAMESPACE),
    )
    try:
        cluster.kubectl("rollout", "status", "deployment/search", *within, "--timeout", "90s")
        (tmp_path / "probe.yaml").write_text(yaml.safe_dump(SETTINGS))
        (tmp_path / "attach.yaml").write_text(yaml.safe_dump(patch))
        settings = f"--from-file={tmp_path / 'probe.yaml'}"
        cluster.kubectl("create", "configmap", "infercanary-probe", *within, settings)
        began = time.monotonic()
        cluster.kubectl(
            "patch", "deployment", "search", *within, "--patch-file", str(tmp_path / "attach.yaml")
        )
        cluster.kubectl("rollout", "status", "deployment/search", *within, "--timeout", "90s")
        execute = ("exec", "deployment/search", *within, "--container", "server", "--")
        seconds = lambda: steady_seconds(decode(cluster.kubectl(*execute, "python", "-c", REPORT).encode()))  # noqa: E731
        eventually("a steady run", 60, lambda: _answer(seconds))
        print(f"{time.monotonic() - began:.1f} s from the patch to the first steady run")
        assert cluster.kubectl(*execute, "cat", "/proc/1/cmdline").split("\0")[:3] == [
            "python",
            "-m",
            "http.server",
        ]
        assert time.monotonic() - began < 60
        cluster.kubectl("rollout", "undo", "deployment/search", *within)
        cluster.kubectl("rollout", "status", "deployment/search", *within, "--timeout", "90s")
        [left] = eventually("one pod", 60, lambda: _single(cluster.pods(NAMESPACE)))
        assert "initContainers" not in left["spec"]
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, seconds=300)


def _answer(ask):
    try:
        return ask()
    except AssertionError:
        return None


def _single(pods):
    return pods if len(pods) == 1 else None
