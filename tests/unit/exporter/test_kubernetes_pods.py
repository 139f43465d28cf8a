"""Conversion of pods to containers with a probe. The pods were recorded in a real cluster (1.35)."""

import gzip
import json

import msgspec
import pytest
import yaml

from infercanary.exporter.discovery import kubernetes_pods
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.kubernetes_pods import (
    NodePods,
    Pod,
    containers,
    service_of,
)
from tests.programs import ROOT
from tests.scenarios import cases
from tests.unit.exporter.factories import have

GOLDEN = ROOT / "tests/golden/kubernetes"
TABLE = yaml.safe_load(GOLDEN.with_name("kubernetes_pods.yaml").read_text())
ENABLED = {"infercanary.io/enable": "true"}
WATCHES = {**ENABLED, "infercanary.io/watches": "server"}
RUNNING = {"running": {"startedAt": "2026-11-24T23:09:17Z"}}


def recorded():
    pods = json.loads(gzip.decompress((GOLDEN / "pods.json.gz").read_bytes()))["items"]
    return {pod["metadata"]["name"]: msgspec.convert(pod, Pod) for pod in pods}


def status(name="server", number=1, **others):
    return {"name": name, "containerID": f"containerd://{number:064}", "state": RUNNING, **others}


def document(*statuses, init=(), ports=(), address="10.244.1.2", owner="", **metadata):
    """Return a pod in the form of the API server.

    Args:
        statuses: Statuses of the containers.
        init: Statuses of the init containers.
        ports: Port of the probe by container; its name is infercanary unless it is 9798.
        address: Address of the pod.
        owner: Kind and name.
        metadata: Metadata to change; None removes a key.
    """
    kind, _, name = owner.partition(" ")
    owners = [{"kind": "Other", "name": "other"}, {"kind": kind, "name": name, "controller": True}]
    known = {
        "name": "search-0", "namespace": "prod", "creationTimestamp": "2026-11-24T23:09:16Z",
        "ownerReferences": owners if owner else owners[:1], "annotations": ENABLED,
    }  # fmt: skip

    ports = dict(ports)

    def specs(several):
        made = []
        for name in (each["name"] for each in several):
            own = {"name": "" if ports.get(name) == 9798 else "infercanary", "containerPort": ports.get(name)}
            others = {"name": "http", "containerPort": 80}
            made.append({"name": name, "image": f"{name}:1", "ports": [others, own] if name in ports else []})
        return made

    return {
        "metadata": {name: value for name, value in (known | metadata).items() if value is not None},
        "spec": {"containers": specs(statuses), "initContainers": specs(init)},
        "status": {"podIP": address, "containerStatuses": statuses, "initContainerStatuses": init},
    }


def pod(containers=(("server", 1),), init=(), image="", **others):
    def statuses(of):
        return [
            status(name, imageID=image, state={has: {}})
            if isinstance(has, str)
            else status(name, has, imageID=image)
            for name, has in dict(of).items()
        ]

    return msgspec.convert(document(*statuses(containers), init=statuses(init), **others), Pod)


def test_pods_as_they_are():
    pods = recorded()
    services = {name.partition("-")[0]: service_of(pod) for name, pod in pods.items()}
    assert services == {"daemon": "daemon", "nightly": "nightly", "search": "search"}
    [found] = containers(pods["search-b4688fc97-4qxrv"])
    assert found == Container(
        service="search", name="server", namespace="prod", pod="search-b4688fc97-4qxrv",
        id="83bc575df88e7ce7ef889c7c02cfaff13a367ab705ad8bd33e3b6fd00652ff55",
        image="docker.io/infercanary/pause:1",
        image_id="sha256:f1af6746f8cc1e12a1feca3f385b98e27688873ae086aec9e967a274085c3ddb", image_form="config",
        url="http://10.244.1.2:9798", failure="label",
    )  # fmt: skip
    assert found.key == ("prod", "search", "search-b4688fc97-4qxrv/server")
    assert [*found.labels] == ["namespace", "pod", "service", "container"]


@cases(TABLE["pods"])
def test_containers_of_a_pod(given, found):
    have(containers(pod(**given)), found)


# Pods of a node -----------------------------------------------------------------------------------------------------


def raw(name, number=1, killed=None, **metadata):
    """Return a pod with one container: run ``number`` is running, and run ``killed`` was killed for memory."""
    at = "2026-11-24T23:20:00Z"
    end = {"terminated": {"reason": "OOMKilled", "finishedAt": at, "containerID": f"x://{killed}"}}
    state, last = (RUNNING, end if killed else {}) if number else (end, {})
    of = status(containerID=f"x://{number or killed}", state=state, lastState=last)
    return msgspec.Raw(msgspec.json.encode(document(of, name=name, address=f"10.0.0.{name[-1]}", **metadata)))


