"""The Kubernetes discovery, with an API server that fails on request.

tests/kubernetes uses a real API server, which its test_kubelet.py also stops.
"""

import asyncio
import json
import shutil
import ssl

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from infercanary.command.settings import UsageError
from infercanary.exporter.discovery import kubernetes
from infercanary.exporter.discovery.kubernetes import KubernetesPods, source
from tests.integration.exporter.processes import certificate, comes_true
from tests.scenarios import cases
from tests.unit.exporter.test_kubernetes_pods import raw


def event(kind, pod, version):
    return msgspec.json.encode({"type": kind, "object": raw(pod, resourceVersion=f"{version}")}) + b"\n"


def line(kind, **of):
    return json.dumps({"type": kind, "object": of}).encode() + b"\n"


CUT = b"cut"


class Api:
    """Answers a list request with ``pods``, and each watch with the items of ``stream``; the item None ends the
    watch.
    """

    def __init__(self):
        self.pods = []
        self.version = 1
        self.page_pods = 100
        self.requests = []
        self.tokens = []
        self.status = []  # status codes of the next answers; 200 means a normal answer
        self.stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    async def _answer(self, request):
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.status and (status := self.status.pop(0)) != 200:
            return web.Response(status=status, headers={"Location": request.path_qs})
        if "watch" not in request.query:
            first = int(request.query["continue"] or "0")
            end = first + min(int(request.query["limit"]), self.page_pods)
            meta = {
                "resourceVersion": f"{self.version}",
                "continue": f"{end}" if end < len(self.pods) else "",
            }
            return web.Response(body=msgspec.json.encode({"metadata": meta, "items": self.pods[first:end]}))
        response = web.StreamResponse()
        await response.prepare(request)
        while (piece := await self.stream.get()) is not None:
            if piece == CUT:
                request.transport.abort()
                break
            await response.write(piece)
        return response

    def send(self, *pieces):
        for piece in pieces:
            self.stream.put_nowait(piece)

    @property
    def watches(self):
        return [each["resourceVersion"] for each in self.requests if "watch" in each]

    @property
    def lists(self):
        return [each["continue"] for each in self.requests if "watch" not in each]


class Follower:
    def __init__(self, api):
        self.discovery = KubernetesPods(str(api.server.make_url("")), "node-1")
        self.containers = []
        self.failures = []
        self.task = asyncio.create_task(self._follow())

    async def _follow(self):
        while True:
            try:
                async for containers in self.discovery.watch():
                    self.containers = [*containers]
            except Exception as error:
                self.failures.append(error)
            await asyncio.sleep(0.02)

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def finds(self, *names):
        await comes_true(lambda: sorted(each.pod for each in self.containers) == [*names])

    async def fails(self, says):
        await comes_true(lambda: says in str(self.failures))


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    monkeypatch.setattr(kubernetes, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)


@pytest_asyncio.fixture
async def api(tmp_path):
    (tmp_path / "token").write_text("first\n")
    served = Api()
    await served.server.start_server()
    yield served
    await served.server.close()


@pytest_asyncio.fixture
async def follow(api):
    started = []

    async def begin():
        started.append(Follower(api))
        await comes_true(lambda: api.watches)
        return started[-1]

    yield begin
    for each in started:
        await each.stop()
    api.send(*[None] * 10)


async def test_a_list_in_pages_and_then_what_changes(api, follow):
    api.pods, api.page_pods, api.version = [raw(number) for number in "12345"], 2, 9
    api.status = [200, 410]  # after an expired page, the list of pods starts again
    follower = await follow()
    await follower.finds(*"12345")
    assert api.watches == ["9"]
    assert api.lists == ["", "2", "", "2", "4"]
    assert api.requests[0] == {"fieldSelector": "spec.nodeName=node-1", "limit": "10", "continue": ""}
    assert {"fieldSelector": "spec.nodeName=node-1", "allowWatchBookmarks": "true"}.items() <= api.requests[
        -1
    ].items()
    api.send(event("DELETED", "3", 10))
    await follower.finds(*"1245")
    assert len(api.lists) == 5
    assert len(follower.failures) == 1


