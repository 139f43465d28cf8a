"""Lists and watch events, without an API server. The recorded watch is of a real one, 1.35."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.exporter.discovery import kubernetes_watch
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.kubernetes_pods import Pod, containers
from infercanary.exporter.discovery.kubernetes_watch import ExpiredError, LineSplitter, NodePods, WatchError

WATCH = gzip.decompress((Path(__file__).parents[2] / "golden/kubernetes/watch.jsonl.gz").read_bytes())


def pod(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": name,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-24T23:09:16Z",
            "annotations": {"infercanary.io/enable": "true"},
            **metadata,
        },
        "spec": {"containers": [{"name": "server", "image": "x:1"}]},
        "status": {
            "podIP": f"10.0.0.{name}",
            "containerStatuses": [
                {"name": "server", "containerID": f"containerd://{name}", "state": {"running": {}}}
            ],
        },
    }


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def page(*pods: Any, version: int = 1, more: str = "") -> bytes:
    return json.dumps(
        {"metadata": {"resourceVersion": str(version), "continue": more}, "items": pods}
    ).encode()


def listed(*pods: Any, version: int = 1) -> NodePods:
    known = NodePods(since=0.0)
    known.begin_list()
    known.take_page(page(*pods, version=version))
    return known


def names(known: NodePods) -> list[str]:
    return [container.pod for container in known.containers()]


def test_the_recorded_watch() -> None:
    known = NodePods(since=0.0)
    lines = LineSplitter()
    seen: list[set[str]] = []
    for start in range(0, len(WATCH), 1000):
        for line in lines.feed(WATCH[start : start + 1000]):
            known.take_event(line)
            rank = {c.id[:4] for c in known.containers() if c.service == "ranking"}
            if not seen or seen[-1] != rank:
                seen.append(rank)
    assert seen == [set(), {"980f"}, set(), {"a5c2"}, set(), {"5fa5"}, set()], (
        "each start has an id of its own"
    )
    assert names(known) == ["daemon-fp7t7"] and known.version


def test_a_pod_that_cannot_be_read_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(of: Pod) -> tuple[Container, ...]:
        if of.metadata.name == "evil":
            raise ValueError("odd")
        return containers(of)

    monkeypatch.setattr(kubernetes_watch, "containers", broken)
    known = listed(pod("1", 1), pod("evil", 2), pod("2", 3))
    known.take_event(event("MODIFIED", pod("evil", 4)))
    assert names(known) == ["1", "2"]
    assert re.findall(r"a pod is left out .*pod=(\w+)", capsys.readouterr().out) == ["evil"], "said once"


@pytest.mark.parametrize("odd", [None, 5, [], {}, {"metadata": None}, {"metadata": {"name": "odd", "labels": 5}},
                                 {"metadata": {"name": "odd", "resourceVersion": 5}}])  # fmt: skip
def test_an_odd_object_costs_no_other(odd: Any) -> None:
    known = listed(pod("1", 1), odd, pod("2", 3))
    known.take_event(event("ADDED", odd))
    known.take_event(event("MODIFIED", odd))
    known.take_event(event("ADDED", pod("4", 5)))
    assert names(known) == ["1", "2", "4"] and known.version == "5"


def test_a_list_in_pages() -> None:
    known = NodePods(since=0.0)
    known.begin_list()
    assert known.take_page(page(pod("1", 1), more="next")) == "next"
    assert (known.version, names(known)) == ("", []), "not before the last page"
    assert known.take_page(page(pod("2", 2), version=7)) == ""
    assert (known.version, names(known), known.changed) == ("7", ["1", "2"], True)


def test_what_a_list_no_longer_has_is_gone_and_the_rest_is_as_it_was() -> None:
    known = listed(pod("1", 1), pod("2", 1))
    known.changed = False
    known.begin_list()
    known.take_page(page(pod("1", 1), pod("2", 1), version=9))
    assert not known.changed and known.version == "9"
    known.begin_list()
    known.take_page(page(pod("2", 1), version=10))
    assert known.changed and names(known) == ["2"]


def test_events_change_what_is_known() -> None:
    known = listed(pod("1", 1))
    known.take_event(event("ADDED", pod("2", 5)))
    assert (names(known), known.version) == (["1", "2"], "5")
    known.take_event(event("DELETED", pod("1", 6)))
    assert (names(known), known.version) == (["2"], "6")
    known.take_event(event("MODIFIED", pod("2", 7, annotations={})))
    assert (names(known), known.version) == ([], "7"), "it no longer asks for it"
    known.changed = False
    known.take_event(event("MODIFIED", pod("3", 8, annotations={})))
    known.take_event(event("BOOKMARK", {"metadata": {"resourceVersion": "9"}, "spec": {"containers": None}}))
    assert (known.changed, known.version) == (False, "9")


def test_a_pod_that_was_made_again_is_found_once() -> None:
    known = listed(pod("1", 1))
    again = pod("1", 5, uid="another")
    again["status"]["containerStatuses"][0]["containerID"] = "containerd://new"
    known.take_event(event("ADDED", again))
    assert [container.id for container in known.containers()] == ["new"]


def test_an_error_that_says_gone_asks_for_a_list() -> None:
    known = listed(pod("1", 1))
    with pytest.raises(ExpiredError, match="too old"):
        known.take_event(
            event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
        )
    with pytest.raises(WatchError, match="500: etcd"):
        known.take_event(event("ERROR", {"kind": "Status", "code": 500, "message": "etcd"}))
    assert names(known) == ["1"]


def test_a_pod_that_cannot_be_read_costs_itself() -> None:
    known = listed(pod("1", 1), {"metadata": {"name": 7}}, pod("2", 1))
    assert names(known) == ["1", "2"]
    known.take_event(event("MODIFIED", {"metadata": {"name": [], "resourceVersion": "8"}}))
    assert names(known) == ["1", "2"] and known.version == "8"


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"type": "ADDED"}', b"<html>"])
def test_what_is_no_event_changes_nothing(line: bytes) -> None:
    known = listed(pod("1", 1))
    with pytest.raises(msgspec.DecodeError):
        known.take_event(line)
    assert known.version == "1" and names(known) == ["1"]


def test_no_more_pods_than_the_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubernetes_watch, "MAX_PODS", 2)
    known = listed(pod("1", 1), pod("2", 1), pod("3", 1))
    known.take_event(event("ADDED", pod("4", 2)))
    known.take_event(event("MODIFIED", pod("2", 3)))
    assert known.count == 2
    assert "pod=3" in (said := capsys.readouterr().out) and "more than" in said


def ended(pod: dict[str, Any], of: str, at: str) -> dict[str, Any]:
    end = {"reason": "OOMKilled", "finishedAt": at, "containerID": f"containerd://{of}"}
    pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": end}
    return pod


def test_a_container_that_the_kernel_ended_is_news_once() -> None:
    known = listed(pod("1", 1))
    again = ended(pod("1", 2), "1", "2026-11-24T23:20:00Z")
    again["status"]["containerStatuses"][0]["containerID"] = "containerd://new"
    for version in ("2", "3"):
        again["metadata"]["resourceVersion"] = version
        known.take_event(event("MODIFIED", again))
    known.begin_list()
    known.take_page(page(again, version=4))
    assert [(kill.id, kill.container.pod) for kill in known.kills] == [("1", "1")]


def test_what_ended_before_the_exporter_began_is_no_news() -> None:
    known = NodePods(since=1795562400.5)
    known.begin_list()
    known.take_page(page(ended(pod("1", 1), "1", "2026-11-24T23:20:00Z")))
    assert known.kills == []


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_the_same_however_they_come(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"half"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    splitter = LineSplitter(most=10)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    assert found == [line for line in lines if 0 < len(line) <= 10]


def test_a_line_without_an_end_takes_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    splitter = LineSplitter(most=1000)
    for _ in range(1000):
        assert [*splitter.feed(b"x" * 1000)] == []
    assert len(splitter._rest) <= 2000
    assert [*splitter.feed(b"\n{}\n")] == [b"{}"]
    assert capsys.readouterr().out.count("it is too large") == 1
