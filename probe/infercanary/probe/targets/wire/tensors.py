"""Tensors of the Open Inference Protocol (v2): in JSON, or little-endian in the binary tensor data extension.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol and its binary tensor data
extension.
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
"""Type → format of one element for :mod:`struct`. BF16 is the upper half of an FP32."""
DTYPES = ("BYTES", *_FORMATS)
_MAX_ELEMENTS = 1 << 24
_PIECE = 1 << 12


class KserveInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input: its values are ``data``, or drawn from the seed (integers in ``[0, high)``).

    Missing keys are taken from the model's metadata on the server.
    """

    name: str | None = None
    shape: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    dtype: str | None = None
    high: Annotated[int, Meta(ge=1)] = 2
    data: list[Any] | None = None
    parameters: dict[str, str | int | bool | float] = {}


class Tensor(NamedTuple):
    """A tensor with its values in row-major order: numbers, or ``bytes`` for BYTES."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Iterable[Any]
    """Readable once. Large tensors are drawn or decoded during reading: a list would take 32 bytes an element."""


def drawn(name: str, dtype: str, shape: tuple[int, ...], spec: KserveInput, seed: int, place: str) -> Tensor:
    """Make an input from its data, or draw it.

    Args:
        name: Name of the input.
        dtype: The protocol's name.
        shape: At most 16 Mi elements.
        spec: Settings of the input.
        seed: Seed of drawn values.
        place: Key in the settings, for messages.

    Raises:
        UsageError: The data does not fit, or the dtype cannot be drawn.
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
        raise UsageError(f"{place}.data: not all values are {dtype}; fix the values, or `dtype`") from None
    return Tensor(name, dtype, shape, values)


def encoded(tensor: Tensor, is_binary: bool) -> Iterator[bytes]:
    """Yield the values of a tensor in pieces.

    Args:
        tensor: A tensor of any dtype.
        is_binary: If True, values are little-endian, and each text of BYTES follows its length in 4 bytes. If False,
            the pieces are numbers, booleans or texts to be put between the brackets of ``data`` in JSON.
    """
    values, comma = iter(tensor.values), b""
    while piece := list(islice(values, _PIECE)):
        if is_binary:
            yield _packed(tensor.dtype, piece)
        else:
            yield comma + _compact([v.decode() if isinstance(v, bytes) else v for v in piece])[1:-1]
            comma = b","


def request_body(inputs: Iterable[tuple[Tensor, dict[str, Any]]], is_binary: bool) -> tuple[bytearray, int]:
    """Make the body of an inference request, without a second copy of the values in memory.

    Args:
        inputs: Tensors with their parameters.
        is_binary: True to put the values after the JSON instead of into it.

    Returns:
        The body, and the length of its JSON in bytes.
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
    """Read an output of a JSON answer; its data is flat, or nested like the shape.

    Raises:
        Failure: The data does not fit the dtype or the shape (``wrong_shape``).
    """
    values = list(flatten(data))
    is_text = dtype == "BYTES"
    if not all(isinstance(value, str if is_text else (int, float, type(None))) for value in values):
        raise Failure("wrong_shape", f"the output `{name}` has other values than {dtype}")
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
        raise Failure("wrong_shape", f"the output `{name}` has the unknown type `{dtype}`")
    element = struct.Struct(f"<{_FORMATS[dtype]}")
    if len(data) != math.prod(shape) * element.size:
        raise Failure("wrong_shape", f"the output `{name}` has {len(data)} bytes for {dtype} {list(shape)}")
    numbers = (value for (value,) in element.iter_unpack(data))
    return Tensor(name, dtype, tuple(shape), map(_from_bf16, numbers) if dtype == "BF16" else numbers)


def sampled(tensors: Sequence[Tensor]) -> list[float]:
    """Return at most 1,024 evenly spaced values of all tensors; the last is NaN if any value is not finite.

    Args:
        tensors: Outputs of any shapes.

    Returns:
        Numbers in the order of the tensors; a text is represented by its hash.
    """
    count = sum(math.prod(tensor.shape) for tensor in tensors)
    return spread((number_of(value) for tensor in tensors for value in tensor.values), count)


def spread(numbers: Iterable[float], count: int) -> list[float]:
    """Return at most 1,024 of ``count`` numbers, evenly spaced; the last is NaN if any number is not finite."""
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
    """Return a value of an answer as a number; a text as a hash in [0, 1)."""
    if value is None:  # strict servers write NaN as null in JSON
        return math.nan
    if isinstance(value, bytes):  # different texts almost surely have different numbers
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
    """Draw numbers with ``random()`` alone: only ``random()`` is guaranteed to be stable across versions of Python."""
    draw = random.Random(seed).random  # noqa: S311 - inputs, no secrets
    bits = 8 * struct.calcsize(f"<{_FORMATS[dtype]}") - (not dtype.startswith("U"))
    for _ in range(count):
        if dtype == "BOOL":
            yield draw() < 0.5
        elif "INT" in dtype:
            yield int(draw() * min(high, 1 << bits))
        else:
            # Box-Muller method. Six digits are short in JSON, and give the same numbers in both encodings.
            normal = math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())
            yield float(f"{normal:.6g}")


def _checked(dtype: str, value: Any) -> Any:
    """Return a settings value converted to the dtype; raise if the dtype cannot represent it."""
    if dtype == "BYTES":
        return str.encode(value)
    if isinstance(value, bool) != (dtype == "BOOL"):
        raise TypeError
    _packed(dtype, [value])
    return value if dtype == "BOOL" or "INT" in dtype else float(value)


def flatten(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the values in nested lists, in order; without recursion, because a server may nest lists deeply."""
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
            raise Failure("wrong_shape", "an output of texts ends in the middle of a text")
        yield data[at + 4 : end]
        at = end


def _from_bf16(half: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", half << 16))[0]
    return value