async def test_a_watch_that_ends_goes_on_where_it_was_with_the_token_of_then(api, follow, tmp_path, capsys):
    follower = await follow()
    (tmp_path / "token").write_text("second\n")
    api.send(event("ADDED", "1", 5), None)
    await follower.finds("1")
    api.send(line("BOOKMARK", metadata={"resourceVersion": "7"}, spec={"containers": None}), None)
    await comes_true(lambda: api.watches == ["1", "5", "7"])
    assert follower.failures == []
    assert len(api.lists) == 1
    assert api.tokens == ["Bearer first"] * 2 + ["Bearer second"] * 2
    assert "cannot be read" not in capsys.readouterr().out  # a bookmark is not a pod


async def test_a_line_in_pieces_and_a_cut_in_it(api, follow):
    follower = await follow()
    added, deleted = event("ADDED", "1", 5), event("DELETED", "1", 6)
    for piece, found in ((event("ADDED", "2", 4) + added[:50], "2"), (added[50:], "12")):
        api.send(piece)
        await follower.finds(*found)
    api.send(deleted[:60], CUT)
    await comes_true(lambda: api.watches == ["1", "5"])
    api.send(deleted)
    await follower.finds("2")
    assert follower.failures == [] and len(api.lists) == 1  # the end of a watch is not a failure


REFUSALS = {
    401: "token is not valid",
    403: "`list` and `watch` on `pods`",
    404: "not the address of",
    302: "HTTP 302",
}


async def test_an_answer_that_refuses(api, follow):
    """The follower refuses a redirection, because its token is only for this address."""
    api.pods, api.status = [raw("1")], [*REFUSALS]
    follower = await follow()
    await follower.finds("1")
    for fix in REFUSALS.values():
        await follower.fails(fix)


@cases([b"<html>\n", b"[]\n", line("ERROR", code=500, message="etcd"), b"x" * 3000])
async def test_an_invalid_watch_means_to_list_again(odd, api, follow, monkeypatch):
    monkeypatch.setattr(kubernetes, "MAX_BYTES", 2000)
    follower = await follow()
    api.pods = [raw("1")]
    api.send(odd)
    await follower.finds("1")
    assert len(follower.failures) == 1
    assert len(api.lists) == 2


async def test_a_silent_watch_is_begun_again(api, follow, monkeypatch):
    """Simulates a connection whose other end has died. A bookmark keeps a watch alive."""
    monkeypatch.setattr(kubernetes, "SILENT_SECONDS", 0.5)
    follower = await follow()
    await asyncio.sleep(0.3)
    api.send(line("BOOKMARK", metadata={"resourceVersion": "7"}))
    await asyncio.sleep(0.3)
    assert api.watches == ["1"]
    await comes_true(lambda: api.watches == ["1", "7"])
    api.send(None, event("ADDED", "1", 8))
    await follower.finds("1")


async def test_a_version_that_the_server_has_forgotten_means_to_list_again(api, follow):
    """The API server reports a forgotten version by an event of the watch, or by the status of its answer."""
    follower = await follow()
    api.send(line("ERROR", code=410, reason="Expired", message="too old resource version: 1 (9)"))
    await comes_true(lambda: len(api.lists) == 2 and len(api.watches) == 2)
    api.status, api.pods = [410], [raw("1")]
    api.send(None)
    await follower.finds("1")
    assert len(follower.failures) == 2
    assert "too old" in str(follower.failures[1])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for the certificate")
async def test_only_a_server_whose_certificate_is_trusted_gets_the_token(tmp_path):
    own = certificate(tmp_path, "api")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own, own.with_suffix(".key"))
    served = Api()
    served.pods = [raw("1")]
    await served.server.start_server(ssl=context)
    follower = Follower(served)
    await follower.fails("mount the service account's token")
    (tmp_path / "token").write_text("first")
    shutil.copy(ssl.get_default_verify_paths().cafile or own, tmp_path / "ca.crt")
    await follower.fails("the CA beside the service account's token did not sign this certificate")
    assert served.tokens == []
    shutil.copy(own, tmp_path / "ca.crt")
    await follower.finds("1")
    await follower.stop()
    served.send(None)
    await served.server.close()


def test_the_address_and_the_node_come_from_the_environment(monkeypatch):
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="not in a pod"):
        source()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    with pytest.raises(UsageError, match="set NODE_NAME from the field"):
        source()
    monkeypatch.setenv("NODE_NAME", "node-7")
    made = source()
    assert made.url == "https://[fd00::1]:6443/api/v1/pods"
    assert made.node == "node-7"
