"""Facts of an .onnx file that ONNX Runtime does not report, read from its bytes: the package onnx is not needed."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

# Numbers of fields: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_GRAPH, _INPUT, _NAME, _TYPE, _TENSOR, _SHAPE = 7, 11, 1, 2, 1, 2

_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5  # https://protobuf.dev/programming-guides/encoding/#structure


def with_rank(path: Path) -> frozenset[str] | None:
    """List the inputs whose number of dimensions the model declares.

    Args:
        path: The model.

    Returns:
        Names, of initializers that are listed as inputs too; None if it is no .onnx file, as an .ort file.

    Raises:
        OSError: It cannot be read.
    """
    names = set()
    is_read = False
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for graph in _inside(data, [(0, len(data))], _GRAPH):
                for declared in _inside(data, [graph], _INPUT):
                    is_read = True
                    of_tensor = _inside(data, _inside(data, [declared], _TYPE), _TENSOR)
                    if any(True for _ in _inside(data, of_tensor, _SHAPE)):
                        names |= {data[b:e].decode() for b, e in _inside(data, [declared], _NAME)}
    except (ValueError, IndexError):
        return None
    return frozenset(names) if is_read else None


def _inside(data: mmap.mmap, spans: Iterable[tuple[int, int]], number: int) -> Iterator[tuple[int, int]]:
    """Where the values of a field of bytes begin and end, in the messages that lie there."""
    for at, end in spans:
        while at < end:
            key, at = _varint(data, at)
            kind = key & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _BYTES:
                size, at = _varint(data, at)
                if size > end - at:
                    raise ValueError("longer than what it is in")
                if key >> 3 == number:
                    yield at, at + size
                at += size
            elif kind in (_LONG, _SHORT):
                at += 8 if kind == _LONG else 4
            else:
                raise ValueError("no protobuf")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("no protobuf")
