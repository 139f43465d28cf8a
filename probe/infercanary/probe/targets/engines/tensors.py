"""Inputs and outputs of engines that take plain memory: fitted to the engine's declarations, drawn with numpy, read.

numpy is imported when it is needed: the bare probe does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""Our name of a dtype → numpy's for its memory: numpy has no bfloat16."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input, drawn from the seed: normal numbers for a floating dtype, integers in ``[0, high)`` otherwise.

    Shape and dtype may be left out where the engine declares them.
    """

    shape: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    dtype: str | None = None
    high: Annotated[int, Meta(ge=1)] = 2


Specs = list[TensorSpec] | dict[str, TensorSpec]


class Slot(NamedTuple):
    """One input as the engine declares it: a dimension may be any number, and is then a name, or unnamed."""

    name: str
    shape: tuple[int | str | None, ...] | None
    """None for any number of dimensions."""
    dtype: str
    usual: tuple[int, ...] | None = None
    """The shape to take where none is given."""


class Input(NamedTuple):
    """One input as it will be fed."""

    place: str
    """In the settings: ``inputs[0]`` or ``inputs.x``."""
    name: str
    shape: tuple[int, ...]
    dtype: str
    high: int


def specs(inputs: Any) -> Specs:
    """Read the option ``inputs``: a list in the engine's order, or a mapping by name.

    Args:
        inputs: As in the settings.

    Returns:
        What the settings say of each input, in the form in which they do.

    Raises:
        UsageError: It is neither, or an entry of it is wrong.
    """
    if isinstance(inputs, Mapping):
        return {str(name): _spec(entry, f"inputs.{name}") for name, entry in inputs.items()}
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Sequence):
        raise UsageError(
            "inputs: a list is needed, one entry for each input in order, or a mapping by name, each with `shape`"
        )
    return [_spec(entry, f"inputs[{i}]") for i, entry in enumerate(inputs)]


def _spec(entry: object, place: str) -> TensorSpec:
    spec = convert(entry, TensorSpec, place)
    if spec.dtype is not None and spec.dtype not in STORAGE:
        raise UsageError(f"{place}.dtype: no dtype `{spec.dtype}`; there are {', '.join(STORAGE)}")
    return spec


def matched(wanted: Specs, slots: Sequence[Slot]) -> list[Input]:
    """Decide what each of the engine's inputs gets.

    Args:
        wanted: What the settings say.
        slots: What the engine declares.

    Returns:
        An input for each slot, in the same order.

    Raises:
        UsageError: Something does not fit.
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
                f"inputs: {len(wanted)} given, and the model has {len(slots)}: {has}; one for each is needed"
            )
        given = [(f"inputs[{i}]", wanted[i] if wanted else None) for i in range(len(slots))]
    return [
        _fitted(place, spec or TensorSpec(), slot) for (place, spec), slot in zip(given, slots, strict=True)
    ]


def _fitted(place: str, spec: TensorSpec, slot: Slot) -> Input:
    if spec.dtype not in (None, slot.dtype):
        raise UsageError(f"{place}.dtype: the model's input `{slot.name}` is {slot.dtype}, not {spec.dtype}")
    declared = slot.shape
    shape = spec.shape if spec.shape is not None else slot.usual
    if declared is None:
        return Input(place, slot.name, shape or (), slot.dtype, spec.high)
    names = f"[{', '.join('?' if size is None else str(size) for size in declared)}]"
    example = tuple(size if isinstance(size, int) else 1 for size in declared)
    if shape is None and example != declared:
        raise UsageError(
            f"{place}.shape: the model's input `{slot.name}` is {names}; say which shape, such as {[*example]}"
        )
    shape = example if shape is None else shape
    if len(shape) != len(declared) or any(
        isinstance(size, int) and size != given for size, given in zip(declared, shape, strict=True)
    ):
        raise UsageError(
            f"{place}.shape: {list(shape)} does not fit the model's input `{slot.name}`, which is {names}"
        )
    return Input(place, slot.name, shape, slot.dtype, spec.high)


def drawn(wanted: Input, seed: int, index: int, into: NDArray[Any] | None = None) -> NDArray[Any]:
    """Draw an input's numbers, the same with every version of numpy, and with a piece of them as the only copy.

    Args:
        wanted: Shape, dtype and range.
        seed: Of the whole target.
        index: The input's place: each has a stream of numbers of its own.
        into: Where to write them: a contiguous array of the input's shape, in the dtype that numpy keeps it in.

    Returns:
        ``into``, or a new array like it (``STORAGE``).

    Raises:
        UsageError: The dtype cannot hold them, or memory is short.
    """
    import numpy as np

    # A Generator's numbers may change with numpy's version; RandomState's are frozen: https://numpy.org/neps/nep-0019
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
        raise UsageError(f"{wanted.place}: numpy cannot make it: {one_line(error)}") from None
    return array


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Divide a tensor's elements into pieces of 64 Ki; the last may have 15 more.

    torch draws normal numbers in blocks of 16, but fewer than 16 in another way: in such pieces they are the same as in
    one draw (aten/src/ATen/native/cpu/DistributionTemplates.h, ``normal_fill``).

    Args:
        count: Of elements.

    Yields:
        Where each piece starts and ends.
    """
    start = 0
    while start < count:
        end = count if count - start < _PIECE + _TORCH_BLOCK else start + _PIECE
        yield start, end
        start = end


def common_size(shapes: Iterable[Sequence[int]]) -> int | None:
    """Return the first dimension of all shapes that have any; None where they differ or it is 0."""
    sizes = {int(shape[0]) for shape in shapes if len(shape)}
    return max(sizes) if len(sizes) == 1 and 0 not in sizes else None


def repeated(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return a copy that is repeated along its first dimension up to ``size``; a plain copy where it has none."""
    import numpy as np

    return np.resize(array, (size, *array.shape[1:])) if array.ndim else array.copy()


def readable(memory: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an output's memory as numbers: bfloat16 is the upper half of float32.

    Args:
        memory: As the engine wrote it; of bfloat16 as 16-bit integers.
        dtype: By numpy's name, or ``bfloat16``.

    Returns:
        Numbers of the same shape; ``memory`` itself, but for bfloat16.
    """
    import numpy as np

    return (memory.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else memory


def _to_bfloat16(numbers: Any) -> NDArray[Any]:
    """Rounded to the nearest, ties to even."""
    import numpy as np

    bits = np.asarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
