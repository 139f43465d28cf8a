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

# First match wins. The abstract classes cover those that are compiled, too, such as Cython's.
_PENDING: dict[Any, str] = {
    Generator: "a generator",
    AsyncGenerator: "an async generator",
    Coroutine: "a coroutine",
    Awaitable: "an awaitable",
    (map, filter, zip): "an iterator",
}


def pending(result: Any) -> str:
    """Name a result that is not computed yet, such as ``a coroutine``; empty for one that is."""
    return next((name for kind, name in _PENDING.items() if isinstance(result, kind)), "")


def values(result: Any) -> list[float]:
    """Return evenly spread numbers of a result, 1,024 at most; the last is NaN if any number is not finite.

    Args:
        result: Tensors, arrays and numbers in any nesting of mappings, lists, tuples and dataclasses. A complex number
            counts as two. Text, None, and objects of other classes hold no numbers.
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

    Yields:
        Torch tensors that are dense, with memory; NumPy arrays and scalars; ``int``, ``float``, ``complex``.
    """
    tensor, array = _class("torch", "Tensor"), _class("numpy", "ndarray")
    whole = int, float, complex, array, *_class("numpy", "generic")
    entered = [0]  # the containers on the stack: one that holds itself is entered once
    stack: list[Iterator[Any]] = [iter((result,))]
    visited = 0
    while stack:
        for value in stack[-1]:
            visited += 1
            if visited > _MOST_VISITED:
                return
            if isinstance(value, tensor):
                yield from _dense(value)
            elif isinstance(value, whole):
                yield value
            elif len(stack) < _MOST_NESTED and id(value) not in entered and _inner(value) is not None:
                stack.append(iter(_inner(value) or ()))
                entered.append(id(value))
                break
        else:
            stack.pop()
            entered.pop()


def _class(module: str, name: str) -> Any:
    """Return a class of a module that is imported already, for ``isinstance``."""
    found = getattr(sys.modules.get(module), name, None)
    return (found,) if isinstance(found, type) else ()


def _inner(value: Any) -> Iterable[Any] | None:
    """Return the values in a container; None if ``value`` is no container."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list, deque)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name, None) for field in dataclasses.fields(value))
    return None


def _dense(tensor: Any) -> Iterator[Any]:
    """Yield a tensor as dense ones; nothing of one without memory."""
    if tensor.device.type == "meta":
        return
    if tensor.is_nested:
        for part in tensor.unbind():
            yield from _dense(part)
    elif tensor.is_quantized:
        yield tensor.dequantize()
    else:
        yield tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()


def _flat(results: Iterable[Any]) -> Iterator[Any]:
    """Yield sequences of real numbers: tensors and arrays of one dimension, and a list for each plain number."""
    for leaf in results:
        if isinstance(leaf, complex):
            yield [leaf.real, leaf.imag]
        elif isinstance(leaf, (int, float)):
            yield [leaf]
        elif isinstance(leaf, _class("torch", "Tensor")):
            tensor = leaf.detach()
            if tensor.is_complex():
                tensor = sys.modules["torch"].view_as_real(tensor.resolve_conj())
            yield tensor.reshape(-1)
        else:
            yield from _numbers(leaf)


def _numbers(array: Any) -> Iterator[Any]:
    """Yield a NumPy array as an array of real numbers; nothing of one that holds text, dates, bytes or objects."""
    numpy: Any = sys.modules["numpy"]
    array = numpy.ascontiguousarray(array).reshape(-1)
    if array.dtype.kind in "biuf":
        yield array
    elif array.dtype.kind == "c":
        yield array.view(array.real.dtype)
    elif array.dtype.isbuiltin == 2:  # registered by a library: bfloat16, float8
        yield array.astype(numpy.float32)


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
