"""From a pod to its containers with a probe. The recorded pods are of a real cluster, 1.35."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infercanary.exporter.discovery import kubernetes_pods
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.kubernetes_pods import (
    NodePods,
    Pod,
    containers,
    image_identity,
    service_of,
)

GOLDEN = Path(__file__).parents[2] / "golden/kubernetes"
ENABLED = {"infercanary.io/enable": "true"}
WATCHES = {**ENABLED, "infercanary.io/watches": "server"}
RUNNING = {"running": {"startedAt": "2026-11-24T23:09:17Z"}}
DIGEST = "sha256:" + "a" * 64


def recorded() -> dict[str, Pod]:
    pods = json.loads(gzip.decompress((GOLDEN / "pods.json.gz").read_bytes()))["items"]
    return {pod["metadata"]["name"]: msgspec.convert(pod, Pod) for pod in pods}


def status(name: str = "server", number: int = 1, **others: Any) -> dict[str, Any]:
    container_id = f"containerd://{number:064}"
    return {"name": name, "imageID": DIGEST, "containerID": container_id, "state": RUNNING, **others}


def document(
    *statuses: dict[str, Any],
    ports: dict[str, list[dict[str, Any]]] | None = None,
    init: tuple[dict[str, Any], ...] = (),
    address: str = "10.244.1.2",
    owner: str = "",
    **metadata: Any,
) -> dict[str, Any]:
    """A pod as the API server has it; ``owner`` is a kind and a name."""
    statuses = statuses or (status(),)
    kind, _, name = owner.partition(" ")
    owners = [{"kind": "Other", "name": "other"}, {"kind": kind, "name": name, "controller": True}]
    known: dict[str, Any] = {
        "name": "search-0", "namespace": "prod", "creationTimestamp": "2026-11-24T23:09:16Z",
        "ownerReferences": owners if owner else owners[:1], "annotations": ENABLED,
    }  # fmt: skip
    specs = [
        [
            {"name": (n := each["name"]), "image": f"{n}:1", "ports": (ports or {}).get(n, [])}
            for each in several
        ]
        for several in (statuses, init)
    ]
    return {
        "metadata": {name: value for name, value in (known | metadata).items() if value is not None},
        "spec": {"containers": specs[0], "initContainers": specs[1]},
        "status": {"podIP": address, "containerStatuses": statuses, "initContainerStatuses": init},
    }


def pod(*statuses: dict[str, Any], **others: Any) -> Pod:
    return msgspec.convert(document(*statuses, **others), Pod)


def only(pod: Pod) -> Container:
    [container] = containers(pod)
    return container


def test_a_deployments_pod_as_it_is() -> None:
    found = only(recorded()["search-b4688fc97-4qxrv"])
    assert found == Container(
        service="search",
        name="server",
        namespace="prod",
        pod="search-b4688fc97-4qxrv",
        id="83bc575df88e7ce7ef889c7c02cfaff13a367ab705ad8bd33e3b6fd00652ff55",
        image="docker.io/infercanary/pause:1",
        image_id="sha256:f1af6746f8cc1e12a1feca3f385b98e27688873ae086aec9e967a274085c3ddb",
        image_form="config",
        url="http://10.244.1.2:9798",
        failure="label",
    )
    assert found.key == ("prod", "search", "search-b4688fc97-4qxrv/server")
    assert [*found.labels] == ["namespace", "pod", "service", "container"]


def test_each_kind_of_owner_as_it_is() -> None:
    services = {name.partition("-")[0]: service_of(pod) for name, pod in recorded().items()}
    assert services == {"daemon": "daemon", "nightly": "nightly", "search": "search"}


OWNERS = """
search-0       |                        |
search         | ReplicaSet search-7d9  | pod-template-hash: 7d9
search         | ReplicaSet search-7d9  | rollouts-pod-template-hash: 7d9
search-7d9     | ReplicaSet search-7d9  |
rank           | StatefulSet rank       |
llm            | StatefulSet llm-3      | leaderworkerset.sigs.k8s.io/name: llm
rank-3         | StatefulSet rank-3     |
train          | Job train              |
train-20261124 | Job train-20261124     |
nightly        | Job nightly-29926029   |
nightly        | Job nightly-29926030   |
search         | Node 0                 |
llm            | RayCluster llm         |
"""
"""Service, owner and label. A date is no minute of Unix time; clocks may differ by less than a minute."""


@pytest.mark.parametrize("row", OWNERS.strip().splitlines())
def test_the_owner_is_the_service(row: str) -> None:
    service, owner, label = map(str.strip, row.split("|"))
    name, _, value = label.partition(": ")
    assert service_of(pod(owner=owner, labels={name: value} if name else None)) == service


def test_an_annotation_names_the_service() -> None:
    otel, own = "resource.opentelemetry.io/service.name", "infercanary.io/service"
    for given, service in (
        ({otel: "ranking"}, "ranking"),
        ({otel: "ranking", own: "search"}, "search"),
    ):
        assert service_of(pod(annotations=given, owner="Deployment x")) == service


NO = {"infercanary.io/enable": "false"}


@pytest.mark.parametrize(
    ("annotations", "labels", "asks"),
    [(ENABLED, None, 1), (None, ENABLED, 1), (NO, ENABLED, 0), (NO, None, 0), (None, {"app": "x"}, 0)],
)
def test_a_pod_asks_by_annotation_or_label(annotations: Any, labels: Any, asks: int) -> None:
    assert len(containers(pod(annotations=annotations, labels=labels))) == asks


PORT = [{"name": "http", "containerPort": 80}, {"name": "infercanary", "containerPort": 9101}]


@pytest.mark.parametrize(
    ("name", "value", "missing", "note"),
    [
        ("enabled", "true", "enable is missing", "infercanary.io/enabled: not known; the annotations are"),
        ("service", "search", "enable is missing", ""),
        ("enable", "yes", "enable: 'yes' is neither true nor false", ""),
    ],
)
@pytest.mark.parametrize("kind", ["annotations", "labels"])
def test_a_mistake_in_asking_is_said(kind: str, name: str, value: str, missing: str, note: str) -> None:
    metadata: dict[str, Any] = {"annotations": None, kind: {f"infercanary.io/{name}": value}}
    found = only(pod(ports={"server": PORT}, **metadata))
    assert found.is_asked == (name == "enable")
    assert found.url is None and f"infercanary.io/{missing}" in found.url_missing
    assert note in "".join(found.notes)


PROBES = """
server       |        |                | 9798 server
server       | server |                | 9101 server
server       | server | port=9102      | 9102 server
server proxy | server |                | 9101 server
a b          | a b    |                | 9101 a b
server probe |        | watches=server | 9798 probe
server proxy |        |                | none has a port named infercanary
server       |        | port=http      | 'http' is not a port
server       |        | port=70000     | '70000' is not a port
"""
"""Containers, those of them with named ports, an annotation, and the port and its containers, or why there is none."""


@pytest.mark.parametrize("row", PROBES.strip().splitlines())
def test_where_the_probe_answers(row: str) -> None:
    names, ports, annotation, found = map(str.strip, row.split("|"))
    name, _, value = annotation.partition("=")
    given = ENABLED | ({f"infercanary.io/{name}": value} if name else {})
    statuses = map(status, names.split())
    each = containers(pod(*statuses, ports=dict.fromkeys(ports.split(), PORT), annotations=given))
    port, *answering = found.split()
    if port.isdigit():
        assert {one.name: one.url for one in each} == dict.fromkeys(answering, f"http://10.244.1.2:{port}")
    else:
        assert [one.url for one in each] == [None] and found in each[0].url_missing


def test_an_ipv6_address_is_bracketed() -> None:
    assert only(pod(address="fd00::1:2")).url == "http://[fd00::1:2]:9798"
    assert containers(pod(address="")) == (), "it has none yet"


def test_a_container_that_does_not_run_is_not_found() -> None:
    waiting = status(state={"waiting": {"reason": "CrashLoopBackOff"}})
    ended = status(state={"terminated": {"reason": "Error", "exitCode": 1}})
    assert containers(pod(waiting)) == containers(pod(ended)) == ()


def test_a_sidecar_among_the_init_containers() -> None:
    side = status("probe", 2)
    ports = {name: [{"containerPort": 9798}] for name in ("server", "probe")}
    found = only(pod(status(), init=(side,), ports=ports, annotations=WATCHES))
    assert (found.name, found.id, found.watched_id) == ("probe", f"{2:064}", f"{1:064}")
    assert found.image == "server:1", "of what it watches"
    assert found.watched_since == 1795561757.0


@pytest.mark.parametrize("watched", ["server", "sever"])
def test_a_sidecar_whose_server_does_not_run(watched: str) -> None:
    asks = {**WATCHES, "infercanary.io/watches": watched}
    down = [status(state={"waiting": {}})] if watched == "server" else []
    found = only(pod(*down, status("probe", 2), annotations=asks))
    assert found.failure == "server_gone" and found.url is None
    assert f"no container '{watched}' runs" in found.url_missing


@pytest.mark.parametrize(
    ("image_id", "form"),
    [
        ("docker.io/library/x@{}", "registry"),
        ("registry:5000/a/x@{}", "registry"),
        ("docker-pullable://x@{}", "docker"),
        ("{}", "config"),
        ("a" * 64, "config"),
        ("docker://{}", "config"),
        ("", ""),
    ],
)
def test_every_form_of_an_image_id(image_id: str, form: str) -> None:
    config, pulled, found = image_identity(image_id.format(DIGEST))
    assert found == form
    assert (config, pulled) == (
        DIGEST if form == "config" else "",
        DIGEST if form in ("registry", "docker") else "",
    )


# Pods of a node -----------------------------------------------------------------------------------------------------


def raw(name: str, number: int | None = 1, killed: int | None = None, **metadata: Any) -> msgspec.Raw:
    """Pod with one container, of which ``number`` runs and ``killed`` was killed for memory."""
    end = {
        "terminated": {
            "reason": "OOMKilled",
            "finishedAt": "2026-11-24T23:20:00Z",
            "containerID": f"x://{killed}",
        }
    }
    of = status(
        containerID=f"x://{number or killed}",
        lastState=end if killed and number else {},
        state=RUNNING if number else end,
    )
    return msgspec.Raw(msgspec.json.encode(document(of, name=name, address=f"10.0.0.{name[-1]}", **metadata)))


def node(*pods: msgspec.Raw) -> NodePods:
    known = NodePods()
    known.replace(known.read(pods))
    return known


def names(known: NodePods) -> list[str]:
    return sorted(each.pod for each in known)


def test_lists_and_changes() -> None:
    known = node(raw("1"), raw("2"))
    known.replace(known.read([raw("2"), raw("off", annotations={})]))
    assert names(known) == ["2"]
    for change, gone, is_news, after in (
        (raw("3"), False, True, "2 3"),
        (raw("3"), False, False, "2 3"),  # the same pod
        (raw("2"), True, True, "3"),
        (raw("3", 7), False, True, "3"),  # made again: found once
        (raw("3", annotations={}), False, True, ""),  # it no longer asks
        (raw("3", annotations={}), False, False, ""),
    ):
        assert known.take(change, gone=gone) == is_news
        assert " ".join(names(known)) == after and {each.id for each in known} <= {"1", "7"}


def test_the_recorded_watch() -> None:
    known = NodePods()
    seen: list[set[str]] = []
    for line in gzip.decompress((GOLDEN / "watch.jsonl.gz").read_bytes()).splitlines():
        event = json.loads(line)
        known.take(msgspec.Raw(json.dumps(event["object"]).encode()), gone=event["type"] == "DELETED")
        ranking = {each.id[:4] for each in known if each.service == "ranking"}
        if not seen or seen[-1] != ranking:
            seen.append(ranking)
    assert seen == [set(), {"980f"}, set(), {"a5c2"}, set(), {"5fa5"}, set()], (
        "each start has an id of its own"
    )
    assert names(known) == ["daemon-fp7t7"]


@pytest.mark.parametrize("odd", ["null", "[]", '{"metadata": {"name": "odd", "labels": 5}}', "fault"])
def test_a_pod_that_cannot_be_read_costs_no_other(
    odd: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(pod: Pod) -> tuple[Container, ...]:
        if pod.metadata.name == "odd":
            raise ValueError("a fault of ours")
        return containers(pod)

    monkeypatch.setattr(kubernetes_pods, "containers", faulty)
    bad = raw("odd") if odd == "fault" else msgspec.Raw(odd.encode())
    known = node(raw("1"), bad, raw("2"))
    known.take(bad, gone=False)
    known.take(raw("3"), gone=False)
    assert names(known) == ["1", "2", "3"]
    assert capsys.readouterr().out.count("an entry cannot be read") == 1, "it is said once"


def test_an_address_belongs_to_the_newer_pod() -> None:
    """The end of the older one is not known yet."""
    older, newer = (
        raw("a-1", creationTimestamp="2026-11-24T00:00:00Z"),
        raw("b-1", creationTimestamp="2026-11-25T00:00:00Z"),
    )
    elsewhere = {**ENABLED, "infercanary.io/port": "9102"}
    for pods in ((older, newer), (newer, older)):
        known = node(raw("c-1", annotations=elsewhere))
        for each in pods:
            known.take(each, gone=False)
        assert {each.pod: each.url for each in known} == {
            "b-1": "http://10.0.0.1:9798",
            "c-1": "http://10.0.0.1:9102",  # pods on the host's network share its address
        }


@pytest.mark.parametrize(
    ("pods", "kills"),
    [
        ([raw("1"), raw("1", None, killed=1), raw("1", 2, killed=1), raw("1", 2, killed=1)], ["1"]),
        ([raw("1"), raw("1", 2, killed=1), raw("1", 3, killed=2)], ["1", "2"]),
        ([raw("1", 2, killed=1)], []),  # before the exporter began
        ([raw("1"), raw("2", 2, killed=1)], []),  # of another pod
    ],
)
@pytest.mark.parametrize("way", ["list", "change", "end"])
def test_a_container_killed_for_memory_is_new_once(
    pods: list[msgspec.Raw], kills: list[str], way: str
) -> None:
    known = NodePods()
    for each in pods:
        if way == "list":
            known.replace(known.read([each]))
        else:
            known.take(each, gone=way == "end" and each is pods[-1])
    assert [(kill.id, kill.container.pod, kill.at) for kill in known.kills] == [
        (of, "1", 1795562400.0) for of in kills
    ]


def test_a_kill_of_the_server_that_a_sidecar_watches() -> None:
    def end(number: int, reason: str) -> dict[str, Any]:
        return {"terminated": {"reason": reason, "containerID": f"containerd://{number:064}"}}

    known = NodePods()
    for number, state in enumerate(({}, end(1, "OOMKilled"), end(2, "Error")), 1):
        both = document(status(number=number, lastState=state), status("probe", 9), annotations=WATCHES)
        known.take(msgspec.Raw(msgspec.json.encode(both)), gone=False)
    assert [(kill.container.name, kill.id) for kill in known.kills] == [("probe", f"{1:064}")]
