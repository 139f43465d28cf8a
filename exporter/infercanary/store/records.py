"""How starts and runs are written into a store, and read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from infercanary.judge.model import Sample

_MAX_BYTES = 4096

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)


def encode(sample: Sample) -> bytes:
    """``sample`` as it is kept. One of a probe that invents hundreds of phases is kept without them.

    Args:
        sample: A run, or the median of several.
    """
    body = _encoder.encode(sample)
    if len(body) > _MAX_BYTES:
        body = _encoder.encode(
            msgspec.structs.replace(sample, phases={}, controls={}, off_cpu={}, measures={}, tags=())
        )
    return body


def decode(bodies: Iterable[bytes]) -> list[Sample]:
    """The samples in ``bodies``, without those that a failing disk made unreadable.

    Args:
        bodies: As :func:`encode` made them.

    Returns:
        Samples in the same order; shorter than ``bodies`` if one was unreadable.
    """
    samples = []
    for body in bodies:
        try:
            samples.append(_decoder.decode(body))
        except msgspec.DecodeError:
            continue
    return samples


def encode_environment(environment: Mapping[str, str]) -> bytes:
    """The bytes of an environment, which are the same for the same components.

    Args:
        environment: Component → its value.
    """
    return _encoder.encode(dict(sorted(environment.items())))
