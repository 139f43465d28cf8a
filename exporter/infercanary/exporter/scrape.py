"""HTTP side of a scrape: chooses the format by the client's header, and sends the exposition in parts."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, gzip_accepted

_zlib = import_module("isal.isal_zlib" if find_spec("isal") else "zlib")  # some machines have no isal wheel

_BLOCK_BYTES = 256 << 10
_LEVEL = 1  # igzip at level 1 packs nearly as well as zlib at level 6
_GZIP = 31  # zlib's code for the largest window and gzip's header


def negotiate(accept: str) -> str:
    """Return prometheus_client's content type for an Accept header; the text format if the header is malformed."""
    try:
        return choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a malformed header, for example with version=x
        return CONTENT_TYPE_PLAIN_0_0_4


async def send(request: web.Request, parts: Iterable[bytes], content_type: str) -> web.StreamResponse:
    """Send ``parts``, compressed block by block. Other tasks run between blocks.

    aiohttp would compress each block in a thread, but waiting for a thread takes longer than igzip's compression.

    Args:
        request: Only headers and method are read.
        parts: Parts of the body. Each part is made just before it is sent.
        content_type: Content type of the answer.

    Returns:
        The sent answer.
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
                await asyncio.sleep(0)  # write() waits only for a client that reads too slowly
        if packing is not None:
            await response.write(packing.flush())
    await response.write_eof()
    return response
