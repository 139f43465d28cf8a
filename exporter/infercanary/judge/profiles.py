"""Profiles as they are kept with a start: packed, since 1,000 containers have some each, and few are ever read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias, TypeVar

import msgspec

from infercanary.contract.profile import Profile, is_sound
from infercanary.contract.report import Run

KEPT: Final = 4
"""Of a canary of a start, the last: 1.5 KB each."""

FIRST: Final = 2
"""Those of its first minutes stay as well: a drift is compared with them."""

_CANARIES = 32  # of a start: a probe that invents names must not fill the disk

Packed: TypeAlias = "dict[str, tuple[bytes, ...]]"
"""Canary → its first and last profiles, in order of time."""

_P = TypeVar("_P", Profile, bytes)
_START_BYTES = 128 << 10  # of all profiles of a start, packed: ten canaries of ours have as much
_encoder = msgspec.msgpack.Encoder()
_MOST_BYTES = 256 << 10  # of one that is unpacked: eight times what a sound one can have
_decoder = msgspec.msgpack.Decoder(Profile)


def pack(profile: Profile) -> bytes:
    """A profile as it is kept.

    Args:
        profile: A sound one (:func:`~infercanary.contract.profile.is_sound`).
    """
    return zlib.compress(_encoder.encode(profile))


def unpacked(packed: Sequence[bytes]) -> Iterator[Profile]:
    """Read profiles, without those that a failing disk made unreadable.

    Args:
        packed: As :func:`pack` made them.

    Yields:
        Profiles, in the same order.
    """
    for body in packed:
        try:
            profile = _decoder.decode(zlib.decompressobj().decompress(body, _MOST_BYTES))
        except (zlib.error, msgspec.DecodeError, UnicodeDecodeError):
            continue
        if is_sound(profile):
            yield profile


def of_runs(runs: Iterable[Run]) -> Packed:
    """The profiles that runs of one start have.

    Args:
        runs: In order of time.

    Returns:
        Of the first canaries that have any the first and last ones, as :func:`merged` keeps them.
    """
    found: dict[str, list[Profile]] = {}
    for run in runs:
        if run.profile is not None and (run.canary in found or len(found) < _CANARIES):
            found.setdefault(run.canary, []).append(run.profile)
    return {canary: tuple(map(pack, _ends(profiles))) for canary, profiles in found.items()}


def _ends(profiles: list[_P]) -> list[_P]:
    """Those that are kept of several, in order of time."""
    return profiles[:FIRST] + profiles[max(FIRST, len(profiles) - KEPT) :]


def merged(known: Mapping[str, tuple[bytes, ...]], new: Mapping[str, tuple[bytes, ...]]) -> Packed:
    """What two know of one start: each profile once.

    Args:
        known: What came first.
        new: What came later.

    Returns:
        Of the first canaries their first and last profiles.
    """
    found = dict(known)
    for canary, profiles in new.items():
        own = found.get(canary, ())
        if more := [profile for profile in profiles if profile not in own]:
            # Sorted, since an exporter that was started later takes another one for the first.
            all_ = sorted(dict.fromkeys((*own, *more)), key=_taken_at)
            found[canary] = tuple(_ends(all_))
    sums = accumulate(sum(map(len, packed)) for packed in found.values())
    fitting = sum(size <= _START_BYTES for size in sums)
    return dict(list(found.items())[: min(fitting, _CANARIES)])


def _taken_at(packed: bytes) -> float:
    """Of a profile that is not read: its first field, an array's first byte and the one of a number before it."""
    try:
        return float(struct.unpack(">d", zlib.decompressobj().decompress(packed, 10)[2:])[0])
    except (zlib.error, struct.error):
        return 0.0
