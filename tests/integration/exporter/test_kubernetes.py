"""The discovery before an API server that misbehaves on command. What a real one does is in tests/kubernetes."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from infercanary.command.settings import UsageError
from infercanary.exporter.config import check
from infercanary.exporter.discovery import kubernetes
from infercanary.exporter.discovery.kubernetes import (
    KubeletSettings,
    KubernetesDiscovery,
    KubernetesSettings,
    create,
)
from infercanary.exporter.discovery.kubernetes_api import reason_of
from infercanary.exporter.discovery.kubernetes_watch import MAX_LINE_BYTES
from tests.unit.exporter.test_kubernetes_watch import event, page, pod

GONE = {"kind": "Status", "code": 410, "message": "too old resource version: 1 (9)"}


class Api:
    """Answers lists from ``pods``, and each watch with what is put into ``streams``; None ends a watch.

    As a kubelet it answers with the same pods, and has neither versions nor pages.
    """

    def __init__(self, token_file: Path, port: int | None = None) -> None:
        self.pods: list[dict[str, Any]] = []
        self.version = 1
        self.page_pods = 100
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.status: list[int] = []  # of the next answers; 200 is an answer as it should be, 0 none at all
        self.stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.token_file = token_file
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._answer)
        app.router.add_get("/pods", self._answer_as_kubelet)
        self.server = TestServer(app, host="127.0.0.1", port=port)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.status and (status := self.status.pop(0)) != 200:
            if not status:
                await self.stream.get()
            return web.Response(status=status or 200)
        if "watch" not in request.query:
            first = int(request.query.get("continue", "0"))
            most = min(int(request.query["limit"]), self.page_pods)
            more = str(first + most) if first + most < len(self.pods) else ""
            return web.Response(body=page(*self.pods[first : first + most], version=self.version, more=more))
        response = web.StreamResponse()
        await response.prepare(request)
        while (piece := await self.stream.get()) is not None:
            if piece == b"cut":
                assert request.transport is not None
                request.transport.abort()
                break
            await response.write(piece)
        return response

    async def _answer_as_kubelet(self, request: web.Request) -> web.Response:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.status and (status := self.status.pop(0)) != 200:
            return web.Response(status=status)
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods})

    @property
    def watches(self) -> list[str]:
        """The resource versions that watches began at."""
        return [each["resourceVersion"] for each in self.requests if "watch" in each]

    @property
    def lists(self) -> int:
        return sum("watch" not in each for each in self.requests)


class Follower:
    """A discovery of that server's pods, and how often it said that something changed."""

    def __init__(self, api: Api, **settings: Any) -> None:
        given = {"token_file": str(api.token_file), "ca_file": "", **settings}
        chosen = KubernetesSettings(enabled=True, **given)
        self.api = api
        self.changes = 0
        url = str(api.server.make_url(""))
        self.discovery = KubernetesDiscovery(chosen, url, "node-1", self._count)
        self.failures: list[str] = []
        """Why requests failed, in order."""
        lost = self.discovery._lost

        def note(error: Exception) -> None:
            self.failures.append(reason_of(error))
            lost(error)

        self.discovery._lost = note  # type: ignore[method-assign]

    def _count(self) -> None:
        self.changes += 1

    async def until(self, what: Callable[[], object]) -> None:
        async def comes() -> None:
            while not what():  # noqa: ASYNC110 - nothing says when a metric changes
                await asyncio.sleep(0.005)

        await asyncio.wait_for(comes(), 10)

    async def finds(self, *names: str) -> None:
        await self.until(lambda: sorted(c.pod for c in self.discovery.containers) == [*names])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_BACKOFF_SECONDS", 0.02)


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "token").write_text("first\n")
    served = Api(tmp_path / "token")
    await served.server.start_server()
    yield served
    await served.server.close()


@pytest_asyncio.fixture
async def follow(api: Api) -> AsyncIterator[Callable[..., Follower]]:
    started: list[Follower] = []

    def begin(**settings: Any) -> Follower:
        started.append(Follower(api, **settings))
        started[-1].discovery.start()
        return started[-1]

    yield begin
    for each in started:
        await each.discovery.stop()
    for _ in range(10):
        api.stream.put_nowait(None)


Follow = Callable[..., Follower]


