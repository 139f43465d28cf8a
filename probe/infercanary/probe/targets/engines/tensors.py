"""Inputs and outputs in plain memory: checks against the engine's declarations, drawing with numpy, reading.

numpy is imported only where it is needed, because the basic probe works without numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError, convert
from infercanary.probe.deadline import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_VALUES = 1024
_PIECE = 1 << 16
_TORCH_BLOCK = 16

_NAMES = "float32 float64 float16 bfloat16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
STORAGE = {name: name for name in _NAMES.split()} | {"bfloat16": "uint16"}
"""Dtype → numpy's dtype for its memory: numpy has no bfloat16."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input, drawn from the seed: normal numbers for a floating dtype, else integers in ``[0, high)``.

    Shape and dtype are optional if the engine declares them.
    """

    shape: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    dtype: str | None = None
    high: Annotated[int, Meta(ge=1)] = 2


Specs = list[TensorSpec] | dict[str, TensorSpec]


class Slot(NamedTuple):
    """One input as the engine declares it. A dimension of variable size is a name or None."""

    name: str
    shape: tuple[int | str | None, ...] | None
    """Declared shape; None for any number of dimensions."""
    dtype: str
    usual: tuple[int, ...] | None = None
    """Shape to use if the settings give no shape."""


class Input(NamedTuple):
    """One input as the engine receives it."""

    place: str
    """Key in the settings: ``inputs[0]`` or ``inputs.x``."""
    name: str
    shape: tuple[int, ...]
    dtype: str
    high: int


def specs(inputs: object) -> Specs:
    """Read the option ``inputs``: a list in the engine's order, or a mapping by name.

    Raises:
        UsageError: The option is neither a list nor a mapping, or an entry is wrong.
    """
    return convert(inputs, Specs, "inputs")  # type: ignore[arg-type]


def matched(wanted: Specs, slots: Sequence[Slot]) -> list[Input]:
    """Combine the settings with the engine's declarations.

    Args:
        wanted: Specifications in the settings.
        slots: Inputs that the engine declares.

    Returns:
        An input for each slot, in the same order.

    Raises:
        UsageError: The settings do not fit the engine.
    """
    names = [slot.name for slot in slots]
    has = ", ".join(names) or "none"
    if isinstance(wanted, dict):
        for name in wanted:
            if name not in names:
                raise UsageError(f"inputs: the model has no input `{name}`; its inputs: {has}")
        given = [(f"inputs.{name}", wanted.get(name)) for name in names]
    else:
        if wanted and len(wanted) != len(slots):
            raise UsageError(
                f"inputs: {len(wanted)} given, but the model has {len(slots)}: {has}; give one for each"
            )
        given = [(f"inputs[{i}]", wanted[i] if wanted else None) for i in range(len(slots))]
    return [
        _fitted(place, spec or TensorSpec(), slot) for (place, spec), slot in zip(given, slots, strict=True)
    ]


def _fitted(place: str, spec: TensorSpec, slot: Slot) -> Input:
    if spec.dtype not in (None, slot.dtype):
        raise UsageError(f"{place}.dtype: the model's input `{slot.name}` is {slot.dtype}, not {spec.dtype}")
    declared = slot.shape
    shape = slot.usual if spec.shape is None else spec.shape
    if declared is not None:
        example = tuple(size if isinstance(size, int) else 1 for size in declared)
        if shape is None and example == declared:
            shape = example
        if (
            shape is None
            or len(shape) != len(declared)
            or any(
                isinstance(known, int) and known != size for known, size in zip(declared, shape, strict=True)
            )
        ):
            names = ", ".join("?" if size is None else str(size) for size in declared)
            raise UsageError(
                f"{place}.shape: the model's input `{slot.name}` is [{names}]; give such a shape, as {[*example]}"
            )
    return Input(place, slot.name, shape or (), slot.dtype, spec.high)


def drawn(wanted: Input, seed: int, index: int, into: NDArray[Any] | None = None) -> NDArray[Any]:
    """Draw an input's numbers in pieces, to save memory. All versions of numpy draw the same numbers.

    Args:
        wanted: Shape, dtype and range.
        seed: Seed of the whole target.
        index: Position of the input: each input has its own stream of numbers.
        into: Contiguous array to fill, with the input's shape and numpy's dtype for it (``STORAGE``).

    Returns:
        ``into``, or a new array of that shape and dtype.

    Raises:
        UsageError: The dtype cannot hold the numbers, or memory is insufficient.
    """
    import numpy as np

    # Use RandomState because its numbers are frozen; a Generator's numbers may change with numpy's version:
    # https://numpy.org/neps/nep-0019
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, index])))
    storage = np.dtype(STORAGE[wanted.dtype])
    is_integer = storage.kind in "iub" and wanted.dtype != "bfloat16"
    if is_integer and wanted.dtype != "bool" and wanted.high - 1 > np.iinfo(storage).max:
        raise UsageError(f"{wanted.place}.high: {wanted.high} is more than {wanted.dtype} can hold")
    try:
        array = np.empty(wanted.shape, storage) if into is None else into
        flat = array.reshape(-1)
        for start, end in pieces(flat.size):
            if is_integer:
                flat[start:end] = random.randint(0, wanted.high, end - start, dtype=np.int64)
            else:
                numbers = random.standard_normal(end - start)
                flat[start:end] = _to_bfloat16(numbers) if wanted.dtype == "bfloat16" else numbers
    except (MemoryError, ValueError) as error:
        raise UsageError(f"{wanted.place}: numpy cannot make the array: {one_line(error)}") from None
    return array


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Divide a tensor's elements into pieces of 64 Ki; the last piece may have 15 more.

    torch draws normal numbers in blocks of 16, and fewer than 16 numbers by another algorithm. With these pieces the
    numbers are the same as in a single draw (aten/src/ATen/native/cpu/DistributionTemplates.h, ``normal_fill``).

    Args:
        count: Number of elements.

    Yields:
        Start and end of each piece.
    """
    start = 0
    while start < count:
        end = count if count - start < _PIECE + _TORCH_BLOCK else start + _PIECE
        yield start, end
        start = end


def common_size(shapes: Iterable[Sequence[int]]) -> int | None:
    """Return the common first dimension of all shapes with dimensions; None if they have none in common, or if it is
    0.
    """
    sizes = {int(shape[0]) for shape in shapes if len(shape)}
    return max(sizes) if len(sizes) == 1 and 0 not in sizes else None


def repeated(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return a copy that is repeated until its first dimension is ``size``. A single number is only copied."""
    import numpy as np

    return np.resize(array, (size, *array.shape[1:])) if array.ndim else array.copy()


def readable(memory: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an output's memory as numbers. A bfloat16 is the upper half of a float32.

    Args:
        memory: Memory that the engine wrote; 16-bit integers for bfloat16.
        dtype: numpy's name, or ``bfloat16``.

    Returns:
        ``memory`` itself; for bfloat16 a new array of the same shape.
    """
    import numpy as np

    return (memory.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else memory


def _to_bfloat16(numbers: Any) -> NDArray[Any]:
    """Round numbers to the nearest bfloat16. Ties go to the even number."""
    import numpy as np

    bits = np.asarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
