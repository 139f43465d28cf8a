"""How starts and runs are written into a store, and read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import structlog

from infercanary.contract.bounds import Finite, Moment, Seconds
from infercanary.contract.vocabulary import current_tags
from infercanary.judge.model import Generation, ImageForm, Sample
from infercanary.judge.origin import NOWHERE, Origin
from infercanary.judge.profiles import Packed, merged
from infercanary.store.retention import FAILED, OPENING, RAW

log = structlog.get_logger(__name__)

MAX_BYTES = 4096
"""Of a run as it is kept."""
MAX_CANARIES = 32
"""Of one start: a probe that invents names must not fill the disk."""

_AFTER_SECONDS = 1e-3
_ENVIRONMENTS = 32  # that are held decoded
_MAX_KILLS = 64  # of a start that never reports: a crash loop must not fill the disk

ContainerKey = tuple[str, str, str]
"""Namespace, service and container."""


class Details(msgspec.Struct, array_like=True):
    """What is known of a start beside its names and its image; new fields go to the end, with a default."""

    outputs: dict[str, tuple[Finite, ...]]
    cold_start: dict[str, dict[str, Seconds]]
    origin: Origin = NOWHERE
    memory_kills: tuple[Moment, ...] = ()
    image_form: ImageForm = ""
    ended_at: Moment = 0.0
    host: str = ""
    profiles: Packed = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)
_details = msgspec.msgpack.Decoder(Details)
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
            sample = _decoder.decode(body)
        except _UNREADABLE:
            unreadable += 1
            continue
        tags, reason = current_tags(sample.tags, sample.clock_reason)
        if tags is not sample.tags:
            sample = msgspec.structs.replace(sample, tags=tags, clock_reason=reason)
        samples.append(sample)
    if unreadable:
        log.warning("stored runs cannot be read, and are left out: check the disk", runs=unreadable)
    return samples


def encode_environment(environment: Mapping[str, str]) -> bytes:
    """The bytes of an environment, which are the same for the same components.

    Args:
        environment: Component → its value.
    """
    return _encoder.encode(dict(sorted(environment.items())))


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


def details_of(generation: Generation) -> bytes:
    """The details of ``generation`` as they are kept.

    Args:
        generation: A start.
    """
    return _encoder.encode(Details(**{name: getattr(generation, name) for name in Details.__struct_fields__}))


def start_in(row: Sequence[Any]) -> Generation | None:
    """The start in a row; None if a failing disk made the row unreadable.

    Args:
        row: Namespace, service, container, boot id, start (Unix time), image, its id, its digest, environment (of
            :func:`encode_environment`), details (of :func:`details_of`).

    Returns:
        The start, or None.
    """
    (
        namespace,
        service,
        container,
        boot_id,
        started_at,
        image,
        image_id,
        image_digest,
        environment,
        details,
    ) = row
    try:
        return Generation(
            namespace=namespace,
            service=service,
            container=container,
            boot_id=boot_id,
            started_at=msgspec.convert(started_at, Moment),
            image=image,
            image_id=image_id,
            image_digest=image_digest,
            environment=_components(environment),
            **msgspec.structs.asdict(_details.decode(details)),
        )
    except _UNREADABLE:
        log.warning(
            "a stored start cannot be read, and is left out: check the disk",
            service=service,
            container=container,
        )
        return None


@lru_cache(maxsize=_ENVIRONMENTS)
def _components(environment: bytes) -> dict[str, str]:
    """Decoded once where starts have the same; nobody changes one."""
    return msgspec.msgpack.decode(environment, type=dict[str, str])


def with_known(generation: Generation, details: bytes) -> Generation:
    """``generation`` with what an exporter before this one saw of its ends, and with its profiles so far.

    Args:
        generation: A start as it is known now.
        details: What is kept of it.

    Returns:
        The start; of many ends, and of many profiles, it has the last ones.
    """
    try:
        known = _details.decode(details)
    except _UNREADABLE:
        return generation
    times = tuple(sorted({*known.memory_kills, *generation.memory_kills})[-_MAX_KILLS:])
    profiles = merged(known.profiles, generation.profiles)
    return msgspec.structs.replace(generation, memory_kills=times, profiles=profiles)


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
