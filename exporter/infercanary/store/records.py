"""Encoding of starts and runs in the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec
import structlog

from infercanary.judge.model import Generation, Sample
from infercanary.judge.profiles import merged

log = structlog.get_logger(__name__)

MAX_BYTES = 4096
"""Maximum size of an encoded run, in bytes."""
MAX_CANARIES = 32
"""Largest number of canaries of one start. Without this limit, a faulty probe with new names at each run could fill the
disk.
"""

_MAX_KILLS = 64  # largest number of stored memory kills: a server in a crash loop must not fill the disk
_MAX_CACHED = 512  # number of cached decoded starts

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)
# Each judgement of a service reads the same starts with large environments, so decoded starts are cached.
_decoded = lru_cache(_MAX_CACHED)(msgspec.msgpack.Decoder(Generation).decode)
# Errors while decoding a row with flipped bits: wrong form, impossible numbers, invalid UTF-8, wrong type.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, TypeError)


def encode(sample: Sample) -> bytes:
    """Encode a run, or a merged run, for the store. Too large a result is encoded without maps and tags."""
    body = _encoder.encode(sample)
    if len(body) > MAX_BYTES:
        body = _encoder.encode(
            msgspec.structs.replace(
                sample, phases={}, controls={}, off_cpu={}, measures={}, tags=(), clock_reason=""
            )
        )
    return body


def decode(bodies: Iterable[bytes]) -> list[Sample]:
    """Decode runs in order. Unreadable runs (such as after a disk error) are left out."""
    samples, unreadable = [], 0
    for body in bodies:
        try:
            samples.append(_decoder.decode(body))
        except _UNREADABLE:
            unreadable += 1
    if unreadable:
        log.warning("stored runs are unreadable and left out: check the disk", runs=unreadable)
    return samples


def encode_start(generation: Generation) -> bytes:
    return _encoder.encode(generation)


def decode_start(body: bytes) -> Generation | None:
    """Decode a start; None if the bytes are unreadable. The result is cached, so do not change it."""
    try:
        return _decoded(body)
    except _UNREADABLE:
        log.warning("a stored start is unreadable and left out: check the disk")
        return None


def decode_starts(rows: Iterable[Iterable[bytes]]) -> Iterator[Generation]:
    """Yield the readable starts of rows with a single column, the encoded start."""
    for (body,) in rows:
        if (start := decode_start(body)) is not None:
            yield start


def with_known(generation: Generation, body: bytes) -> Generation:
    """Return a start with the stored start time, and with stored profiles and memory kills in addition to its own.

    Args:
        generation: The start as reported now.
        body: The start as stored.
    """
    known = decode_start(body)
    if known is None:
        return generation
    return msgspec.structs.replace(
        generation,
        started_at=known.started_at,
        memory_kills=tuple(sorted({*known.memory_kills, *generation.memory_kills})[-_MAX_KILLS:]),
        profiles=merged(known.profiles, generation.profiles),
    )
