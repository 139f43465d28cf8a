"""HTTP side of a scrape: the format that the client asks for, and the exposition sent piece by piece."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, gzip_accepted

from infercanary.exporter.expose import Pieces

try:
    _zlib = import_module("isal.isal_zlib")
except ImportError:  # there is no wheel for this machine
    _zlib = zlib

_BLOCK_BYTES = 256 << 10
_LEVEL = 1  # at which igzip packs nearly as well as zlib at 6
_GZIP = 31  # zlib's number for the largest window, with gzip's header


class Packer(Protocol):
    """Interface of zlib's compression objects."""

    def compress(self, data: bytes, /) -> bytes:
        """Take more; return what is packed by now, often nothing."""

    def flush(self) -> bytes:
        """End, and return the rest."""


def packer(module: ModuleType = _zlib) -> Packer:
    """Make the packer of one answer, as gzip, by a module with zlib's interface."""
    made: Packer = module.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return made


def negotiate(accept: str) -> str:
    """Content type for an Accept header, as prometheus_client chooses it; the text format if the header is odd."""
    try:
        return choose_encoder(accept)[1]
    except (TypeError, ValueError):  # such as version=x
        return CONTENT_TYPE_PLAIN_0_0_4


async def send(request: web.Request, parts: Iterable[Pieces], content_type: str) -> web.StreamResponse:
    """Answer with ``parts``, joined and packed block by block, so that others get a turn.

    aiohttp would pack each block in a thread, and wait for it: with igzip that takes longer than the packing.

    Args:
        request: Its headers and its method are read.
        parts: The next one is asked for while earlier ones are being sent.
        content_type: Content type of the answer.

    Returns:
        The answer, already sent.
    """
    response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})
    packing = packer() if gzip_accepted(request.headers.get("Accept-Encoding", "")) else None
    if packing is not None:
        response.headers["Content-Encoding"] = "gzip"
    await response.prepare(request)
    if request.method != "HEAD":
        for texts, _ in parts:
            joined = b"".join(texts)
            for at in range(0, len(joined), _BLOCK_BYTES):
                block = joined[at : at + _BLOCK_BYTES]
                if packed := block if packing is None else packing.compress(block):
                    await response.write(packed)
                await asyncio.sleep(0)  # write() itself waits only once the client falls behind
        if packing is not None:
            await response.write(packing.flush())
    await response.write_eof()
    return response
