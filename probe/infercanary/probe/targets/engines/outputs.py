"""Numbers in the result of a model or function: torch tensors, NumPy arrays and plain numbers in nested containers.

Neither library is imported here: a result that holds their objects shows that they are.
"""

from __future__ import annotations

import cmath
import dataclasses
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator, Iterable, Iterator, Mapping
from typing import Any

from infercanary.probe.targets.engines.tensors import MAX_VALUES

_PIECE = 1 << 18  # elements that are looked at together; all at once would need as much memory again
_MOST_VISITED = 1 << 17  # objects of one result, 0.1 s
_MOST_NESTED = 64

# Layout of a sparse tensor → the methods that return what it stores.
_STORED = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
# First match wins. The abstract classes cover those that are compiled, too, such as Cython's.
_PENDING: dict[Any, str] = {
    Generator: "a generator",
    AsyncGenerator: "an async generator",
    Coroutine: "a coroutine",
    Awaitable: "an awaitable",
    (map, filter, zip): "an iterator",
}


def pending(result: Any) -> str:
    """Name a result that is not computed yet.

    Args:
        result: Of a call.

    Returns:
        Such as ``a generator`` or ``a coroutine``; empty for a result that is computed.
    """
    return next((name for kind, name in _PENDING.items() if isinstance(result, kind)), "")


def values(result: Any) -> list[float]:
    """Return evenly spread places of all numbers in a result, 1,024 at most; the last is NaN if any is not finite.

    Args:
        result: Tensors, arrays and numbers in any nesting of mappings, lists, tuples and dataclasses. A complex number
            counts as two. Text, None, and objects of other classes hold no numbers.

    Returns:
        Numbers in the result's order; empty where it holds none.
    """
    flat = list(_flat(leaves(result)))
    step = max(1, -(-sum(map(len, flat)) // MAX_VALUES))
    chosen: list[float] = []
    skip = 0
    for numbers in flat:
        chosen += _doubles(numbers[skip::step])
        skip = (skip - len(numbers)) % step
    if chosen and not all(map(_is_finite, flat)):
        chosen[-1] = float("nan")
    return chosen


def leaves(result: Any) -> Iterator[Any]:
    """Yield the tensors, arrays and numbers in a result, in order.

    Args:
        result: As for :func:`values`. A container that holds itself is entered once.

    Yields:
        Torch tensors that are dense, with memory; NumPy arrays and scalars; ``int``, ``float``, ``complex``.
    """
    tensor, array = _class("torch", "Tensor"), _class("numpy", "ndarray")
    whole = int, float, complex, *_class("numpy", "generic")
    entered = [0]  # the containers on the stack
    stack: list[Iterator[Any]] = [iter((result,))]
    visited = 0
    while stack:
        for value in stack[-1]:
            visited += 1
            if visited > _MOST_VISITED:
                return
            if isinstance(value, tensor):
                yield from _dense(value)
            elif isinstance(value, whole) or (isinstance(value, array) and value.dtype.kind != "O"):
                yield value
            elif (
                len(stack) < _MOST_NESTED
                and id(value) not in entered
                and (inner := _inner(value, array)) is not None
            ):
                stack.append(iter(inner))
                entered.append(id(value))
                break
        else:
            stack.pop()
            entered.pop()


def _class(module: str, name: str) -> Any:
    """A class of a module that is imported already, for ``isinstance``."""
    found = getattr(sys.modules.get(module), name, None)
    return (found,) if isinstance(found, type) else ()


def _inner(value: Any, array: Any) -> Iterable[Any] | None:
    """Values in a container; None if ``value`` is no container."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list, deque)):
        return value
    if isinstance(value, array):
        return [*value.flat]  # of objects
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name, None) for field in dataclasses.fields(value))
    return None


def _dense(tensor: Any) -> Iterator[Any]:
    """A tensor as dense ones: of a sparse one what it stores; nothing of one without memory."""
    if tensor.device.type == "meta":
        return
    layout = str(tensor.layout)
    if tensor.is_nested:
        for part in tensor.unbind():
            yield from _dense(part)
    elif layout in _STORED:
        yield from (getattr(tensor, method)() for method in _STORED[layout])
    elif tensor.is_quantized:
        yield tensor.dequantize()
    else:
        yield tensor if layout == "torch.strided" else tensor.to_dense()


def _flat(found: Iterable[Any]) -> Iterator[Any]:
    """Sequences of real numbers: tensors and arrays of one dimension, and lists of what is neither."""
    numbers: list[float] = []
    for leaf in found:
        if isinstance(leaf, (int, float, complex)):
            numbers += (leaf.real, leaf.imag) if isinstance(leaf, complex) else (leaf,)
            continue
        if numbers:
            yield numbers
            numbers = []
        if isinstance(leaf, _class("torch", "Tensor")):
            tensor = leaf.detach()
            if tensor.is_complex():
                tensor = sys.modules["torch"].view_as_real(tensor.resolve_conj())
            yield tensor.reshape(-1)
        else:
            yield from _fields(leaf)
    if numbers:
        yield numbers


def _fields(array: Any) -> Iterator[Any]:
    """A NumPy array as arrays of real numbers; nothing of one that holds text, dates or bytes."""
    numpy: Any = sys.modules["numpy"]
    array = numpy.asarray(array)
    if array.dtype.names:
        for name in array.dtype.names:
            yield from _fields(array[name])
    elif array.dtype.kind in "biuf":
        yield array.reshape(-1)
    elif array.dtype.kind == "c":
        yield numpy.ascontiguousarray(array).reshape(-1).view(array.real.dtype)
    elif array.dtype.isbuiltin == 2:  # registered by a library: bfloat16, float8
        yield array.astype(numpy.float32).reshape(-1)


def _doubles(numbers: Any) -> list[float]:
    if isinstance(numbers, list):
        return [_double(number) for number in numbers]
    is_tensor = isinstance(numbers, _class("torch", "Tensor"))
    doubles = numbers.cpu().double() if is_tensor else numbers.astype(float)  # some devices have no doubles
    found: list[float] = doubles.tolist()
    return found


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an int has no limit
        return sys.float_info.max if number > 0 else -sys.float_info.max


def _is_finite(numbers: Any) -> bool:
    if isinstance(numbers, list):
        return all(isinstance(number, int) or cmath.isfinite(number) for number in numbers)
    if not isinstance(numbers, _class("torch", "Tensor")):
        return numbers.dtype.kind != "f" or bool(sys.modules["numpy"].isfinite(numbers).all())
    if not numbers.is_floating_point():
        return True
    torch: Any = sys.modules["torch"]
    pieces = numbers.split(_PIECE)
    if numbers.element_size() == 1:  # isfinite has no kernel for float8
        pieces = (piece.float() for piece in pieces)
    return all(bool(torch.isfinite(piece).all()) for piece in pieces)
