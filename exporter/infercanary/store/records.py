"""How starts and runs are written into a store, and read again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from infercanary.judge.model import Generation, Sample
from infercanary.judge.profiles import merged
from infercanary.store.retention import FAILED, OPENING, RAW

log = structlog.get_logger(__name__)

MAX_BYTES = 4096
"""Of a run as it is kept."""
MAX_CANARIES = 32
"""Of one start: a probe that invents names must not fill the disk."""

_AFTER_SECONDS = 1e-3
_MAX_KILLS = 64  # of a start that never reports: a crash loop must not fill the disk

ContainerKey = tuple[str, str, str]
"""Namespace, service and container."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)
_starts = msgspec.msgpack.Decoder(Generation)
# What a flipped byte makes of a row: another form, numbers that cannot be, text that is not UTF-8, another type.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, TypeError)


def encode(sample: Sample) -> bytes:
    """``sample`` as it is kept. One of a probe that invents hundreds of phases is kept without them.

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
    """The samples in ``bodies``, without those that a failing disk made unreadable.

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


def by_canary(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples of each canary.

    Args:
        samples: Of any, in any order.

    Returns:
        Canary → its samples in that order.
    """
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.canary, []).append(sample)
    return found


def refuse(generation: Generation, canary: str) -> None:
    """Say that the runs of a canary beyond :data:`MAX_CANARIES` are not kept."""
    log.warning("runs not stored: give the container fewer canaries", most=MAX_CANARIES, canary=canary,
                service=str(generation.key), container=generation.container)  # fmt: skip


def key_of(generation: Generation) -> ContainerKey:
    """What tells its container from all others.

    Args:
        generation: A start of it.

    Returns:
        The key.
    """
    return generation.namespace, generation.service, generation.container


def encode_start(generation: Generation) -> bytes:
    """A start as it is kept."""
    return _encoder.encode(generation)


def decode_start(body: bytes) -> Generation | None:
    """Read a start of :func:`encode_start`; None if a failing disk made it unreadable."""
    try:
        return _starts.decode(body)
    except _UNREADABLE:
        log.warning("a stored start cannot be read, and is left out: check the disk")
        return None


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


def began(started_at: float, latest: float | None) -> float:
    """When a start counts as begun.

    Starts of a service are in the order in which they began, but a container's own are in the order in which they were
    seen: a host without a battery boots in 1970. Where the clock was set back meanwhile, a start comes after all that
    is known of the one before it, and so also after what other containers did in that time.

    Args:
        started_at: By the probe's clock.
        latest: When the container's start before counts as begun or, if later, its last run; None where there is none.

    Returns:
        A Unix time, later than ``latest``.
    """
    return started_at if latest is None or started_at > latest else latest + _AFTER_SECONDS


def tier_of(sample: Sample, taken: int, opening: int) -> int:
    """Where a run is kept first.

    Args:
        sample: A run that is new.
        taken: How many good runs of its start there were before.
        opening: How many of these are the start's opening.

    Returns:
        One of the tiers of :mod:`.retention`.
    """
    return FAILED if sample.failed else OPENING if taken < opening else RAW
