"""Profiles stored with a start: compressed, because each container has several profiles and few are read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, compress
from typing import Any, Final, TypeAlias

import msgspec

from infercanary.contract.profile import Profile
from infercanary.contract.report import Run

KEPT: Final = 4
"""Number of latest profiles that are kept for each canary of a start. A profile has about 1.5 KB."""

FIRST: Final = 2
"""Number of first profiles that are kept as well, because a drift is compared with the first day."""

Packed: TypeAlias = "dict[str, tuple[bytes, ...]]"
"""First and last profiles by canary, in order of time."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Profile)


def pack(profile: Profile) -> bytes:
    """Pack a valid profile (:func:`~infercanary.contract.profile.is_sound`) into bytes that sort by time."""
    return struct.pack(">d", profile.taken_at) + zlib.compress(_encoder.encode(profile))


def unpacked(packed: Sequence[bytes]) -> Iterator[Profile]:
    """Yield unpacked profiles in order. Unreadable profiles (such as after a disk error) are left out."""
    for body in packed:
        with suppress(zlib.error, msgspec.DecodeError):
            yield _decoder.decode(zlib.decompress(body[8:]))


def of_runs(runs: Iterable[Run]) -> Packed:
    """Return the first and last profiles by canary from the runs of one start, in order of time."""
    found: dict[str, list[Profile]] = {}
    for run in runs:
        if run.profile is not None:
            found.setdefault(run.canary, []).append(run.profile)
    return {canary: tuple(map(pack, _ends(profiles))) for canary, profiles in found.items()}


def _ends(profiles: list[Any]) -> list[Any]:
    """Select the profiles to keep, in order of time."""
    return profiles[:FIRST] + profiles[max(FIRST, len(profiles) - KEPT) :]


def merged(known: Packed, new: Packed) -> Packed:
    """Merge the known profiles of one start with new profiles, without duplicates.

    Returns:
        First and last profiles by canary. Canaries after the first 128 KiB are left out.
    """
    found = dict(known)
    for canary, profiles in new.items():
        # Sort by time: an exporter that was started later begins with other profiles.
        found[canary] = tuple(_ends(sorted({*found.get(canary, ()), *profiles})))
    # A faulty probe must not fill the disk. 128 KiB is enough for ten usual canaries.
    sizes = accumulate(sum(map(len, packed)) for packed in found.values())
    return dict(compress(found.items(), (size <= 128 << 10 for size in sizes)))
