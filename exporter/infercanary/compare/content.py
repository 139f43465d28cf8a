"""Reads a file or standard input: at most 256 MiB of text; of gzip, which may unpack to anything, 64 MiB of text."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path

from infercanary.command.settings import UsageError

MAX_BYTES = 256 << 20
MAX_UNPACKED = 64 << 20
STANDARD_INPUT = "-"

_GZIP = b"\x1f\x8b"
_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"


def content(path: str) -> bytes:
    """Return the bytes of the text at ``path``; ``-`` is standard input.

    Args:
        path: A file, or ``-``; what is packed with gzip is unpacked.

    Raises:
        UsageError: It cannot be read, is too large, is empty, or is no text.
    """
    place = named(path)
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise UsageError(f"{place}: is a folder; name a file in it") from None
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{place}: cannot be read ({why}); check the path and its permissions") from None
    if data.startswith(_GZIP):
        data = _unpacked(place, data)
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{place}: larger than {MAX_BYTES >> 20} MiB; compare a part of it, such as its last {MAX_BYTES >> 20} MiB"
        )
    for start, what in _PACKED.items():
        if data.startswith(start):
            raise UsageError(f"{place}: packed with {what}; unpack it first")
    if data.startswith(_UTF16):
        try:
            data = data.decode("utf-16").encode()
        except UnicodeError:
            raise UsageError(f"{place}: damaged UTF-16; save it as UTF-8") from None
    data = data.removeprefix(_UTF8_MARK)
    if not data.strip():
        raise UsageError(f"{place}: is empty; give a journal, or numbers")
    return data


def named(path: str) -> str:
    """Return the name of ``path`` for messages.

    Args:
        path: A file, or ``-``.
    """
    return "standard input" if path == STANDARD_INPUT else path


def _unpacked(place: str, data: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            data = file.read(MAX_UNPACKED + 1)
    except (EOFError, OSError, zlib.error):
        raise UsageError(f"{place}: gzip that is cut off or damaged; fetch or pack it again") from None
    if len(data) > MAX_UNPACKED:
        raise UsageError(
            f"{place}: unpacks to more than {MAX_UNPACKED >> 20} MiB; unpack it, and compare a part of it"
        )
    return data
