"""Kubernetes: pods of this node with the annotation or label ``infercanary.io/enable: "true"``.

A list, page by page, then a watch from its version on. A client library is not used: it reads the service account's
token once, and a token is renewed within the hour.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import structlog

from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.kills import MemoryKill
from infercanary.exporter.discovery.kubernetes_pods import NodePods, PodState
from infercanary.exporter.watch import in_thread

log = structlog.get_logger(__name__)

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the token and the CA, which are read for each request."""
CONNECT_SECONDS = 10.0
WATCH_SECONDS = 300.0
"""The API server is asked to end a watch after this time; the next one goes on from there, with the token of then."""
SILENT_SECONDS = 150.0
"""A watch without a byte for this long is dead: bookmarks come once a minute."""
PAUSE_SECONDS = 1.0
"""Between two watches, so that one that ends immediately does not flood the API server."""
SETTLE_SECONDS = 0.25
"""A burst of events costs one comparison of all containers."""
PAGE_PODS = 100  # 1 MB as a rule, read within milliseconds
MAX_BYTES = 16 << 20
"""Of a page or an event. A pod has 1.5 MiB in etcd at most, and six times that if JSON escapes each character."""
_FIXES = {
    401: ": the token is not valid; does the service account exist?",
    403: ": give the exporter's service account `list` and `watch` on `pods`, by a ClusterRole",
    404: ": KUBERNETES_SERVICE_HOST is not that of an API server",
}


class ApiError(Exception):
    """A request failed. One line for people, with the fix if there is one."""


class ExpiredError(Exception):
    """The resource version is too old: list again, and compare."""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _PodList(msgspec.Struct):
    metadata: _Version
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Object(msgspec.Struct):
    """A pod, or the Status of an event ``ERROR``."""

    metadata: _Version = _Version()
    code: int = 0
    message: str = ""


_decode_list = msgspec.json.Decoder(_PodList).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_object = msgspec.json.Decoder(_Object).decode


class KubernetesPods:
    """The pods of one node.

    Args:
        url: Of the API server.
        node: Name of the node.
    """

    name = "Kubernetes"

    def __init__(self, url: str, node: str) -> None:
        self.url = f"{url.rstrip('/')}/api/v1/pods"
        self.selector = {"fieldSelector": f"spec.nodeName={node}"}
        self.pods = NodePods()
        self._version = ""

    def new_kills(self) -> list[MemoryKill]:
        """Containers that the kernel killed for memory since the last call, in order of time."""
        kills, self.pods.kills = self.pods.kills, []
        return sorted(kills, key=lambda kill: kill.at)

    async def watch(self) -> AsyncGenerator[list[Container], None]:
        """Follow the containers with a probe.

        Yields:
            All of them, after each change.

        Raises:
            ApiError: The API server refused.
            Exception: It does not answer, or not in its format.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout) as session:
            self._version = ""
            while True:
                try:
                    if not self._version:
                        await self._list(session)
                        yield self.pods.containers()
                    async with aclosing(self._changes(session)) as changes:
                        async for containers in changes:
                            yield containers
                except ExpiredError:
                    log.info("kubernetes no longer knows the resource version; pods are listed again")
                    self._version = ""
                await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311 - a jitter, not a secret

    async def _list(self, session: aiohttp.ClientSession) -> None:
        """List all pods of the node. A page over the bound is asked for again with fewer pods."""
        listed: dict[tuple[str, str], PodState] = {}
        limit, page = PAGE_PODS, _PodList(_Version())
        while True:
            body = bytearray()
            async with self._ask(
                session, limit=str(limit), **{"continue": page.metadata.continue_}
            ) as response:
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_BYTES:
                        break
            if len(body) > MAX_BYTES:
                if limit == 1:
                    raise ApiError(f"a pod has more than {MAX_BYTES} bytes")
                limit //= 10
                continue
            page = _decode_list(body)
            listed |= self.pods.read(page.items or ())
            if not page.metadata.continue_:
                break
        self.pods.replace(listed)
        self._version = page.metadata.resource_version

    async def _changes(self, session: aiohttp.ClientSession) -> AsyncGenerator[list[Container], None]:
        """Containers after each burst of events, until the watch ends. A cut connection only ends it."""
        seconds = WATCH_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311
        async with self._ask(
            session, watch="1", allowWatchBookmarks="true", resourceVersion=self._version,
            timeoutSeconds=str(max(1, round(seconds))),
        ) as response:  # fmt: skip
            rest = b""
            settles_at: float | None = None
            while not response.content.at_eof():
                wait = None if settles_at is None else max(0.0, settles_at - time.monotonic())
                try:
                    piece = await asyncio.wait_for(response.content.readany(), wait)
                except (aiohttp.ClientError, aiohttp.ServerTimeoutError) as error:
                    log.info("kubernetes was cut off, and is asked again", error=repr(error))
                    break
                except asyncio.TimeoutError:
                    piece = b""
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_BYTES:
                    raise ApiError(f"an event has more than {MAX_BYTES} bytes")
                for line in filter(None, lines):
                    self._take(line)
                now = time.monotonic()
                if settles_at is not None and now >= settles_at:
                    settles_at = None
                    yield self.pods.containers()
                elif self.pods.changed and settles_at is None:
                    settles_at = now + SETTLE_SECONDS
        if self.pods.changed:
            yield self.pods.containers()

    def _take(self, line: bytes) -> None:
        event = _decode_event(line)
        of = _decode_object(event.object)
        if event.type == "ERROR":
            raise ExpiredError if of.code == 410 else ApiError(f"{of.code}: {of.message}")
        self.pods.take(event.object, gone=event.type == "DELETED")  # a bookmark is a pod without annotations
        self._version = of.metadata.resource_version

    @asynccontextmanager
    async def _ask(
        self, session: aiohttp.ClientSession, **query: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Successful answer, its body still to be read."""
        try:
            headers, context = await in_thread(self._credentials)
        except OSError as error:
            raise ApiError(f"{error}; mount the service account's token") from None
        try:
            async with session.get(
                self.url,
                params={**self.selector, **query},
                headers=headers,
                ssl=context,
                allow_redirects=False,
            ) as response:
                if response.status == 410:
                    raise ExpiredError
                if response.status != 200:
                    raise ApiError(f"HTTP {response.status}{_FIXES.get(response.status, '')}")
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise ApiError(
                f"{error.certificate_error}; the CA beside the service account's token is another one"
            ) from None

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext | bool]:
        """Headers with the present token, and the present CA."""
        token = (_ACCOUNT / "token").read_text().strip()
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        if not self.url.startswith("https:"):
            return headers, True
        return headers, ssl.create_default_context(cafile=_ACCOUNT / "ca.crt")


def source() -> KubernetesPods:
    """Make the source from what Kubernetes sets in each pod, and NODE_NAME.

    Raises:
        UsageError: The environment does not name the API server and the node.
    """
    host, node = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("NODE_NAME")
    if not host:
        raise UsageError("discovery: this is no pod: KUBERNETES_SERVICE_HOST is not set")
    if not node:
        raise UsageError(
            "discovery: the node's name is not known; set NODE_NAME from the field spec.nodeName of the pod"
        )
    return KubernetesPods(f"https://{in_url(host)}:{os.environ.get('KUBERNETES_SERVICE_PORT') or 443}", node)
