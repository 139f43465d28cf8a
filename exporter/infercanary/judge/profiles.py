"""Profiles as they are kept with a start: packed, since 1,000 containers have some each, and few are ever read."""

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
"""Of a canary of a start, the last: 1.5 KB each."""

FIRST: Final = 2
"""Those of its first minutes stay as well: a drift is compared with them."""

Packed: TypeAlias = "dict[str, tuple[bytes, ...]]"
"""Canary → its first and last profiles, in order of time."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Profile)


def pack(profile: Profile) -> bytes:
    """A profile as it is kept.

    Args:
        profile: A sound one (:func:`~infercanary.contract.profile.is_sound`).

    Returns:
        Bytes that sort by the time when it was taken.
    """
    return struct.pack(">d", profile.taken_at) + zlib.compress(_encoder.encode(profile))


def unpacked(packed: Sequence[bytes]) -> Iterator[Profile]:
    """Read profiles, without those that a failing disk made unreadable.

    Args:
        packed: As :func:`pack` made them.

    Yields:
        Profiles, in the same order.
    """
    for body in packed:
        with suppress(zlib.error, msgspec.DecodeError):
            yield _decoder.decode(zlib.decompress(body[8:]))


def of_runs(runs: Iterable[Run]) -> Packed:
    """The profiles that runs of one start have.

    Args:
        runs: In order of time.

    Returns:
        The first and last ones of each canary that has any.
    """
    found: dict[str, list[Profile]] = {}
    for run in runs:
        if run.profile is not None:
            found.setdefault(run.canary, []).append(run.profile)
    return {canary: tuple(map(pack, _ends(profiles))) for canary, profiles in found.items()}


def _ends(profiles: list[Any]) -> list[Any]:
    """Those that are kept of several, in order of time."""
    return profiles[:FIRST] + profiles[max(FIRST, len(profiles) - KEPT) :]


def merged(known: Packed, new: Packed) -> Packed:
    """What two know of one start: each profile once.

    Args:
        known: What came first.
        new: What came later.

    Returns:
        Of the first canaries their first and last profiles.
    """
    found = dict(known)
    for canary, profiles in new.items():
        # Sorted by time, since an exporter that was started later takes another one for the first.
        found[canary] = tuple(_ends(sorted({*found.get(canary, ()), *profiles})))
    # A probe must not fill the disk: ten canaries of ours have 128 KiB.
    sizes = accumulate(sum(map(len, packed)) for packed in found.values())
    return dict(compress(found.items(), (size <= 128 << 10 for size in sizes)))
