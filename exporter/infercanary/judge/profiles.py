"""Profiles as they are stored with a start: packed, because 1,000 containers have some each and few are ever read."""

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
"""Latest profiles kept for each canary of a start: 1.5 KB each."""

FIRST: Final = 2
"""First profiles kept as well: a drift is compared with them."""

Packed: TypeAlias = "dict[str, tuple[bytes, ...]]"
"""Canary → its first and last profiles, in order of time."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Profile)


def pack(profile: Profile) -> bytes:
    """Pack a sound profile (:func:`~infercanary.contract.profile.is_sound`) into bytes that sort by its time."""
    return struct.pack(">d", profile.taken_at) + zlib.compress(_encoder.encode(profile))


def unpacked(packed: Sequence[bytes]) -> Iterator[Profile]:
    """Yield unpacked profiles in order, without those that a failing disk made unreadable."""
    for body in packed:
        with suppress(zlib.error, msgspec.DecodeError):
            yield _decoder.decode(zlib.decompress(body[8:]))


def of_runs(runs: Iterable[Run]) -> Packed:
    """Return the first and last profiles of each canary in the runs of one start, in order of time."""
    found: dict[str, list[Profile]] = {}
    for run in runs:
        if run.profile is not None:
            found.setdefault(run.canary, []).append(run.profile)
    return {canary: tuple(map(pack, _ends(profiles))) for canary, profiles in found.items()}


def _ends(profiles: list[Any]) -> list[Any]:
    """Select the profiles to keep, in order of time."""
    return profiles[:FIRST] + profiles[max(FIRST, len(profiles) - KEPT) :]


def merged(known: Packed, new: Packed) -> Packed:
    """Merge the profiles known of one start with newer ones, each profile once.

    Returns:
        First and last profiles of the first canaries.
    """
    found = dict(known)
    for canary, profiles in new.items():
        # Sort by time: an exporter that was started later has another first profile.
        found[canary] = tuple(_ends(sorted({*found.get(canary, ()), *profiles})))
    # A probe must not fill the disk: ten of our canaries have 128 KiB.
    sizes = accumulate(sum(map(len, packed)) for packed in found.values())
    return dict(compress(found.items(), (size <= 128 << 10 for size in sizes)))
