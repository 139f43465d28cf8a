"""Digests of model files. For large files, only a sample is digested."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

WHOLE_BYTES = 2 << 30
"""Above this size, only a sample is digested: SHA-256 of 2 GiB takes 2 to 6 s on one core."""
PIECES = 4096
PIECE = 64 << 10
"""Size of a piece: bytes of a file, or elements of a tensor."""

# 64 bits are enough: two models of a service do not collide by chance, and no attack is expected
_DIGITS = 16
_BLOCK = 1 << 20
# Start of an entry of TensorProto.external_data: the key `location`, and the length of the path. The length is a varint
# of one or two bytes: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")
_LOCATION_BYTES = 13


def of_files(paths: Sequence[Path], whole: int = WHOLE_BYTES) -> str:
    """Digest files as one model. File names do not affect the digest.

    Args:
        paths: Files, always in the same order for the same model.
        whole: Largest total size in bytes that is digested as a whole.

    Returns:
        ``file-sha256:…``, or ``file-sample:…``: a digest of the sizes and of ``PIECES`` evenly spaced pieces.

    Raises:
        OSError: A file cannot be read.
    """
    sizes = [path.stat().st_size for path in paths]
    digest = hashlib.sha256()
    is_whole = sum(sizes) <= whole
    for path, size in zip(paths, sizes, strict=True):
        digest.update(f"{size}\n".encode())
        with path.open("rb") as file:
            for begin in piece_begins(size, size if is_whole else max(1, PIECES // len(paths))):
                file.seek(begin)
                digest.update(file.read(PIECE))
    return name_digest("file", digest.hexdigest(), is_whole)


def name_digest(kind: str, hexadecimal: str, is_whole: bool) -> str:
    """Format a digest with its kind: ``file-sha256:0123456789abcdef``."""
    return f"{kind}-{'sha256' if is_whole else 'sample'}:{hexadecimal[:_DIGITS]}"


def piece_begins(size: int, pieces: int) -> Iterator[int]:
    """Yield the offsets of the pieces to digest: of all pieces, or of ``pieces`` evenly spaced pieces if there are
    more.

    The last of the evenly spaced pieces is at the end of the data.
    """
    if size <= pieces * PIECE:
        yield from range(0, size, PIECE)
        return
    for i in range(pieces):
        yield (size - PIECE) * i // max(1, pieces - 1)


def onnx_files(path: Path) -> list[Path]:
    """Return an ONNX model and the files with its weights. These files are in the model's folder or below.

    The function searches the model's bytes instead of parsing them. A false match costs only one check for a file.

    Raises:
        OSError: The model cannot be read.
    """
    if not path.stat().st_size:
        return [path]
    names = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # Search block by block, so that a server's threads can run in between: 256 MiB take 0.2 s.
        for begin in range(0, len(data), _BLOCK):
            for location in _LOCATION.finditer(data, begin, begin + _BLOCK + _LOCATION_BYTES - 1):
                low, *high = location[1]
                length = low & 0x7F | (high[0] << 7 if high else 0)
                names.add(data[location.end() : location.end() + length].decode(errors="replace"))
    folder = path.parent.resolve()
    files = [(folder / name.replace("\0", "")).resolve() for name in sorted(names) if name]
    return [path, *(file for file in files if file.is_relative_to(folder) and file.is_file())]
