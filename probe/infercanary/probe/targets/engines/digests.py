"""Digests of models: files with what lies beside them, and bytes of any size, of which a sample stands for the rest."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

WHOLE_BYTES = 2 << 30
"""Of a larger model a sample is digested: SHA-256 of 2 GiB takes 2 to 6 s of one core."""
PIECES = 4096
PIECE_BYTES = 64 << 10

_DIGITS = 16  # 64 bits: nobody attacks it, and two models of a service do not meet by chance
_BLOCK = 1 << 20
# An entry of TensorProto.external_data whose key is `location`, up to the length of the path:
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x00-\xff])([\x00-\xff])")
_LOCATION_BYTES = 13
_MOST_BESIDE = 10_000


def of_files(paths: Sequence[Path], whole: int = WHOLE_BYTES) -> str:
    """Digest files as one model; their names do not count.

    Args:
        paths: In an order that is the same for the same model.
        whole: So many bytes together are read as a whole.

    Returns:
        ``file-sha256:…``, or ``file-sample:…`` of the sizes and of ``PIECES`` pieces, evenly spread.

    Raises:
        OSError: One cannot be read.
    """
    sizes = [path.stat().st_size for path in paths]
    digest = hashlib.sha256()
    is_whole = sum(sizes) <= whole
    for path, size in zip(paths, sizes, strict=True):
        digest.update(f"{size}\n".encode())
        with path.open("rb") as file:
            if is_whole:
                while block := file.read(_BLOCK):
                    digest.update(block)
                continue
            for begin in places(size, max(1, PIECES // len(paths))):
                file.seek(begin)
                digest.update(file.read(PIECE_BYTES))
    return named("file", digest.hexdigest(), is_whole)


def named(of: str, hexadecimal: str, is_whole: bool) -> str:
    """Name a digest by what it is of.

    Args:
        of: Such as ``file``.
        hexadecimal: The whole SHA-256.
        is_whole: Whether all bytes are in it.

    Returns:
        Such as ``file-sha256:0123456789abcdef``.
    """
    return f"{of}-{'sha256' if is_whole else 'sample'}:{hexadecimal[:_DIGITS]}"


def places(size: int, pieces: int) -> Iterator[int]:
    """Yield where evenly spread pieces of ``PIECE_BYTES`` begin, the last one at the end.

    Args:
        size: In bytes.
        pieces: How many at most; all of it where that is as much.

    Yields:
        Bytes from the beginning.
    """
    if size <= pieces * PIECE_BYTES:
        yield from range(0, size, PIECE_BYTES)
        return
    for i in range(pieces):
        yield (size - PIECE_BYTES) * i // max(1, pieces - 1)


def beside_onnx(path: Path) -> list[Path]:
    """Find the files that an ONNX model keeps its weights in.

    Args:
        path: The model. Its bytes are searched, not parsed: a name that is none costs a look for a file.

    Returns:
        Files below its folder, in order of their names; empty where the weights are in the model.

    Raises:
        OSError: It cannot be read.
    """
    folder = path.parent.resolve()
    with path.open("rb") as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # In blocks, between which a server's threads get the interpreter: 256 MiB take 0.2 s.
            names = {
                _name(data, found)
                for begin in range(0, len(data), _BLOCK)
                for found in _LOCATION.finditer(data, begin, begin + _BLOCK + _LOCATION_BYTES - 1)
            }
    found = []
    for name in sorted(filter(None, names))[:_MOST_BESIDE]:
        with suppress(OSError, ValueError):
            beside = (folder / name).resolve()
            if beside.is_relative_to(folder) and beside.is_file():
                found.append(beside)
    return found


def _name(data: mmap.mmap, found: re.Match[bytes]) -> str:
    """The path after a key; its length is a varint of one byte or two."""
    low, high = found[1][0], found[2][0]
    length, begin = (low, found.start(2)) if low < 0x80 else (low & 0x7F | high << 7, found.end(2))
    return data[begin : begin + length].decode(errors="replace")