async def test_a_list_in_pages_and_then_what_changes(api: Api, follow: Follow) -> None:
    api.pods, api.page_pods, api.version = [pod(str(n), n) for n in range(1, 6)], 2, 9
    follower = follow()
    await follower.finds("1", "2", "3", "4", "5")
    assert api.requests[0] == {"fieldSelector": "spec.nodeName=node-1", "limit": "100"}
    await follower.until(lambda: api.watches == ["9"])
    watch = api.requests[-1]
    assert watch["fieldSelector"] == "spec.nodeName=node-1" and watch["allowWatchBookmarks"] == "true"
    assert 240 <= int(watch["timeoutSeconds"]) <= 300
    api.stream.put_nowait(event("DELETED", pod("3", 10)) + b"\n")
    await follower.finds("1", "2", "4", "5")
    assert follower.discovery.up and api.lists == 3


async def test_a_watch_that_ends_goes_on_where_it_was(api: Api, follow: Follow) -> None:
    follower = follow()
    await follower.until(lambda: api.watches)
    api.stream.put_nowait(event("ADDED", pod("1", 5)) + b"\n")
    api.stream.put_nowait(None)
    await follower.until(lambda: api.watches == ["1", "5"])
    assert follower.failures == [] and api.lists == 1


@pytest.mark.parametrize("how", ["event", "status"])
async def test_a_version_that_is_gone_means_to_list_and_compare(api: Api, follow: Follow, how: str) -> None:
    api.pods = [pod("1", 1), pod("2", 1)]
    follower = follow()
    await follower.until(lambda: api.watches)
    known = {c.pod: c for c in follower.discovery.containers}
    api.pods, api.version = [pod("2", 1), pod("3", 8)], 9
    if how == "event":
        api.stream.put_nowait(event("ERROR", GONE) + b"\n")
    else:
        api.status = [410]
        api.stream.put_nowait(None)
    await follower.finds("2", "3")
    assert known["2"] in follower.discovery.containers, "the same container, so it is polled on"
    await follower.until(lambda: api.watches[-1] == "9")
    assert follower.failures == ["expired"] and api.lists == 2
    assert follower.discovery.up


async def test_a_page_that_expired_means_to_begin_the_list_again(api: Api, follow: Follow) -> None:
    api.pods, api.page_pods = [pod("1", 1), pod("2", 1)], 1
    api.status = [200, 410]
    follower = follow()
    await follower.finds("1", "2")
    assert [each.get("continue") for each in api.requests if "watch" not in each] == [None, "1", None, "1"]


async def test_half_a_line_is_taken_only_when_it_is_whole(api: Api, follow: Follow) -> None:
    follower = follow()
    await follower.until(lambda: api.watches)
    line = event("ADDED", pod("1", 5)) + b"\n"
    api.stream.put_nowait(event("ADDED", pod("2", 4)) + b"\n" + line[:50])
    await follower.finds("2")
    api.stream.put_nowait(line[50:])
    await follower.finds("1", "2")
    api.stream.put_nowait(event("DELETED", pod("1", 6))[:60])
    api.stream.put_nowait(b"cut")
    await follower.until(lambda: api.watches == ["1", "5"])
    assert follower.failures == ["closed"]
    assert follower.discovery.up, "it answered immediately again"
    api.stream.put_nowait(event("DELETED", pod("1", 6)) + b"\n")
    await follower.finds("2")


