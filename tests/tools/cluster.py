"""A real Kubernetes as a person would drive and read it: commands, objects, what containers logged."""

from __future__ import annotations

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
"""A cluster that is there already; none is started then."""


def missing() -> str | None:
    """Why no Kubernetes can be had, in one line; None where one can."""
    for program in ("docker", "helm", "prometheus", *(("kubectl",) if GIVEN else ())):
        if not shutil.which(program):
            return f"no program {program}"
    if GIVEN:
        return None
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
