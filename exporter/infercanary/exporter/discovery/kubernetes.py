"""Kubernetes: pods with the annotation or label ``infercanary.io/enable: "true"`` on this node.

From the API server by a list, page by page, and then a watch that goes on where it ended, for ever; or, where the
settings say so, from the node's own kubelet, which knows no watch and is asked again and again.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable
from typing import Annotated, NoReturn

import aiohttp
import msgspec
import structlog

from infercanary.client.limits import Limits
from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.contract.report import Family
from infercanary.contract.text import printable
from infercanary.exporter.discovery.base import (
    FOUND,
    UP,
    Container,
    DiscoveryKind,
    register,
    url_mistake,
)
from infercanary.exporter.discovery.kills import MemoryKill
from infercanary.exporter.discovery.kubernetes_api import CONNECT_SECONDS, PodServer, TooLargeError, reason_of
from infercanary.exporter.discovery.kubernetes_watch import LineSplitter, NodePods
from infercanary.exporter.watch import WATCH

log = structlog.get_logger(__name__)

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_SETTLE_SECONDS = 0.25  # a burst of events costs one comparison
_LIST_SECONDS = 60.0
_LATE_SECONDS = 30.0  # that a watch may last beyond the time after which the API server ends it
_PAGE_PODS = 100  # a page of them, 1 MB, is read within milliseconds
_PAGE_BYTES = 16 << 20
_KUBELET_SECONDS = 10.0
_KUBELET_BYTES = 32 << 20  # it has no pages; 500 pods, the most that anyone runs, of 64 KiB each
_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 1.0, 30.0
_SHORT_SECONDS = 1.0  # a watch that ends sooner, without any event, is a failure

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3_600)]


class KubeletSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section ``kubernetes.kubelet:``. Its address is NODE_IP, unless ``kubernetes.url`` is set."""

    enabled: bool = False
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 10_250
    poll_seconds: Seconds = 10.0
    """Between two questions."""
    insecure_skip_verify: bool = False
    """Take any certificate: whoever answers at that address then gets the token."""


class KubernetesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section ``kubernetes:``. Without ``url`` and ``node``: what Kubernetes sets in each pod, and NODE_NAME."""

    enabled: bool = False
    url: str | None = None
    node: str | None = None
    token_file: str = f"{_ACCOUNT}/token"
    """Read anew for each request; empty for none."""
    ca_file: str = f"{_ACCOUNT}/ca.crt"
    """Read anew for each request; empty for the system's."""
    watch_seconds: Seconds = 300.0
    """After which the API server is asked to end a watch, and another one goes on."""
    silent_seconds: Seconds = 150.0
    """Without a byte: bookmarks come once a minute, so the connection is dead."""
    kubelet: KubeletSettings = KubeletSettings()


_API_SERVER_FIXES = {
    401: "the token is not valid; see kubernetes.token_file, and that the service account exists",
    403: "give the exporter's service account `list` and `watch` on `pods`, by a ClusterRole",
    404: "kubernetes.url is no API server's",
}
_KUBELET_FIXES = {
    401: "the token is not valid, or the kubelet cannot ask the API server about it; see kubernetes.token_file",
    403: "give the exporter's service account `get` on `nodes/pods`, by a ClusterRole; a kubelet before 1.33 wants "
    "more than that, so switch kubernetes.kubelet off there",
    404: "kubernetes.url is no kubelet's",
}


