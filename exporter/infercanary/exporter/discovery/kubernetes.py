"""Kubernetes: pods of this node with the annotation or label ``infercanary.io/enable: "true"``.

First all pods are listed, page by page; then a watch follows the changes from the list's version on. The official
client library is not used: it reads the service account's token only once, but the token is renewed within the hour.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import structlog

from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.exporter.discovery.base import MemoryKill
from infercanary.exporter.discovery.kubernetes_pods import NodePods, Pods

log = structlog.get_logger(__name__)

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the token and the CA; both are read for each request."""
CONNECT_SECONDS = 10.0
SILENT_SECONDS = 150.0
"""Bookmarks come once a minute, so a watch that is silent for this long is broken."""
PAUSE_SECONDS = 1.0
"""Pause between two watches. Watches that end immediately would flood the API server without this pause."""
PAGE_PODS = 10
"""Pods in a page. A pod takes up to 1.5 MiB in etcd, and six times as much if JSON escapes all characters, so a page
has few pods.
"""
MAX_BYTES = 16 << 20
"""Maximum size of an event."""
_FIXES = {
    401: ": the token is not valid; does the service account exist?",
    403: ": give the exporter's service account `list` and `watch` on `pods`, by a ClusterRole",
    404: ": KUBERNETES_SERVICE_HOST is not the address of an API server",
    410: ": the resource version is too old; pods are listed again",
}


class ApiError(Exception):
    """A request failed. The message is one line for users, with the fix if known."""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _PodList(msgspec.Struct):
    metadata: _Version = _Version()
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Object(msgspec.Struct):
    """A pod, or the Status in an event ``ERROR``."""

    metadata: _Version = _Version()
    code: int = 0
    message: str = ""


_decode_list = msgspec.json.Decoder(_PodList).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_object = msgspec.json.Decoder(_Object).decode


class KubernetesPods:
    """The pods of one node.

    Args:
        url: URL of the API server.
        node: Name of the node.
    """

    name = "Kubernetes"

    def __init__(self, url: str, node: str) -> None:
        self.url = f"{url.rstrip('/')}/api/v1/pods"
        self.node = node
        self._pods = NodePods()
        self.kills: list[MemoryKill] = self._pods.kills

    async def watch(self) -> AsyncGenerator[NodePods, None]:
        """Follow the containers with a probe.

        Yields:
            All these containers, after each change.

        Raises:
            ApiError: The API server refused the request.
            Exception: The API server does not answer, or sends an invalid answer.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout) as session:
            await self._list(session)
            yield self._pods
            while True:
                query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
                async with self._ask(session, query) as response:
                    try:
                        async for line in response.content:
                            if self._take(line):
                                yield self._pods
                    except aiohttp.ClientError as error:
                        log.info(
                            "the watch of Kubernetes was interrupted and is restarted", error=repr(error)
                        )
                await asyncio.sleep(PAUSE_SECONDS)

    def _take(self, line: bytes) -> bool:
        """Process an event; return True if containers changed."""
        event = _decode_event(line)
        of = _decode_object(event.object)
        if event.type == "ERROR":
            raise ApiError(f"{of.code}: {of.message}{_FIXES.get(of.code, '')}")
        self._version = of.metadata.resource_version
        is_pod = event.type != "BOOKMARK"
        return is_pod and self._pods.take(event.object, gone=event.type == "DELETED")

    async def _list(self, session: aiohttp.ClientSession) -> None:
        listed: Pods = {}
        page = _PodList()
        while True:
            query = {"limit": str(PAGE_PODS), "continue": page.metadata.continue_}
            async with self._ask(session, query) as response:
                page = _decode_list(await response.read())
            listed |= self._pods.read(page.items)
            if not page.metadata.continue_:
                break
        self._pods.replace(listed)
        self._version = page.metadata.resource_version

    @asynccontextmanager
    async def _ask(
        self, session: aiohttp.ClientSession, query: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request. Yield the successful response before its body is read."""
        try:
            headers, context = await asyncio.to_thread(self._credentials)
        except OSError as error:
            raise ApiError(f"{error}; mount the service account's token") from None
        try:
            async with session.get(
                self.url,
                params={"fieldSelector": f"spec.nodeName={self.node}", **query},
                headers=headers,
                ssl=context,
                allow_redirects=False,
                read_bufsize=MAX_BYTES // 2,  # aiohttp allows lines of twice this size
            ) as response:
                if response.status != 200:
                    raise ApiError(f"HTTP {response.status}{_FIXES.get(response.status, '')}")
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise ApiError(
                f"{error.certificate_error}; the CA beside the service account's token did not sign this certificate"
            ) from None

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext]:
        """Return headers with the current token, and a TLS context with the current CA."""
        token = (_ACCOUNT / "token").read_text().strip()
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        authority = _ACCOUNT / "ca.crt"
        return headers, ssl.create_default_context(cafile=authority if authority.exists() else None)


def source() -> KubernetesPods:
    """Make the source from the environment variables KUBERNETES_SERVICE_* and NODE_NAME.

    Raises:
        UsageError: An environment variable is missing.
    """
    host, node = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("NODE_NAME")
    if not host:
        raise UsageError(
            "discovery: not in a pod (KUBERNETES_SERVICE_HOST is not set); run the exporter in a pod, or use "
            "another discovery"
        )
    if not node:
        raise UsageError(
            "discovery: the node's name is unknown; set NODE_NAME from the field spec.nodeName of the pod"
        )
    return KubernetesPods(f"https://{in_url(host)}:{os.environ.get('KUBERNETES_SERVICE_PORT') or 443}", node)
