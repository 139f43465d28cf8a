"""What is known of a node's pods, and how lists and watch events change it: without any call.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import structlog

from infercanary.exporter.discovery.asking import label_text
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.kills import MemoryKill
from infercanary.exporter.discovery.kubernetes_pods import (
    Pod,
    asks,
    containers,
    memory_kills,
    reachable,
)

log = structlog.get_logger(__name__)

MAX_LINE_BYTES = 4 << 20
"""Of one event: a pod has 1.5 MiB in etcd at most (--max-request-bytes), and less than twice that as JSON."""
MAX_PODS = 10_000
"""With a probe, on one node: a kubelet has 110 by default, and 500 are the most that anyone runs."""
_TOO_MANY = f"more than {MAX_PODS} pods of this node ask for it"
_GONE = 410
_NAME = re.compile(rb'"name"\s*:\s*"([^"\\]{1,253})"')  # the first one is the pod's, or its owner's


class ExpiredError(Exception):
    """The resource version is too old: list again, and compare."""


class WatchError(Exception):
    """The API server ended the watch with an error. One line, for people."""


class LineSplitter:
    """Splits a stream into lines.

    A pod may be larger than what a reader of lines takes, so this is done here; a line over the bound is skipped.

    Args:
        most: Bytes of a line.
    """

    def __init__(self, most: int = MAX_LINE_BYTES) -> None:
        self._most = most
        self._rest = bytearray()
        self._skipping = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Whole lines, without their ends.

        Args:
            piece: The next bytes of the stream.

        Yields:
            Each line that ended with them, but empty ones.
        """
        *ended, rest = piece.split(b"\n")
        for part in ended:
            if self._skipping or len(self._rest) + len(part) > self._most:
                log.warning("an event of a pod is left out: it is too large", most_bytes=self._most)
            elif line := bytes(self._rest + part):
                yield line
            self._rest.clear()
            self._skipping = False
        self._rest += rest
        if len(self._rest) > self._most:
            self._skipping = True
        if self._skipping:
            self._rest.clear()


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _Version = msgspec.field(default_factory=_Version)


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _PodList(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    """A Status object."""

    code: int = 0
    message: str = ""


_list = msgspec.json.Decoder(_PodList)
_event = msgspec.json.Decoder(_Event)
_pod = msgspec.json.Decoder(Pod)
_versioned = msgspec.json.Decoder(_Versioned)
_failure = msgspec.json.Decoder(_Failure)


class _Known(msgspec.Struct):
    """One pod that asks for it."""

    created: float
    containers: tuple[Container, ...]
    ended: frozenset[str] = frozenset()
    """The ids of its containers that were ended for memory, as it last said."""


class NodePods:
    """The pods of one node that ask for it, by namespace and name, up to a resource version.

    Args:
        since: What the kernel ended before is no news, a Unix time.
    """

    def __init__(self, since: float) -> None:
        self.version = ""
        """Up to where changes are known; empty before the first list."""
        self.changed = False
        """Whether the containers are others than when that was last set to False."""
        self.kills: list[MemoryKill] = []
        """Those that are new; who reads them empties the list."""
        self._odd: set[str] = set()
        """Names of pods that are left out, of which the log says so."""
        self._since = since
        self._pods: dict[tuple[str, str], _Known] = {}
        self._listed: dict[tuple[str, str], _Known] = {}

    @property
    def count(self) -> int:
        """Pods that ask for it."""
        return len(self._pods)

    def containers(self) -> list[Container]:
        """All with a probe that run.

        Returns:
            No two with one address.
        """
        return reachable((known.created, known.containers) for known in self._pods.values())

    def begin_list(self) -> None:
        """A list begins, from its first page."""
        self._listed = {}

    def take_page(self, body: bytes) -> str:
        """Take a page of the list; after the last one the pods are those that were listed.

        Args:
            body: A PodList.

        Returns:
            What the next page continues at; empty after the last one.

        Raises:
            msgspec.DecodeError: It is something else.
        """
        page = _list.decode(body)
        for raw in page.items or ():
            if (pod := self._decoded(raw)) is not None and asks(pod):
                if len(self._listed) < MAX_PODS:
                    self._listed[pod.key] = self._known(pod, self._pods.get(pod.key))
                else:
                    self._leave_out(pod.metadata.name, _TOO_MANY)
        if page.metadata.continue_:
            return page.metadata.continue_
        before = {key: known.containers for key, known in self._pods.items()}
        after = {key: known.containers for key, known in self._listed.items()}
        self.changed = self.changed or before != after
        self._pods, self._listed = self._listed, {}
        self.version = page.metadata.resource_version
        return ""

    def take_event(self, line: bytes) -> None:
        """Take one event of the watch.

        Args:
            line: A WatchEvent.

        Raises:
            msgspec.DecodeError: It is something else; nothing was taken.
            ExpiredError: It says that the watch must begin with a list.
            WatchError: It says another error.
        """
        event = _event.decode(line)
        if event.type == "ERROR":
            failure = _failure.decode(event.object)
            if failure.code == _GONE:
                raise ExpiredError(failure.message)
            raise WatchError(f"{failure.code}: {failure.message}")
        pod = None
        is_of_pod = event.type in ("ADDED", "MODIFIED", "DELETED")
        if is_of_pod and (pod := self._decoded(event.object)) is not None:
            self._take(pod, is_gone=event.type == "DELETED")
        with suppress(msgspec.DecodeError):  # what cannot be read must not come again and again
            metadata = pod.metadata if pod is not None else _versioned.decode(event.object).metadata
            self.version = metadata.resource_version or self.version

    def _take(self, pod: Pod, *, is_gone: bool) -> None:
        before = self._pods.get(pod.key)
        if is_gone or not asks(pod):
            if before is not None:
                del self._pods[pod.key]
                self.changed = self.changed or bool(before.containers)
        elif before is None and len(self._pods) >= MAX_PODS:
            self._leave_out(pod.metadata.name, _TOO_MANY)
        else:
            after = self._pods[pod.key] = self._known(pod, before)
            self.changed = self.changed or after.containers != (before.containers if before else ())

    def _known(self, pod: Pod, before: _Known | None) -> _Known:
        """What is to be remembered of a pod; what the kernel ended meanwhile is noted."""
        try:
            found = containers(pod)
            ends = memory_kills(pod, [*(before.containers if before else ()), *found])
        except Exception as error:  # a fault of ours must cost this pod only
            self._leave_out(pod.metadata.name, repr(error))
            return _Known(pod.created, ())
        ended = before.ended if before else frozenset()
        new = {kill.id: kill for kill in ends if kill.id not in ended and kill.at >= self._since}
        self.kills += new.values()
        return _Known(pod.created, found, frozenset(kill.id for kill in ends))

    def _decoded(self, raw: msgspec.Raw) -> Pod | None:
        try:
            return _pod.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            name = match[1].decode(errors="replace") if (match := _NAME.search(raw)) else "without a name"
            self._leave_out(name, str(error))
            return None

    def _leave_out(self, name: str, why: str) -> None:
        if name not in self._odd and len(self._odd) < MAX_PODS:
            self._odd.add(name)
            log.warning("a pod is left out", pod=label_text(name), error=label_text(why))
