"""A real exporter before a real API server that fails it: tokens that end, versions that expire, silence, an outage.

The API server is alone with its etcd, so pods are what these tests make of them: of a node that is not there, and with
probes on loopback that count who polls them.
"""

from __future__ import annotations

import asyncio
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from apiserver import ApiServer
from harness import eventually
from prometheus_client.parser import text_string_to_metric_families

from infercanary.contract.report import SCHEMA_VERSION, Report, encode

_STATUS = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}'
GONE = (
    b"HTTP/1.1 410 Gone\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_STATUS), _STATUS)
)
POD = "/api/v1/namespaces/{}/pods"
EXPIRED = "the resource version is too old"
IMPATIENT = """
import sys
from pathlib import Path
from infercanary.command.cli import main
from infercanary.exporter.discovery import kubernetes
kubernetes.SILENT_SECONDS = 5
kubernetes._ACCOUNT = Path(sys.argv.pop(1))
main()
"""
ACCOUNT = "/api/v1/namespaces/infercanary/serviceaccounts/exporter"


class Probes:
    """Answers as a probe does that has nothing to report, and counts who asks: on a port for each pod."""

    def __init__(self) -> None:
        self.polls: Counter[int] = Counter()
        self.servers: list[http.server.ThreadingHTTPServer] = []

    def start(self) -> int:
        polls = self.polls
        body = encode(Report(SCHEMA_VERSION, "boot", time.time(), "", 0, (), {}, ()))

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                polls[self.server.server_port] += 1  # type: ignore[attr-defined]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)
        return server.server_port

    def stop(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Tunnel:
    """Relays to the API server, and fails on command: silent, cut off with nothing behind it, or gone."""

    def __init__(self, api: ApiServer) -> None:
        self.silent = self.closed = False
        self.gone = False
        """Whether the next request is answered by HTTP 410 here, which the real one sends as an event."""
        self.connections = 0
        """So many were made: each watch makes one."""
        self._to = api.port
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(api.ca_file, api.ca_file.with_suffix(".key"))
        answering = asyncio.start_server(self._answer_gone, "127.0.0.1", 0, ssl=context)
        self._gone_server = self._loop.run_until_complete(answering)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self.closed = True
        self._loop.call_soon_threadsafe(self._abort)

    def stop(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._server.close()
        self._gone_server.close()
        self._loop.run_until_complete(self._ended())
        self._loop.close()

    async def _ended(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.transport.abort()
            return
        self.connections += 1
        with suppress(OSError):
            port = self._gone_server.sockets[0].getsockname()[1] if self.gone else self._to
            there, back = await asyncio.open_connection("127.0.0.1", port)
            self._writers |= {writer, back}
            await asyncio.gather(self._relay(reader, back), self._relay(there, writer))
            self._writers -= {writer, back}
        writer.transport.abort()

    async def _answer_gone(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            self.requested = await reader.readuntil(b"\r\n\r\n")
            self.gone = False
            writer.write(GONE)
            await writer.drain()
        writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


class Watched:
    """An exporter as a process, before the API server, and what it shows."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api, self.probes, self.tunnel = api, Probes(), Tunnel(api)
        self.token_file = folder / "token"
        self.ports: dict[str, int] = {}
        self._account()
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        config = folder / "exporter.yaml"
        config.write_text(f"""
            listen: 127.0.0.1:{self.port}
            poll_seconds: 0.5
            discovery: kubernetes
            """)
        shutil.copy(api.ca_file, folder / "ca.crt")
        where = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.tunnel.port),
            "NODE_NAME": "bench",
        }
        self.log_file = folder / "exporter.log"
        self.log = self.log_file.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, folder, "exporter", "--config", config],
            stderr=self.log,
            env={**os.environ, **where},
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.log.close()
        self.probes.stop()
        self.tunnel.stop()

    def _account(self) -> None:
        """As the chart makes it: list and watch on pods, and nothing else."""
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "infercanary"}})
        self.api.call("POST", ACCOUNT.rpartition("/")[0], {"metadata": {"name": "exporter"}})
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        self.api.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": "exporter"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "exporter"}
        subject = {"kind": "ServiceAccount", "name": "exporter", "namespace": "infercanary"}
        self.api.call(
            "POST", f"{rbac}/clusterrolebindings",
            {"metadata": {"name": "exporter"}, "roleRef": role, "subjects": [subject]},
        )  # fmt: skip
        self.renew_token("first")

    def renew_token(self, secret: str) -> None:
        """Put a token into the file that ends when the Secret of that name does."""
        secrets = "/api/v1/namespaces/infercanary/secrets"
        made = self.api.call("POST", secrets, {"metadata": {"name": secret}})
        bound = {
            "apiVersion": "v1",
            "kind": "Secret",
            "name": secret,
            "uid": made["metadata"]["uid"],
        }
        answer = self.api.call("POST", f"{ACCOUNT}/token", {"spec": {"boundObjectRef": bound}})
        self.token_file.write_text(answer["status"]["token"])

    def end_token(self, secret: str) -> None:
        self.api.call("DELETE", f"/api/v1/namespaces/infercanary/secrets/{secret}")

    def create(self, name: str, namespace: str = "default") -> None:
        """A pod that runs, as its kubelet says."""
        port = self.ports[name] = self.probes.start()
        annotations = {"infercanary.io/enable": "true", "infercanary.io/port": str(port)}
        self.api.call(
            "POST", POD.format(namespace),
            {
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"nodeName": "bench", "containers": [{"name": "server", "image": "app:1"}]},
            },
        )  # fmt: skip
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        status = {
            "name": "server",
            "image": "app:1",
            "imageID": f"docker.io/library/app@sha256:{1:064}",
            "containerID": f"containerd://{port:064}",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": started}},
        }
        self.api.call(
            "PATCH", f"{POD.format(namespace)}/{name}/status",
            {"status": {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [status]}},
        )  # fmt: skip

    def delete(self, name: str, namespace: str = "default") -> None:
        del self.ports[name]
        self.api.call("DELETE", f"{POD.format(namespace)}/{name}", {"gracePeriodSeconds": 0})

    def metric(self, name: str) -> dict[str, float]:
        """Label values, but those of the container, → value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
            text = response.read().decode()
        return {
            ",".join(
                value for key, value in sample.labels.items() if key not in ("service", "container")
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"infercanary_{name}"
        }

    def follows(self, *names: str, seconds: float = 20) -> None:
        """Wait until these pods are polled, and no others."""
        wanted = {f"default,{name}": 1.0 for name in names}
        with suppress(AssertionError):
            eventually(f"polls of {names}", seconds, lambda: self.metric("up") == wanted)
        assert self.metric("up") == wanted, self.log_file.read_text()[-2000:]

    def said(self, text: str) -> int:
        """Times that the log has this text."""
        return self.log_file.read_text().count(text)

    def polls_per_second(self, name: str, seconds: float = 3.0) -> float:
        before, begun = self.probes.polls[self.ports[name]], time.monotonic()
        time.sleep(seconds)  # a rate is over a time
        return (self.probes.polls[self.ports[name]] - before) / (time.monotonic() - begun)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("api")
    with ApiServer(folder / "api") as api:
        exporter = Watched(api, folder)
        try:
            exporter.create("steady")
            exporter.follows("steady")
            yield exporter
        finally:
            exporter.stop()


@pytest.fixture(autouse=True)
def nothing_is_lost_or_polled_twice(watched: Watched) -> Iterator[None]:
    """Whatever happened: the pod that was there all the time is polled as often as the settings say."""
    yield
    for left in watched.ports.keys() - {"steady"}:  # of a test that failed; the next ones begin anew
        watched.delete(left)
    watched.follows("steady")
    assert 1.4 <= watched.polls_per_second("steady") <= 2.7, "every half second"


def test_a_token_that_is_replaced(watched: Watched) -> None:
    watched.renew_token("second")
    watched.end_token("first")
    made = watched.tunnel.connections
    eventually("a watch with the new token", 20, lambda: watched.tunnel.connections >= made + 2)
    watched.create("after-the-token")
    watched.follows("after-the-token", "steady")
    watched.delete("after-the-token")
    assert watched.said("HTTP 401") == 0


def test_a_token_that_ended_and_is_replaced_late(watched: Watched) -> None:
    watched.renew_token("third")
    watched.end_token("second")
    eventually("a watch with it", 20, lambda: watched.metric("discovery_up") == {"": 1.0})
    watched.end_token("third")
    eventually("a refusal", 30, lambda: watched.said("HTTP 401: the token is not valid") > 0)
    eventually("that it is known", 20, lambda: watched.metric("discovery_up") == {"": 0.0})
    assert watched.metric("up") == {"default,steady": 1.0}
    watched.renew_token("fourth")
    eventually("the API server again", 60, lambda: watched.metric("discovery_up") == {"": 1.0})


def test_a_version_that_expired_while_it_was_cut_off(watched: Watched) -> None:
    """The API server has forgotten what happened meanwhile, so pods are listed and compared."""
    watched.create("ends-unseen")
    watched.follows("ends-unseen", "steady")
    watched.tunnel.cut()
    eventually("the outage", 20, lambda: watched.metric("discovery_up") == {"": 0.0})
    watched.delete("ends-unseen")
    watched.create("begins-unseen")
    watched.api.stop()
    watched.api.compact()
    watched.api.start()
    watched.tunnel.closed = False
    watched.follows("begins-unseen", "steady", seconds=60)
    watched.delete("begins-unseen")


def test_a_version_that_is_gone_by_the_status_of_the_answer(watched: Watched) -> None:
    expired = watched.said(EXPIRED)
    watched.tunnel.gone = True
    eventually("a list", 20, lambda: watched.said(EXPIRED) == expired + 1)
    assert b"watch=1" in watched.tunnel.requested
    watched.create("after-gone")
    watched.follows("after-gone", "steady")
    watched.delete("after-gone")


def test_silence(watched: Watched) -> None:
    silent = watched.said("TimeoutError")
    watched.tunnel.silent = True
    eventually("that it is noticed", 30, lambda: watched.said("TimeoutError") > silent)
    watched.create("in-silence")
    watched.tunnel.silent = False
    watched.tunnel.cut()
    watched.tunnel.closed = False
    watched.follows("in-silence", "steady", seconds=60)
    watched.delete("in-silence")


@pytest.mark.parametrize("seconds", [30, pytest.param(600, marks=pytest.mark.campaign)])
def test_an_api_server_that_is_stopped(watched: Watched, seconds: float) -> None:
    watched.api.stop()
    eventually("the outage", 20, lambda: watched.metric("discovery_up") == {"": 0.0})
    polls = watched.probes.polls[watched.ports["steady"]]
    time.sleep(seconds)  # the outage itself
    watched.api.compact()
    watched.api.start()
    assert watched.probes.polls[watched.ports["steady"]] - polls >= 1.5 * seconds, "it is polled meanwhile"
    eventually("the API server again", 90, lambda: watched.metric("discovery_up") == {"": 1.0})
    name = f"after-{seconds}"
    watched.create(name)
    watched.follows(name, "steady")
    watched.delete(name)
    watched.follows("steady")
