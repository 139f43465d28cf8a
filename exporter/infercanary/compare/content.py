"""Reads a file or standard input: at most 256 MiB of text, or 64 MiB of text unpacked from gzip."""

from __future__ import annotations

import gzip
import io
import zlib

import click

from infercanary.command.settings import UsageError

MAX_BYTES = 256 << 20
MAX_UNPACKED = 64 << 20
STANDARD_INPUT = "-"


def content(path: str) -> bytes:
    """Return the text at ``path`` as bytes; ``-`` is standard input.

    Args:
        path: A file, or ``-``; gzip is unpacked.

    Raises:
        UsageError: The content cannot be read, is too large, is empty, or is not text.
    """
    place = named(path)
    most = MAX_BYTES
    try:
        with click.open_file(path, "rb") as file:
            data: bytes = file.read(most + 1)
        if data.startswith(b"\x1f\x8b"):
            most = MAX_UNPACKED
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most + 1)
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            data = data.decode("utf-16").encode()
    except (UnicodeError, EOFError, gzip.BadGzipFile, zlib.error):
        raise UsageError(
            f"{place}: damaged gzip or UTF-16; download the file again, or save the file as UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # a path with a NUL character raises ValueError
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{place}: cannot be read ({why}); choose a readable file") from None
    if len(data) > most:
        raise UsageError(
            f"{place}: more than {most >> 20} MiB of text; use a part of the file, such as its last lines"
        )
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise UsageError(f"{place}: is empty; give a journal, or numbers")
    return data


def named(path: str) -> str:
    """Return the name of a file or of standard input for messages.

    Args:
        path: A file, or ``-``.
    """
    return "standard input" if path == STANDARD_INPUT else path
