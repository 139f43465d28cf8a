"""A real Kubernetes cluster: commands, objects and logs."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from harness import ROOT, run

Object = dict[str, Any]

SCRIPT = str(ROOT / ".ci/kubernetes")
STATE = Path(os.environ.get("KUBERNETES_STATE", "/var/lib/infercanary-kubernetes"))
PROGRAMS = Path(os.environ.get("KUBERNETES", "/var/cache/infercanary/kubernetes"))
GIVEN = os.environ.get("KUBECONFIG")
"""A cluster that is there already; none is started then (docs/testing.md has what it needs)."""
LOAD = "KUBERNETES_LOAD"
"""Environment variable: a command that takes the images which it is given from Docker to that cluster's nodes."""
NODE_LABEL = "infercanary.test/node"
"""On three nodes, with the numbers 1 to 3: those of a given cluster have names of their own."""


def missing() -> str | None:
    """Why no Kubernetes can be had, in one line; None where one can."""
    for program in ("docker", "helm", "prometheus", *(("kubectl",) if GIVEN else ())):
        if not shutil.which(program):
            return f"no program {program}"
    if GIVEN:
        return None if os.environ.get(LOAD) else f"{LOAD} names no command that takes images to the nodes"
    done = subprocess.run([SCRIPT, "programs"], capture_output=True, text=True, timeout=1200, check=False)
    return (done.stderr.strip().splitlines() or ["no Kubernetes"])[-1] if done.returncode else None


class Cluster:
    """The one that runs.

    Args:
        folder: Where the commands keep what they cache.
    """

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = GIVEN or str(STATE / "admin.kubeconfig")
        self._kubectl = "kubectl" if GIVEN else str(PROGRAMS / "kubectl")
        self._environment = {"KUBECONFIG": self.kubeconfig, "KUBECACHEDIR": str(folder / "kubectl")} | {
            f"HELM_{kind}_HOME": str(folder / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")
        }

    @functools.cached_property
    def nodes(self) -> list[str]:
        """Names of three nodes on which pods run."""
        names = sorted(
            node["metadata"]["name"]
            for node in self.get("nodes")["items"]
            if all(taint["effect"] == "PreferNoSchedule" for taint in node["spec"].get("taints", ()))
        )
        assert len(names) >= 3, f"{names} are the nodes on which pods run; the tests need three"
        return names[:3]

    def kubectl(self, *arguments: str, text: str | None = None, seconds: float = 120) -> str:
        """kubectl's standard output."""
        return run(self._kubectl, *arguments, text=text, seconds=seconds, **self._environment)

    def helm(self, *arguments: str, seconds: float = 120) -> str:
        """Helm's standard output."""
        return run("helm", *arguments, seconds=seconds, **self._environment)

    def apply(self, *objects: Object) -> None:
        """Create or change objects."""
        self.kubectl("apply", "--server-side", "--filename", "-", text=yaml.safe_dump_all(objects))

    def get(self, *arguments: str) -> Object:
        """An object, or a list of them under ``items``."""
        found: Object = json.loads(self.kubectl("get", *arguments, "--output", "json"))
        return found

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """Those of a namespace that are not being ended."""
        items = self.get("pods", "--namespace", namespace, "--selector", selector)["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def rights(self, account: str) -> dict[str, str]:
        """Resource → verbs of what an account may, but for what every account may: ask what it may, and who it is."""
        table = self.kubectl(
            "auth", "can-i", "--list", "--as", f"system:serviceaccount:{account}"
        ).splitlines()
        reviews = ("selfsubject", "[")
        lines = (line for line in table[1:] if not line.strip().startswith(reviews))
        return {line.split()[0]: line.split("[")[-1].rstrip("] ") for line in lines}
