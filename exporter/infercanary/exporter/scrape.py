"""The HTTP side of a scrape: which format the client asks for, and the exposition sent piece by piece."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, Protocol

from aiohttp import web

from infercanary.exporter.expose import Pieces

try:
    _zlib = import_module("isal.isal_zlib")
except ImportError:  # there is no wheel for this machine
    _zlib = zlib

TEXT = "text/plain; version=0.0.4; charset=utf-8"
TEXT_1 = "text/plain; version=1.0.0; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OFFERS = (
    (TEXT, "text/plain", "0.0.4"),
    (OPENMETRICS, "application/openmetrics-text", "1.0.0"),
    (TEXT_1, "text/plain", "1.0.0"),
)
_BLOCK_BYTES = 256 << 10
_LEVEL = 1  # at which igzip packs nearly as well as zlib at 6
_GZIP = 31  # zlib's number for the largest window, with gzip's header


class Packer(Protocol):
    """What zlib and what stands in for it make."""

    def compress(self, data: bytes, /) -> bytes:
        """Take more.

        Args:
            data: Any bytes.

        Returns:
            What is packed by now; often nothing.
        """

    def flush(self) -> bytes:
        """End.

        Returns:
            The rest.
        """


def packer(module: ModuleType = _zlib) -> Packer:
    """Make what packs one answer as gzip.

    Args:
        module: zlib, or what has its interface.

    Returns:
        One that has packed nothing yet.
    """
    made: Packer = module.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return made


class _Range(NamedTuple):
    value: str
    parameters: dict[str, str]
    quality: float


def negotiate(accept: str) -> str:
    """The content type for an Accept header: the best liked, then the most precisely named, then the first named.

    Where nothing on offer is acceptable it is the plain text format: a scraper can still try.

    Args:
        accept: The header's value; empty where there is none.
    """
    acceptable = []
    ranges = _ranges(accept)
    for order, (content_type, media, version) in enumerate(_OFFERS):
        matches = [
            (_precision(each, media, version), -position, each.quality)
            for position, each in enumerate(ranges)
        ]
        precision, position, quality = max(matches, default=(0, 0, 0.0))
        if precision and quality > 0:
            acceptable.append((quality, precision, position, -order, content_type))
    return max(acceptable)[-1] if acceptable else TEXT


def wants_gzip(accept_encoding: str) -> bool:
    """Whether ``Accept-Encoding: accept_encoding`` takes gzip, and likes it no less than plain bytes.

    Args:
        accept_encoding: The header's value; empty where there is none.
    """
    qualities = {each.value: each.quality for each in _ranges(accept_encoding)}
    gzip = qualities.get("gzip", qualities.get("*", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


async def send(request: web.Request, parts: Iterable[Pieces], content_type: str) -> web.StreamResponse:
    """Answer with ``parts``. They are joined and packed block by block, so that others get a turn.

    aiohttp would pack each block in a thread, and wait for it: with igzip that takes longer than the packing.

    Args:
        request: Its headers and its method are read.
        parts: They are asked for while earlier ones are being sent.
        content_type: Of the answer.

    Returns:
        The answer, already sent.
    """
    response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})
    packing = packer() if wants_gzip(request.headers.get("Accept-Encoding", "")) else None
    if packing is not None:
        response.headers["Content-Encoding"] = "gzip"
    await response.prepare(request)
    if request.method != "HEAD":
        for block in _blocks(parts):
            if packed := block if packing is None else packing.compress(block):
                await response.write(packed)
            await asyncio.sleep(0)  # write() itself waits only once the client falls behind
        if packing is not None:
            await response.write(packing.flush())
    await response.write_eof()
    return response


def _blocks(parts: Iterable[Pieces]) -> Iterator[bytes]:
    """The bytes of ``parts``, no more at once than a client that falls behind may hold."""
    for texts, _ in parts:
        block = b"".join(texts)
        yield from (block[at : at + _BLOCK_BYTES] for at in range(0, len(block), _BLOCK_BYTES))


def _ranges(header: str) -> list[_Range]:
    """The entries of an Accept header, in lower case; those with a quality that is no number are left out."""
    ranges = []
    for entry in header.lower().split(","):
        value, *rest = (part.strip() for part in entry.split(";"))
        parameters = {
            key.strip(): text.strip(' "') for key, _, text in (part.partition("=") for part in rest)
        }
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            continue
        if value and 0 <= quality <= 1:
            ranges.append(_Range(value, parameters, quality))
    return ranges


def _precision(wanted: _Range, media: str, version: str) -> int:
    """How precisely ``wanted`` names an offer; 0 where it does not."""
    if wanted.value == media:
        return {version: 4, None: 3}.get(wanted.parameters.get("version"), 0)
    if wanted.value == media.partition("/")[0] + "/*":
        return 2
    return 1 if wanted.value == "*/*" else 0