class KubernetesDiscovery:
    """Follows the pods of one node.

    Args:
        settings: As in the config.
        url: Of the API server, or of the kubelet.
        node: Its name.
        changed: Called on the event loop after changes of ``containers``.
    """

    def __init__(
        self, settings: KubernetesSettings, url: str, node: str, changed: Callable[[], None]
    ) -> None:
        self.source = "The kubelet" if settings.kubelet.enabled else "Kubernetes"
        self.containers: list[Container] = []
        self.up = False
        self.tried = False
        self._settings = settings
        self._server = _server(settings, url.rstrip("/"), node)
        self._node = node
        self._changed = changed
        self._pods = NodePods(time.time())
        self._kills: list[MemoryKill] = []
        self._answered_at = math.inf
        self._publishing: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to follow, on the running event loop."""
        self._task = WATCH.task("kubernetes", self._follow)

    async def stop(self) -> None:
        """End; requests are given up."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._publishing is not None:
            self._publishing.cancel()

    def families(self) -> list[Family]:
        """Whether it answers, and how many containers there are."""
        return [
            UP.family(float(self.up)),
            FOUND.family(sum(container.is_asked for container in self.containers)),
        ]

    def new_kills(self) -> list[MemoryKill]:
        """The containers that the kernel ended for memory since it was last asked."""
        kills, self._pods.kills = self._pods.kills, []
        return sorted(kills, key=lambda kill: kill.at)

    async def _follow(self) -> None:
        failures = 0
        while True:
            version, self._answered_at = self._pods.version, math.inf
            try:
                async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
                    if self._settings.kubelet.enabled:
                        await self._ask_kubelet(session)
                    if not self._pods.version:
                        await self._list(session)
                    await self._watch(session)
            except Exception as error:  # whatever the API server answers must not end the search for ever
                self._lost(error)
            lasted = time.monotonic() - self._answered_at >= _SHORT_SECONDS
            # One that expired is no failure, unless it is that of a list that was just made.
            failures = 0 if lasted or self._pods.version != version else failures + 1
            await asyncio.sleep(_delay(failures))

    async def _ask_kubelet(self, session: aiohttp.ClientSession) -> NoReturn:
        """Take all pods that the kubelet has, again and again, until it fails to answer."""
        while True:
            self._pods.begin_list()
            self._pods.take_page(await self._server.read(session, {}, _KUBELET_SECONDS, _KUBELET_BYTES))
            self._answered_at = time.monotonic()
            self._listed()
            await asyncio.sleep(self._settings.kubelet.poll_seconds)

    async def _list(self, session: aiohttp.ClientSession) -> None:
        """List all pods of the node, page by page, and compare."""
        pods, after = _PAGE_PODS, ""
        self._pods.begin_list()
        while True:
            query = {"limit": str(pods), "continue": after} if after else {"limit": str(pods)}
            try:
                body = await self._server.read(session, query, _LIST_SECONDS, _PAGE_BYTES)
            except TooLargeError:
                if pods == 1:
                    raise
                pods = max(1, pods // 10)
                continue
            after = self._pods.take_page(body)
            if not after:
                break
        self._listed()

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Follow the pods until the API server ends the watch."""
        settings = self._settings
        lines = LineSplitter()
        seconds = settings.watch_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - a jitter, not a secret
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._pods.version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        timeout = aiohttp.ClientTimeout(
            total=seconds + _LATE_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=settings.silent_seconds
        )
        try:
            async with self._server.ask(session, query, timeout) as response:
                self._answered()
                self._answered_at = time.monotonic()
                async for piece in response.content.iter_any():
                    for line in lines.feed(piece):
                        self._pods.take_event(line)
                    self._settle()
        finally:
            self._settle()

    def _listed(self) -> None:
        self._answered()
        self._publish()

    def _answered(self) -> None:
        if not self.up:
            log.info("kubernetes answers", node=self._node, pods=self._pods.count)
        self.up = self.tried = True

    def _lost(self, error: Exception) -> None:
        """Note why a request ended. A version that expired and an answer that was cut are no outage yet."""
        reason = reason_of(error)
        if reason == "internal":
            log.exception("the search for pods failed by a fault of the exporter")
        if reason == "expired":
            log.info("kubernetes no longer knows the version; the pods are listed again", reason=reason)
            self._pods.version = ""
            return
        detail = printable(str(error) or type(error).__name__, 300, " ")
        if reason in ("closed", "silent") and self.up and self._answered_at < math.inf:
            log.info("kubernetes was cut off, and is asked again", reason=reason, error=detail)
            return
        if self.up or not self.tried:
            log.warning(
                "kubernetes does not answer; the pods known so far stay",
                url=self._server.url, reason=reason, error=detail,
            )  # fmt: skip
        self.up, self.tried = False, True
        self._changed()

    def _settle(self) -> None:
        """Publish what changed, soon: a burst of events costs one comparison."""
        if self._publishing is None and (self._pods.changed or self._pods.kills):
            loop = asyncio.get_running_loop()
            self._publishing = loop.call_later(_SETTLE_SECONDS, self._publish)

    def _publish(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        if self._pods.changed:
            self._pods.changed = False
            self.containers = self._pods.containers()
        self._changed()


def _server(settings: KubernetesSettings, url: str, node: str) -> PodServer:
    """Whom the settings say to ask, at this address."""
    if settings.kubelet.enabled:
        return PodServer(
            url=f"{url}/pods",
            token_file=settings.token_file,
            ca_file=settings.ca_file,
            skip_verify=settings.kubelet.insecure_skip_verify,
            fixes=_KUBELET_FIXES,
            trust="put who signs kubelets' certificates into kubernetes.ca_file, or set "
            "kubernetes.kubelet.insecure_skip_verify (docs/kubernetes.md)",
        )
    return PodServer(
        url=f"{url}/api/v1/pods",
        query={"fieldSelector": f"spec.nodeName={node}"},
        token_file=settings.token_file,
        ca_file=settings.ca_file,
        fixes=_API_SERVER_FIXES,
        trust="put the cluster's CA into kubernetes.ca_file",
    )


def _delay(failures: int) -> float:
    """Seconds until the next request: none after one that went well."""
    if not failures:
        return 0.0
    # Exporters of all nodes lose the API server in the same moment.
    jitter = random.uniform(0.5, 1.0)  # noqa: S311
    return jitter * min(_MAX_BACKOFF_SECONDS, _BACKOFF_SECONDS * 2.0 ** min(failures - 1, 8))


def check(settings: KubernetesSettings, _limits: Limits, place: str) -> None:
    """Check what the types do not.

    Args:
        settings: The section.
        place: Of the section, for messages.

    Raises:
        UsageError: The URL is none.
    """
    if settings.url and (mistake := url_mistake(settings.url, schemes=("http", "https"))):
        raise UsageError(f"{place}.url: {mistake}")


def create(settings: KubernetesSettings, changed: Callable[[], None]) -> KubernetesDiscovery | None:
    """Make the discovery.

    Args:
        settings: The section, checked.
        changed: Called on the event loop after changes.

    Returns:
        The discovery, not yet started; None where it is off.

    Raises:
        UsageError: Neither the section nor the environment says whom to ask, or which node.
    """
    if not settings.enabled:
        return None
    url = settings.url or (
        _kubelet_url(settings.kubelet.port) if settings.kubelet.enabled else _api_server_url()
    )
    node = settings.node or os.environ.get("NODE_NAME", "")
    if not node:
        raise UsageError(
            "kubernetes.node: the node's name is not known; set NODE_NAME from the field spec.nodeName of the pod"
        )
    return KubernetesDiscovery(settings, url, node, changed)


def _api_server_url() -> str:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host:
        raise UsageError(
            "kubernetes.url: this is no pod; write the API server's, such as https://10.0.0.1:6443"
        )
    return f"https://{in_url(host)}:{port or 443}"


def _kubelet_url(port: int) -> str:
    host = os.environ.get("NODE_IP", "")
    if not host:
        raise UsageError(
            "kubernetes.kubelet: the node's address is not known; set NODE_IP from the field status.hostIP of the pod"
        )
    return f"https://{in_url(host)}:{port}"


register(
    DiscoveryKind(
        key="kubernetes",
        settings=KubernetesSettings,
        default=KubernetesSettings(),
        create=create,
        check=check,
        finds_all=lambda settings: settings.enabled,
    )
)
