"""A real Kubernetes cluster: commands, objects and logs."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from harness import ROOT, run
from node_images import EXPORTER

Object = dict[str, Any]

SCRIPT = str(ROOT / ".ci/kubernetes")
STATE = Path(os.environ.get("KUBERNETES_STATE", "/var/lib/infercanary-kubernetes"))
PROGRAMS = Path(os.environ.get("KUBERNETES", "/var/cache/infercanary/kubernetes"))
GIVEN = os.environ.get("KUBECONFIG")
"""Configuration of an existing cluster. If set, no cluster is started. docs/testing.md lists the requirements."""
LOAD = "KUBERNETES_LOAD"
"""Environment variable with a command that copies the named images from Docker to the nodes of that cluster."""
NODE_LABEL = "infercanary.test/node"
"""Label of three nodes, with the values 1 to 3, because the nodes of an existing cluster have other names."""


CHART_IMAGE = dict(zip(("repository", "tag"), EXPORTER.split(":"), strict=True), pullPolicy="Never")
"""The chart's values of the exporter's image, which the nodes have."""


def missing():
    for program in ("docker", "helm", "prometheus", *(("kubectl",) if GIVEN else ())):
        if not shutil.which(program):
            return f"no program {program}"
    if GIVEN:
        return None if os.environ.get(LOAD) else f"{LOAD} names no command that takes images to the nodes"
    done = subprocess.run([SCRIPT, "programs"], capture_output=True, text=True, timeout=1200)
    return (done.stderr.strip().splitlines() or ["no Kubernetes"])[-1] if done.returncode else None


class Cluster:
    """The running cluster.

    Args:
        folder: Folder for the caches of kubectl and Helm.
    """

    def __init__(self, folder):
        self.kubeconfig = GIVEN or str(STATE / "admin.kubeconfig")
        self._kubectl = "kubectl" if GIVEN else str(PROGRAMS / "kubectl")
        self._environment = {"KUBECONFIG": self.kubeconfig, "KUBECACHEDIR": str(folder / "kubectl")} | {
            f"HELM_{kind}_HOME": str(folder / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")
        }

    @functools.cached_property
    def nodes(self):
        names = sorted(
            node["metadata"]["name"]
            for node in self.get("nodes")["items"]
            if all(taint["effect"] == "PreferNoSchedule" for taint in node["spec"].get("taints", ()))
        )
        assert len(names) >= 3, f"{names}: the tests need three nodes that run pods"
        return names[:3]

    def kubectl(self, *arguments, text=None, seconds=120):
        return run(self._kubectl, *arguments, text=text, seconds=seconds, **self._environment)

    def helm(self, *arguments, seconds=120):
        return run("helm", *arguments, seconds=seconds, **self._environment)

    @contextmanager
    def release(self, name, folder, **values):
        """Install the chart once more, on the first node, in the namespace of this name; remove it afterwards."""
        usual = {
            "image": CHART_IMAGE,
            "config": {"poll_seconds": 1},
            "nodeSelector": {NODE_LABEL: "1"},
            "monitoring": {"enabled": False},
        }
        path = folder / "values.yaml"
        path.write_text(yaml.safe_dump(usual | values))
        self.helm("install", name, "charts/infercanary", "--namespace", name, "--values", str(path))
        try:
            yield
        finally:
            self.helm("uninstall", name, "--namespace", name)

    def apply(self, *objects):
        self.kubectl("apply", "--server-side", "--filename", "-", text=yaml.safe_dump_all(objects))

    def get(self, *arguments):
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def pods(self, namespace, selector=""):
        items = self.get("pods", "--namespace", namespace, "--selector", selector)["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def rights(self, account):
        """Return the verbs of a service account by resource, without the rights of every account (to ask for
        rights and identity).
        """
        table = self.kubectl(
            "auth", "can-i", "--list", "--as", f"system:serviceaccount:{account}"
        ).splitlines()
        reviews = ("selfsubject", "[")
        lines = (line for line in table[1:] if not line.strip().startswith(reviews))
        return {line.split()[0]: line.split("[")[-1].rstrip("] ") for line in lines}
