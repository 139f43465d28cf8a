"""Tensors as the Open Inference Protocol (v2) sends them: in JSON, or little-endian in the binary extension.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol and its binary tensor data extension.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Failure

_MAX_VALUES = 1024
_NAMES = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16"
_FORMATS = dict(zip(_NAMES.split(), "?BHIQbhiqefdH", strict=True))
"""Type → how :mod:`struct` writes one element. BF16 is the upper half of an FP32."""
DTYPES = ("BYTES", *_FORMATS)
_MAX_ELEMENTS = 1 << 24
_PIECE = 1 << 12


class KserveInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input: its values are ``data``, or drawn from the seed (integers in ``[0, high)``).

    What is left out is taken from the model's metadata on the server.
    """

    name: str | None = None
    shape: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    dtype: str | None = None
    high: Annotated[int, Meta(ge=1)] = 2
    data: list[Any] | None = None
    parameters: dict[str, str | int | bool | float] = {}


class Tensor(NamedTuple):
    """A tensor with its values in row-major order: numbers, and for BYTES ``bytes``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Iterable[Any]
    """Large tensors are made or unpacked while they are read, once: as a list they would take 32 bytes an element."""


def drawn(name: str, dtype: str, shape: tuple[int, ...], spec: KserveInput, seed: int, place: str) -> Tensor:
    """Make an input of its data, or draw it.

    Args:
        name: The input's.
        dtype: By the protocol's name.
        shape: It may have 16 Mi elements.
        spec: Its settings.
        seed: The numbers are drawn from it.
        place: In the settings, for messages.

    Raises:
        UsageError: The data does not fit, or nothing can be drawn.
    """
    count = math.prod(shape)
    if count > _MAX_ELEMENTS:
        raise UsageError(f"{place}.shape: {count} elements are too many; {_MAX_ELEMENTS} at most")
    if spec.data is None:
        if dtype == "BYTES":
            raise UsageError(f"{place}: text cannot be drawn; give `data`, a list of {count}")
        return Tensor(name, dtype, shape, _draw(dtype, count, spec.high, seed))
    given = list(flatten(spec.data))
    if len(given) != count:
        raise UsageError(
            f"{place}.data: {len(given)} values do not fill the shape {list(shape)}; give {count}"
        )
    try:
        values = [_checked(dtype, value) for value in given]
    except (ValueError, TypeError, OverflowError, struct.error):
        raise UsageError(f"{place}.data: not all of it is {dtype}; fix it, or `dtype`") from None
    return Tensor(name, dtype, shape, values)


def encoded(tensor: Tensor, is_binary: bool) -> Iterator[bytes]:
    """Yield the values of a tensor in pieces.

    Args:
        tensor: Of any dtype.
        is_binary: Little-endian, BYTES with a length of 4 bytes before each text; otherwise the numbers, booleans or
            texts between the brackets of ``data`` in JSON.
    """
    values, comma = iter(tensor.values), b""
    while piece := list(islice(values, _PIECE)):
        if is_binary:
            yield _packed(tensor.dtype, piece)
        else:
            yield comma + _compact([v.decode() if isinstance(v, bytes) else v for v in piece])[1:-1]
            comma = b","


def request_body(inputs: Iterable[tuple[Tensor, dict[str, Any]]], is_binary: bool) -> tuple[bytearray, int]:
    """Make the body of a request for an inference; its values are in no other memory.

    Args:
        inputs: Each with its parameters.
        is_binary: Whether the values follow the JSON, instead of being in it.

    Returns:
        The body, and how many bytes of it are JSON.
    """
    head, blobs = bytearray(b'{"inputs":['), bytearray()
    for i, (tensor, parameters) in enumerate(inputs):
        about = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.dtype}
        head += b"," * (i > 0) + _compact(about)[:-1] + b',"data":[' * (not is_binary)
        values, before = blobs if is_binary else head, len(blobs)
        for piece in encoded(tensor, is_binary):
            values += piece
        if is_binary:
            parameters = {**parameters, "binary_data_size": len(blobs) - before}
        else:
            head += b"]"
        if parameters:
            head += b',"parameters":' + _compact(parameters)
        head += b"}"
    head += b'],"parameters":{"binary_data_output":true}}' if is_binary else b"]}"
    length = len(head)
    blobs[:0] = head
    return blobs, length


def from_json(name: str, dtype: str, shape: Sequence[int], data: Iterable[Any]) -> Tensor:
    """Read an output of a JSON answer, flat or nested like the shape.

    Raises:
        Failure: The data does not fit the dtype or the shape (``wrong_shape``).
    """
    values = list(flatten(data))
    is_text = dtype == "BYTES"
    if not all(isinstance(value, str if is_text else (int, float, type(None))) for value in values):
        raise Failure("wrong_shape", f"the output `{name}` holds something else than {dtype}")
    if is_text:
        values = [value.encode("utf-8", "surrogatepass") for value in values]
    return _filled(name, dtype, shape, values)


def from_bytes(name: str, dtype: str, shape: Sequence[int], data: bytes) -> Tensor:
    """Read an output of the binary extension.

    Raises:
        Failure: The data does not fit the dtype or the shape (``wrong_shape``).
    """
    if dtype == "BYTES":
        return _filled(name, dtype, shape, list(_texts(data)))
    if dtype not in _FORMATS:
        raise Failure("wrong_shape", f"the output `{name}` is of the type `{dtype}`, which is none")
    element = struct.Struct(f"<{_FORMATS[dtype]}")
    if len(data) != math.prod(shape) * element.size:
        raise Failure("wrong_shape", f"the output `{name}` has {len(data)} bytes for {dtype} {list(shape)}")
    numbers = (value for (value,) in element.iter_unpack(data))
    return Tensor(name, dtype, tuple(shape), map(_from_bf16, numbers) if dtype == "BF16" else numbers)


def sampled(tensors: Sequence[Tensor]) -> list[float]:
    """Return at most 1,024 evenly spread values of all tensors; the last is NaN if any value is not finite.

    Args:
        tensors: Outputs of any shapes.

    Returns:
        Numbers in the tensors' order; of text, its hash.
    """
    count = sum(math.prod(tensor.shape) for tensor in tensors)
    return spread((number_of(value) for tensor in tensors for value in tensor.values), count)


def spread(numbers: Iterable[float], count: int) -> list[float]:
    """Return at most 1,024 evenly spread ones of ``count`` numbers; the last is NaN if any number is not finite."""
    step, chosen, finite = max(1, -(-count // _MAX_VALUES)), [], True
    for position, number in enumerate(numbers):
        finite &= math.isfinite(number)
        if position % step == 0:
            chosen.append(number)
    if chosen and not finite:
        chosen[-1] = math.nan
    return chosen


def _filled(name: str, dtype: str, shape: Sequence[int], values: list[Any]) -> Tensor:
    if len(values) != math.prod(shape):
        raise Failure(
            "wrong_shape", f"the output `{name}` has {len(values)} values for the shape {list(shape)}"
        )
    return Tensor(name, dtype, tuple(shape), values)


def number_of(value: Any) -> float:
    """Return a value of an answer as a number; of text, a hash in [0, 1)."""
    if value is None:  # how JSON has NaN, where a server is strict
        return math.nan
    if isinstance(value, bytes):  # another text has another number in [0, 1), almost surely
        return int.from_bytes(hashlib.sha256(value).digest()[:4], "big") / 2**32
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _packed(dtype: str, values: list[Any]) -> bytes:
    if dtype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{_FORMATS[dtype]}", *values)


def _draw(dtype: str, count: int, high: int, seed: int) -> Iterator[Any]:
    """Draw numbers with ``random()`` alone: only it is promised to be the same in every version of Python."""
    draw = random.Random(seed).random  # noqa: S311 - inputs, no secrets
    bits = 8 * struct.calcsize(f"<{_FORMATS[dtype]}") - (not dtype.startswith("U"))
    for _ in range(count):
        if dtype == "BOOL":
            yield draw() < 0.5
        elif "INT" in dtype:
            yield int(draw() * min(high, 1 << bits))
        else:
            # Box-Muller. Six digits are short in JSON, and the same numbers in both encodings.
            normal = math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())
            yield float(f"{normal:.6g}")


def _checked(dtype: str, value: Any) -> Any:
    """Return a value of the settings as the dtype has it; raise where the dtype has no such value."""
    if dtype == "BYTES":
        return str.encode(value)
    if isinstance(value, bool) != (dtype == "BOOL"):
        raise TypeError
    _packed(dtype, [value])
    return value if dtype == "BOOL" or "INT" in dtype else float(value)


def flatten(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the values in nested lists, in order; without recursion, since a server may nest them deeply."""
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()


def _texts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data) or at + 4 > len(data):
            raise Failure("wrong_shape", "an output of texts ends within one of them")
        yield data[at + 4 : end]
        at = end


def _from_bf16(half: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", half << 16))[0]
    return value
