"""Server-sent events of streamed completions: the name and data of each event, parsed as the bytes arrive.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from infercanary.probe.targets import Failure

_MAX_EVENT_BYTES = 1 << 20


class Event(NamedTuple):
    """One server-sent event of a stream."""

    data: str
    """The event's data lines, joined by line ends."""
    name: str = ""
    """Type of the event, such as ``error``; empty without an ``event:`` line."""


def events(pieces: Iterable[bytes]) -> Iterator[Event]:
    """Yield each event that has data or a name. Without a final blank line, an event is incomplete and left out.

    Args:
        pieces: Bytes of the stream as they arrive.

    Raises:
        Failure: A line or an event is larger than 1 MiB.
    """
    rest, data, name = b"", bytearray(), b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data += line[5:].removeprefix(b" ") + b"\n"
            elif line.startswith(b"event:"):
                name = line[6:].strip()
            elif not line:
                if data or name:
                    yield Event(_text(data), _text(name))
                data, name = bytearray(), b""
        if len(data) + len(rest) > _MAX_EVENT_BYTES:
            raise Failure("too_large", f"an event of the stream is larger than {_MAX_EVENT_BYTES} bytes")


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace").removesuffix("\n")
