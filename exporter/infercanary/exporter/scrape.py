"""HTTP side of a scrape: the format that the client asks for, and the exposition sent piece by piece."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, gzip_accepted

_zlib = import_module(
    "isal.isal_zlib" if find_spec("isal") else "zlib"
)  # isal has no wheel for some machines

_BLOCK_BYTES = 256 << 10
_LEVEL = 1  # at which igzip packs nearly as well as zlib at 6
_GZIP = 31  # zlib's number for the largest window, with gzip's header


def negotiate(accept: str) -> str:
    """Content type for an Accept header, as prometheus_client chooses it; the text format if the header is odd."""
    try:
        return choose_encoder(accept)[1]
    except (TypeError, ValueError):  # such as version=x
        return CONTENT_TYPE_PLAIN_0_0_4


async def send(request: web.Request, parts: Iterable[bytes], content_type: str) -> web.StreamResponse:
    """Answer with ``parts``, packed block by block, so that others get a turn.

    aiohttp would pack each block in a thread, and wait for it: with igzip that takes longer than the packing.

    Args:
        request: Its headers and its method are read.
        parts: The next one is asked for while earlier ones are being sent.
        content_type: Content type of the answer.

    Returns:
        The answer, already sent.
    """
    response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})
    packing = None
    if gzip_accepted(request.headers.get("Accept-Encoding", "")):
        packing = _zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        response.headers["Content-Encoding"] = "gzip"
    await response.prepare(request)
    if request.method != "HEAD":
        for part in parts:
            for at in range(0, len(part), _BLOCK_BYTES):
                block = part[at : at + _BLOCK_BYTES]
                if packed := block if packing is None else packing.compress(block):
                    await response.write(packed)
                await asyncio.sleep(0)  # write() itself waits only once the client falls behind
        if packing is not None:
            await response.write(packing.flush())
    await response.write_eof()
    return response