async def test_a_pod_that_is_too_large_costs_only_itself(
    api: Api, follow: Follow, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = follow()
    await follower.until(lambda: api.watches)
    huge = pod("1", 5, labels={"x": "x" * MAX_LINE_BYTES})
    api.stream.put_nowait(event("ADDED", huge) + b"\n" + event("ADDED", pod("2", 6)) + b"\n")
    await follower.finds("2")
    api.stream.put_nowait(None)
    await follower.until(lambda: api.watches == ["1", "6"])
    assert capsys.readouterr().out.count("it is too large") == 1
    assert follower.discovery.up


async def test_silence_ends_the_watch(api: Api, follow: Follow) -> None:
    api.pods = [pod("1", 1)]
    follower = follow(silent_seconds=0.2)
    await follower.until(lambda: api.watches == ["1", "1"])
    assert follower.failures == ["silent"]
    assert follower.discovery.up and api.lists == 1 and len(follower.discovery.containers) == 1


async def test_a_server_that_takes_connections_and_says_nothing_is_an_outage(
    api: Api, follow: Follow
) -> None:
    api.status = [200, 200, *[0] * 100]
    follower = follow(silent_seconds=0.1)
    await follower.until(lambda: api.watches)
    assert follower.discovery.up
    await follower.until(lambda: not follower.discovery.up)
    assert {*follower.failures} == {"silent"}


async def test_each_request_has_the_token_of_now(api: Api, follow: Follow) -> None:
    follower = follow()
    await follower.until(lambda: api.watches)
    assert api.tokens == ["Bearer first", "Bearer first"]
    api.token_file.write_text("second\n")
    api.stream.put_nowait(event("BOOKMARK", {"metadata": {"resourceVersion": "7"}}) + b"\n")
    api.stream.put_nowait(None)
    await follower.until(lambda: api.watches == ["1", "7"])
    assert api.tokens[-1] == "Bearer second"


@pytest.mark.parametrize(
    ("status", "fix"), [(401, "token is not valid"), (403, "`list` and `watch` on `pods`"), (503, "HTTP 503")]
)
async def test_an_answer_that_refuses(
    api: Api, follow: Follow, status: int, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.pods = [pod("1", 1)]
    api.status = [status]
    follower = follow()
    await follower.until(lambda: follower.discovery.tried)
    said = capsys.readouterr().out
    assert "kubernetes does not answer" in said and fix in said
    await follower.finds("1")
    assert follower.discovery.up
    assert follower.failures == ["refused"]


async def test_a_server_that_is_gone_for_a_while(api: Api, follow: Follow) -> None:
    api.pods = [pod("1", 1)]
    follower = follow()
    await follower.until(lambda: api.watches)
    port = api.server.port
    api.stream.put_nowait(b"cut")
    await api.server.close()
    await follower.until(lambda: not follower.discovery.up)
    assert len(follower.discovery.containers) == 1, "known pods are polled meanwhile"
    again = Api(api.token_file, port)
    again.pods, again.version = [pod("1", 1), pod("2", 3)], 5
    again.status = [410]
    await again.server.start_server()
    await follower.finds("1", "2")
    await follower.discovery.stop()
    again.stream.put_nowait(None)
    await again.server.close()


async def test_after_an_outage_a_version_that_expired_costs_no_wait(
    api: Api, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = follow()
    await follower.until(lambda: api.watches)
    api.status = [503] * 4 + [410]
    api.stream.put_nowait(None)
    await follower.until(lambda: follower.failures.count("refused") == 4)
    monkeypatch.setattr(kubernetes, "_BACKOFF_SECONDS", 60.0)
    api.pods = [pod("1", 1)]
    await follower.finds("1")


async def test_a_token_that_is_not_there(api: Api, follow: Follow) -> None:
    api.token_file.unlink()
    follower = follow()
    await follower.until(lambda: follower.discovery.tried)
    assert follower.failures == ["no_credentials"]
    assert api.requests == []


async def test_what_is_no_api_server(api: Api, follow: Follow) -> None:
    follower = follow()
    await follower.until(lambda: api.watches)
    api.stream.put_nowait(b"<html>\n")
    await follower.until(lambda: follower.failures == ["malformed"])
    assert follower.changes > 0


async def test_pages_that_are_too_large_become_smaller(
    api: Api, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.pods = [pod(str(n), 1) for n in range(1, 10)]
    monkeypatch.setattr(kubernetes, "_PAGE_BYTES", len(page(api.pods[0])) + 200)
    follower = follow()
    await follower.finds(*(str(n) for n in range(1, 10)))
    limits = [each["limit"] for each in api.requests if "watch" not in each]
    assert limits == ["100", "10", *["1"] * 9]


KUBELET = KubeletSettings(enabled=True, poll_seconds=0.02)


async def test_a_kubelet_is_asked_again_and_again(api: Api, follow: Follow) -> None:
    api.pods = [pod("1", 1), pod("2", 1)]
    follower = follow(kubelet=KUBELET)
    await follower.finds("1", "2")
    assert follower.discovery.up and api.requests[0] == {}
    known = {c.pod: c for c in follower.discovery.containers}
    api.token_file.write_text("second\n")
    api.pods = [pod("2", 3), pod("3", 4)]
    await follower.finds("2", "3")
    assert known["2"] in follower.discovery.containers, "the same container, so it is polled on"
    assert (api.tokens[0], api.tokens[-1]) == ("Bearer first", "Bearer second")
    assert api.lists >= 2
    assert follower.failures == []


@pytest.mark.parametrize(
    ("status", "fix"), [(401, "cannot ask the API server"), (403, "`get` on `nodes/pods`"), (503, "HTTP 503")]
)
async def test_a_kubelet_that_refuses(
    api: Api, follow: Follow, status: int, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.pods = [pod("1", 1)]
    follower = follow(kubelet=KUBELET)
    await follower.finds("1")
    api.status = [status] * 3
    await follower.until(lambda: not follower.discovery.up)
    assert len(follower.discovery.containers) == 1, "known pods are polled meanwhile"
    await follower.until(lambda: follower.discovery.up)
    assert follower.failures == ["refused"] * 3
    said = capsys.readouterr().out
    assert said.count("kubernetes does not answer") == 1 and fix in said


async def test_a_list_of_a_kubelet_over_the_bound(
    api: Api, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "_KUBELET_BYTES", 1000)
    api.pods = [pod(str(n), 1) for n in range(1, 10)]
    follower = follow(kubelet=KUBELET)
    await follower.until(lambda: "malformed" in follower.failures)
    assert not follower.discovery.up and follower.discovery.containers == []


def self_signed(folder: Path) -> ssl.SSLContext:
    """A server's, whose certificate signs itself and is in ``ca.pem``."""
    key, certificate = folder / "key.pem", folder / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=kubelet",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(
    ("settings", "trusted"),
    [({}, False), ({"ca_file": "ca.pem"}, True), ({"kubelet": {"insecure_skip_verify": True}}, True)],
)
async def test_whose_certificate_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], trusted: bool
) -> None:
    """A kubelet's own is signed by nobody else, unless the cluster signs it."""
    (tmp_path / "token").write_text("first")
    context = self_signed(tmp_path)
    served = Api(tmp_path / "token")
    served.pods = [pod("1", 1)]
    await served.server.start_server(ssl=context)
    kubelet = msgspec.structs.replace(KUBELET, **settings.get("kubelet", {}))
    ca_file = str(tmp_path / settings["ca_file"]) if "ca_file" in settings else ""
    follower = Follower(served, ca_file=ca_file, kubelet=kubelet)
    follower.discovery.start()
    await follower.until(lambda: follower.discovery.tried)
    assert follower.discovery.up == trusted
    if not trusted:
        assert served.tokens == [], "it gets no token"
        assert {*follower.failures} == {"untrusted"}
        assert "or set kubernetes.kubelet.insecure_skip_verify" in capsys.readouterr().out
    await follower.discovery.stop()
    await served.server.close()


def test_where_it_runs_is_known_or_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    on = KubernetesSettings(enabled=True)
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert create(KubernetesSettings(), lambda: None) is None
    with pytest.raises(UsageError, match=r"kubernetes\.url: this is no pod"):
        create(on, lambda: None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    with pytest.raises(UsageError, match="set NODE_NAME from the field"):
        create(on, lambda: None)
    monkeypatch.setenv("NODE_NAME", "node-7")
    made = create(on, lambda: None)
    assert made is not None and made._server.url == "https://[fd00::1]:6443/api/v1/pods"
    assert made._server.query == {"fieldSelector": "spec.nodeName=node-7"}


def test_where_the_kubelet_is_is_known_or_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = KubernetesSettings(enabled=True, node="node-7", kubelet=KubeletSettings(enabled=True))
    monkeypatch.delenv("NODE_IP", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(UsageError, match=r"set NODE_IP from the field status\.hostIP"):
        create(asked, lambda: None)
    monkeypatch.setenv("NODE_IP", "fd00::7")
    made = create(asked, lambda: None)
    assert made is not None and made._server.url == "https://[fd00::7]:10250/pods"
    made = create(msgspec.structs.replace(asked, url="https://10.0.0.7:1"), lambda: None)
    assert made is not None and made._server.url == "https://10.0.0.7:1/pods"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kubernetes: {enabled: true}", "docker and kubernetes are enabled, and find the same containers"),
        ("kubernetes: {enabled: true, url: 'ftp://x'}", r"kubernetes\.url: 'ftp://x' has no scheme"),
        ("kubernetes: {watch_seconds: 0}", r"kubernetes\.watch_seconds"),
        ("kubernetes: {kubelet: {port: 0}}", r"kubernetes\.kubelet\.port"),
        ("kubernetes: {kubelet: true}", r"kubernetes\.kubelet"),
    ],
)
def test_a_mistake_in_its_settings_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=line):
        check(path)
