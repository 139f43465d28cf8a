"""Tensors of the Open Inference Protocol (v2), in JSON or little-endian in the binary tensor data extension.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol and its binary tensor data
extension.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Failure
from infercanary.probe.targets.engines.tensors import MAX_VALUES, TensorSpec

_NAMES = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16"
_FORMATS = dict(zip(_NAMES.split(), "?BHIQbhiqefdH", strict=True))
"""Type → format of one element for :mod:`struct`. BF16 is the upper half of an FP32."""
DTYPES = ("BYTES", *_FORMATS)
_MAX_ELEMENTS = 1 << 24
_PIECE = 1 << 12


class KserveInput(TensorSpec, frozen=True, forbid_unknown_fields=True):
    """One input: its values are ``data``, or drawn from the seed (integers in ``[0, high)``).

    Missing keys are taken from the model's metadata on the server.
    """

    name: str | None = None
    data: list[Any] | None = None
    parameters: dict[str, str | int | bool | float] = {}  # noqa: RUF012 - msgspec copies the default


class Tensor(NamedTuple):
    """An input with its values in row-major order: numbers, or texts for BYTES."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameters: dict[str, str | int | bool | float]
    values: Iterable[Any]
    """Values, readable once. Large tensors are drawn during reading, because a list would take 32 bytes an element."""


class _Parameters(msgspec.Struct):
    binary_data_size: Annotated[int, Meta(ge=0)] | None = None


class Output(msgspec.Struct):
    """An output as the JSON of an answer describes it."""

    name: str
    datatype: str
    shape: list[Annotated[int, Meta(ge=0)]]
    data: list[Any] | None = None
    """Values in row-major order, flat or nested like the shape; None for binary data."""
    parameters: _Parameters | None = None

    @property
    def count(self) -> int:
        """Number of elements in the shape."""
        return math.prod(self.shape)

    @property
    def size(self) -> int | None:
        """Size of binary data in bytes; None for values in JSON."""
        return self.parameters.binary_data_size if self.parameters else None


def drawn(name: str, dtype: str, shape: tuple[int, ...], spec: KserveInput, seed: int, place: str) -> Tensor:
    """Make an input from its data, or draw its values.

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
    values: Iterable[Any]
    if spec.data is not None:
        values = given = list(flatten(spec.data))
        if len(given) != count:
            raise UsageError(
                f"{place}.data: {len(given)} values do not fill the shape {list(shape)}; give {count}"
            )
        kind = {"BYTES": str, "BOOL": bool}.get(dtype, int if "INT" in dtype else float)
        try:
            _packed(dtype, msgspec.convert(given, list[kind]))  # type: ignore[valid-type]
        except (ValueError, OverflowError, struct.error):  # errors of msgspec are ValueErrors
            raise UsageError(
                f"{place}.data: not all values are {dtype}; fix the values, or `dtype`"
            ) from None
    elif dtype == "BYTES":
        raise UsageError(f"{place}: text cannot be drawn; give `data`, a list of {count}")
    else:
        values = _draw(dtype, count, spec.high, seed)
    return Tensor(name, dtype, shape, spec.parameters, values)


def request_body(inputs: Iterable[Tensor], is_binary: bool) -> tuple[bytearray, int]:
    """Make the body of an inference request. Binary values are written in parts, to save memory.

    Args:
        inputs: Tensors.
        is_binary: True to put the values after the JSON instead of into it: little-endian, and each text of BYTES
            after its length in 4 bytes.

    Returns:
        The body, and the length of its JSON in bytes.
    """
    described, body = [], bytearray()
    for name, dtype, shape, parameters, values in inputs:
        about: dict[str, Any] = {"name": name, "shape": shape, "datatype": dtype}
        if is_binary:
            before, unsent = len(body), iter(values)
            while piece := list(islice(unsent, _PIECE)):
                body += _packed(dtype, piece)
            parameters = {**parameters, "binary_data_size": len(body) - before}
        else:
            about["data"] = list(values)
        described.append(about | ({"parameters": parameters} if parameters else {}))
    more = {"parameters": {"binary_data_output": True}} if is_binary else {}
    head = msgspec.json.encode({"inputs": described, **more})
    body[:0] = head
    return body, len(head)


def numbers_of(output: Output, binary: bytes) -> Iterable[float]:
    """Return the numbers of an output, one for each element of the shape. A text becomes a hash.

    Args:
        output: Description, and values in JSON.
        binary: Values in the binary extension, if the output has a size. Texts (BYTES) have one hash together.

    Raises:
        Failure: The values do not fit the dtype or the shape (``wrong_shape``).
    """
    dtype, count = output.datatype, output.count
    values: Iterable[Any]
    if output.size is None:
        values = flat = list(flatten(output.data or ()))
        kinds = str if dtype == "BYTES" else (int, float, type(None))
        is_fit = len(flat) == count and all(isinstance(value, kinds) for value in flat)
    elif dtype == "BYTES":
        values, is_fit = [binary] * count, True
    else:
        form = f"<{_FORMATS.get(dtype, 'x')}"
        is_fit = dtype in _FORMATS and len(binary) == count * struct.calcsize(form)
        values = (value for (value,) in struct.iter_unpack(form, binary if is_fit else b""))
    if not is_fit:
        raise Failure("wrong_shape", f"the output `{output.name}` is not {dtype} {output.shape}")
    return map(_from_bf16 if dtype == "BF16" and output.size is not None else number_of, values)


def spread(numbers: Iterable[float], count: int) -> list[float]:
    """Return at most 1,024 of ``count`` numbers, evenly spaced. The last number is NaN if any number is NaN or
    infinity.
    """
    step, chosen, finite = max(1, -(-count // MAX_VALUES)), [], True
    for position, number in enumerate(numbers):
        finite &= math.isfinite(number)
        if position % step == 0:
            chosen.append(number)
    if chosen and not finite:
        chosen[-1] = math.nan
    return chosen


def number_of(value: Any) -> float:
    """Return a value of an answer as a number. A text becomes a hash in [0, 1)."""
    if isinstance(value, (str, bytes)):  # different texts almost surely have different hashes
        return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:4], "big") / 2**32
    return math.nan if value is None else float(value)  # servers with strict JSON write NaN as null


def _packed(dtype: str, values: list[Any]) -> bytes:
    if dtype == "BYTES":
        return b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, values))
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{_FORMATS[dtype]}", *values)


def _draw(dtype: str, count: int, high: int, seed: int) -> Iterator[Any]:
    """Draw numbers with ``random()`` only, because Python guarantees stable numbers across versions only for
    ``random()``.
    """
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


def flatten(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the values in nested lists in order. Recursion is not used, because a server may nest lists deeply."""
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()


def _from_bf16(half: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", half << 16))[0]
    return value