def node(*pods):
    known = NodePods()
    known.replace(known.read(pods))
    return known


def names(known):
    return sorted(each.pod for each in known)


def test_lists_and_changes():
    known = node(raw("1"), raw("2"))
    known.replace(known.read([raw("2"), raw("off", annotations={})]))
    assert names(known) == ["2"]
    for change, gone, is_news, after in (
        (raw("3"), False, True, "2 3"),
        (raw("3"), False, False, "2 3"),
        (raw("2"), True, True, "3"),
        (raw("3", 7), False, True, "3"),
        (raw("3", annotations={}), False, True, ""),
        (raw("3", annotations={}), False, False, ""),
    ):
        assert known.take(change, gone=gone) == is_news
        assert " ".join(names(known)) == after
        assert {each.id for each in known} <= {"1", "7"}


def test_the_recorded_watch():
    known = NodePods()
    seen = []
    for line in gzip.decompress((GOLDEN / "watch.jsonl.gz").read_bytes()).splitlines():
        event = json.loads(line)
        known.take(msgspec.Raw(json.dumps(event["object"]).encode()), gone=event["type"] == "DELETED")
        ranking = {each.id[:4] for each in known if each.service == "ranking"}
        if not seen or seen[-1] != ranking:
            seen.append(ranking)
    assert seen == [set(), {"980f"}, set(), {"a5c2"}, set(), {"5fa5"}, set()]
    assert names(known) == ["daemon-fp7t7"]


@cases(["null", "[]", '{"metadata": {"name": "odd", "labels": 5}}', "fault"])
def test_a_pod_that_cannot_be_read_costs_no_other(odd, monkeypatch, capsys):
    def faulty(pod):
        assert pod.metadata.name != "odd"
        return containers(pod)

    monkeypatch.setattr(kubernetes_pods, "containers", faulty)
    bad = raw("odd") if odd == "fault" else msgspec.Raw(odd.encode())
    known = node(raw("1"), bad, raw("2"))
    for pod in (bad, raw("3")):
        known.take(pod, gone=False)
    assert names(known) == ["1", "2", "3"]
    assert capsys.readouterr().out.count("an entry cannot be read") == 1


def test_an_address_belongs_to_the_newer_pod():
    pods = [raw(f"{name}-1", creationTimestamp=f"2026-11-2{day}T00:00:00Z") for name, day in ("a4", "b5")]
    elsewhere = {**ENABLED, "infercanary.io/port": "9102"}  # pods on the host's network share one address
    for pair in (pods, pods[::-1]):
        known = node(raw("c-1", annotations=elsewhere))
        for each in pair:
            known.take(each, gone=False)
        urls = {each.pod: each.url for each in known}
        assert urls == {"b-1": "http://10.0.0.1:9798", "c-1": "http://10.0.0.1:9102"}


@pytest.mark.parametrize(
    ("pods", "kills"),
    [
        ([raw("1"), raw("1", None, killed=1), raw("1", 2, killed=1), raw("1", 2, killed=1)], ["1"]),
        ([raw("1"), raw("1", 2, killed=1), raw("1", 3, killed=2)], ["1", "2"]),
        ([raw("1", 2, killed=1)], []),
        ([raw("1"), raw("2", 2, killed=1)], []),
    ],
)
@pytest.mark.parametrize("way", ["list", "change", "end"])
def test_a_container_killed_for_memory_is_new_once(pods, kills, way):
    known = NodePods()
    for each in pods:
        if way == "list":
            known.replace(known.read([each]))
        else:
            known.take(each, gone=way == "end" and each is pods[-1])
    assert [(kill.id, kill.container.pod, kill.at) for kill in known.kills] == [
        (of, "1", 1795562400.0) for of in kills
    ]


def test_a_kill_of_the_server_that_a_sidecar_watches():
    def end(number, reason):
        return {"terminated": {"reason": reason, "containerID": f"containerd://{number:064}"}}

    known = NodePods()
    for number, state in enumerate(({}, end(1, "OOMKilled"), end(2, "Error")), 1):
        several = status(number=number, lastState=state), status("probe", 9)
        both = document(*several, ports={"probe": 9798}, annotations=WATCHES)
        known.take(msgspec.Raw(msgspec.json.encode(both)), gone=False)
    assert [(kill.container.name, kill.id) for kill in known.kills] == [("probe", f"{1:064}")]
