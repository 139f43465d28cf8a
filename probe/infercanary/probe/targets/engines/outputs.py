"""Numbers in the result of a model or function: torch tensors, NumPy arrays and plain numbers in nested containers.

This module imports neither torch nor NumPy. If a result contains a library's objects, the library is already imported.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from typing import Any

from infercanary.probe.targets.engines.tensors import MAX_VALUES

_PIECE = 1 << 18  # number of elements checked at a time; checking all at once would double the memory
# maximum number of steps, for a result that contains itself; these steps take about 0.1 s
_MOST_STEPS = 1 << 17
_END = object()


def pending(result: Any) -> str:
    """Return the type of a result that is not computed yet, such as a coroutine; empty for a computed result."""
    is_pending = isinstance(result, (Iterator, AsyncIterator, Awaitable))
    return f"a `{type(result).__name__}`" if is_pending else ""


def values(result: Any) -> list[float]:
    """Return at most 1,024 evenly spaced numbers of a result. The last number is NaN if the result contains NaN or
    infinity.

    Args:
        result: Tensors, arrays and real numbers in any nesting of mappings, lists, tuples and dataclasses. A complex
            number in a tensor or an array counts as two numbers. Text, None, and objects of other classes contain no
            numbers.
    """
    flat = [numbers for leaf in leaves(result) if (numbers := _flat(leaf)) is not None]
    step = max(1, -(-sum(map(len, flat)) // MAX_VALUES))
    chosen = []
    skip = 0
    for numbers in flat:
        chosen += _doubles(numbers[skip::step])
        skip = (skip - len(numbers)) % step
    if chosen and not all(map(_is_finite, flat)):
        chosen[-1] = float("nan")
    return chosen


def leaves(result: Any) -> Iterator[Any]:
    """Yield the tensors, arrays and numbers in a result, in order.

    Yields:
        Dense torch tensors; NumPy arrays and scalars; ``int``, ``float``.
    """
    tensor = _class("torch", "Tensor")
    plain = int, float, *_class("numpy", "ndarray"), *_class("numpy", "generic")
    stack = [iter((result,))]
    for _ in range(_MOST_STEPS):
        value = next(stack[-1], _END)
        if value is _END:
            stack.pop()
            if not stack:
                return
        elif isinstance(value, plain):
            yield value
        elif isinstance(value, tensor):
            yield value.to_dense()
        else:
            stack.append(iter(_inner(value)))


def _class(module: str, name: str) -> Any:
    """Return a tuple with a class for ``isinstance``. The tuple is empty if the module is not imported."""
    found = getattr(sys.modules.get(module), name, None)
    return (found,) if isinstance(found, type) else ()


def _inner(value: Any) -> Iterable[Any]:
    """Return the values in a container; empty if the value is not a container."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name, None) for field in dataclasses.fields(value))
    return ()


def _flat(leaf: Any) -> Any:
    """Return a tensor, an array or a number as real numbers in one dimension; None for text or objects."""
    if isinstance(leaf, (int, float)):
        return [float(leaf)]
    if isinstance(leaf, _class("torch", "Tensor")):
        tensor = leaf.detach()
        if tensor.is_complex():
            tensor = sys.modules["torch"].view_as_real(tensor.resolve_conj())
        return tensor.reshape(-1)
    numpy = sys.modules["numpy"]
    array = numpy.ascontiguousarray(leaf).reshape(-1)
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    return array if array.dtype.kind in "biuf" else None


def _doubles(numbers: Any) -> list[float]:
    return [float(number) for number in (numbers if isinstance(numbers, list) else numbers.tolist())]


def _is_finite(numbers: Any) -> bool:
    if isinstance(numbers, list):
        return all(map(math.isfinite, numbers))
    if not isinstance(numbers, _class("torch", "Tensor")):
        return bool(sys.modules["numpy"].isfinite(numbers).all())
    # isfinite() does not support float8
    return all(bool(piece.float().isfinite().all()) for piece in numbers.split(_PIECE))
