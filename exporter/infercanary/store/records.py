"""How starts and runs are written into a store, and read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec
import structlog

from infercanary.judge.model import Generation, Sample
from infercanary.judge.profiles import merged

log = structlog.get_logger(__name__)

MAX_BYTES = 4096
"""Limit of an encoded run."""
MAX_CANARIES = 32
"""Limit for one start: a probe that invents names must not fill the disk."""

_MAX_KILLS = 64  # a crash loop of a server that never reports must not fill the disk
_MAX_CACHED = 512  # decoded starts

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)
# The next judgement of a service reads the same starts, with environments of hundreds of names.
_decoded = lru_cache(_MAX_CACHED)(msgspec.msgpack.Decoder(Generation).decode)
# What a flipped byte makes of a row: another form, numbers that cannot be, text that is not UTF-8, another type.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, TypeError)


def encode(sample: Sample) -> bytes:
    """Encode a run for the store; without its maps and tags if a probe invented hundreds of them.

    Args:
        sample: A run, or the median of several.
    """
    body = _encoder.encode(sample)
    if len(body) > MAX_BYTES:
        body = _encoder.encode(
            msgspec.structs.replace(
                sample, phases={}, controls={}, off_cpu={}, measures={}, tags=(), clock_reason=""
            )
        )
    return body


def decode(bodies: Iterable[bytes]) -> list[Sample]:
    """Decode runs, and leave out those that a failing disk made unreadable.

    Args:
        bodies: As :func:`encode` made them.

    Returns:
        Samples in the same order; shorter than ``bodies`` if one was unreadable.
    """
    samples, unreadable = [], 0
    for body in bodies:
        try:
            samples.append(_decoder.decode(body))
        except _UNREADABLE:
            unreadable += 1
    if unreadable:
        log.warning("stored runs cannot be read, and are left out: check the disk", runs=unreadable)
    return samples


def encode_start(generation: Generation) -> bytes:
    """Encode a start for the store."""
    return _encoder.encode(generation)


def decode_start(body: bytes) -> Generation | None:
    """Read a start of :func:`encode_start`, which nobody may change; None if a failing disk made it unreadable."""
    try:
        return _decoded(body)
    except _UNREADABLE:
        log.warning("a stored start cannot be read, and is left out: check the disk")
        return None


def decode_starts(rows: Iterable[Iterable[bytes]]) -> Iterator[Generation]:
    """Yield the readable starts of rows that have nothing but a start's body."""
    for (body,) in rows:
        if (start := decode_start(body)) is not None:
            yield start


def with_known(generation: Generation, body: bytes) -> Generation:
    """Add what is kept of a start to what is known now: when it began, its profiles, and the ends of its server.

    Args:
        generation: The start, as it is known now.
        body: The start as it is kept.

    Returns:
        The start; of many ends, and of many profiles, it has the last.
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
