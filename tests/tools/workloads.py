"""Kubernetes objects with a canary, in the form for kubectl."""

from pathlib import Path

from cluster import NODE_LABEL
from node_images import Image

CANARY = Path(__file__).parents[1] / "kubernetes/canary"
FILES = {f"/canary/{path.name}": path.read_text() for path in sorted(CANARY.iterdir()) if path.is_file()}
_PROBE = ("infercanary", "probe", "--config", "/canary/probe.yaml")
# The new image takes three times as long: with one start of each image, the assumed restart variance is a
# factor of 1.5 or more.
_OLD, _NEW = {"WAIT_SECONDS": "0.04"}, {"WAIT_SECONDS": "0.12"}
OLD, NEW, REBUILT, CRASHING = (
    f"docker.io/infercanary/canary:{tag}" for tag in ("old", "new", "rebuilt", "crashing")
)
REGISTRY = "127.0.0.1:5055"
STORED = f"{REGISTRY}/canary:stable"
"""The nodes have this image, under the name that a registry on 127.0.0.1 would give it."""
IMAGES = {
    OLD: Image(_OLD, _PROBE),
    NEW: Image(_NEW, _PROBE),
    REBUILT: Image(_OLD | {"BUILT": "again"}, _PROBE),
    CRASHING: Image(_NEW, ("sh", "-c", f"timeout 4 {' '.join(_PROBE)}; exit 1")),
    STORED: Image(_OLD | {"STORED": "yes"}, _PROBE),
}


def namespace(name, labels=None):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}


def container(image=OLD, **fields):
    ports = [{"name": "infercanary", "containerPort": 9798}]
    return {"name": "model", "image": image, "imagePullPolicy": "Never", "ports": ports, **fields}


def pod(*containers, service="", nodes=(1,), **annotations):
    """Return a pod template for one of these nodes, preferably the first; ``service`` overrides the owner's name."""
    given = {"enable": "true", **({"service": service} if service else {}), **annotations}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_in(*nodes)]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": _in(nodes[0])}],
    }
    return {
        "metadata": {"annotations": {f"infercanary.io/{key}": value for key, value in given.items()}},
        "spec": {
            "affinity": {"nodeAffinity": affinity},
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "containers": [*containers],
        },
    }


def _in(*nodes):
    numbers = [str(node) for node in nodes]
    return {"matchExpressions": [{"key": NODE_LABEL, "operator": "In", "values": numbers}]}


def deployment(name, template, namespace="ml", replicas=1, **spec):
    """Return a Deployment that creates new pods before it removes old pods."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    return _set("Deployment", name, namespace, template, replicas=replicas, strategy=rolling, **spec)


def stateful_set(name, template):
    return _set("StatefulSet", name, "ml", template, replicas=1, serviceName=name)


def job(name, template, seconds):
    template["spec"]["restartPolicy"] = "Never"
    for each in template["spec"]["containers"]:
        each["command"] = ["sh", "-c", f"timeout {seconds} {' '.join(_PROBE)} || true"]
    metadata = {"name": name, "namespace": "ml"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def _set(kind, name, namespace, template, **spec):
    labels = {"app": name}
    template["metadata"]["labels"] = labels
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }
