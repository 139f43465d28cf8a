"""From Docker's events to containers that the kernel ended for memory, without any call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.docker_listing import readable
from infercanary.exporter.discovery.kills import MemoryKill

_TOGETHER_SECONDS = 10.0
"""Docker says that something in a container was killed for memory (`oom`), and that the container ended (`die`), within
milliseconds. A worker that is killed while its server goes on has no `die`."""


DIED = ("die", "died")
"""That a container ended: Docker's word and Podman's."""


class _Actor(msgspec.Struct):
    id: str = msgspec.field(default="", name="ID")
    attributes: dict[str, str] = msgspec.field(default_factory=dict, name="Attributes")


class _Event(msgspec.Struct):
    """What is used of an entry of GET /events."""

    action: str = msgspec.field(default="", name="Action")
    actor: _Actor = msgspec.field(default_factory=_Actor, name="Actor")
    nanoseconds: int = msgspec.field(default=0, name="timeNano")


_lines = msgspec.json.Decoder(Any)


class Ends:
    """Which of the containers that were found the kernel ended.

    Args:
        since: What happened before is not asked for, a Unix time.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        """Up to when events were read."""
        self._found: dict[str, tuple[Container, bool]] = {}
        self._ooms: dict[str, float] = {}
        self._dies: dict[str, float] = {}

    def follow(self, containers: Iterable[Container]) -> None:
        """Remember these by their ids and by those of the servers that they watch; those before are still known once.

        Args:
            containers: All that Docker lists now.
        """
        listed = {
            name: (container, True)
            for container in containers
            for name in (container.id, container.watched_id)
            if name
        }
        before = {name: (container, False) for name, (container, is_new) in self._found.items() if is_new}
        self._found = before | listed

    def kills(self, body: bytes, until: float) -> list[MemoryKill]:
        """What ended for memory.

        Args:
            body: Of GET /events, a JSON object a line: events `oom` and `die` from ``since`` to ``until``.
            until: A Unix time; ``since`` of the next request.

        Returns:
            In order of time, each once.

        Raises:
            msgspec.DecodeError: It is something else; the same time is asked for again.
        """
        listed, _ = readable(_lines.decode_lines(body), _Event)
        events = sorted(listed, key=lambda event: event.nanoseconds)
        self.since = until
        kills = []
        for event in events:
            at = event.nanoseconds / 1e9
            code = event.actor.attributes.get("exitCode") or event.actor.attributes.get(
                "containerExitCode", "0"
            )
            ended = event.action in DIED and code != "0"
            if not (ended or event.action == "oom"):
                continue
            mine, other = (self._dies, self._ooms) if ended else (self._ooms, self._dies)
            met = other.get(event.actor.id)
            if met is None or at - met > _TOGETHER_SECONDS:
                mine[event.actor.id] = at
                continue
            del other[event.actor.id]
            if event.actor.id in self._found:
                kills.append(MemoryKill(self._found[event.actor.id][0], event.actor.id, at))
        for waiting in (self._ooms, self._dies):
            for name in [name for name, at in waiting.items() if until - at > _TOGETHER_SECONDS]:
                del waiting[name]
        return kills
