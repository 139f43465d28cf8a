"""Checks whether a user's file can be read or written. The answer is the reason why not, as one line of text.

The functions never raise. Methods of :class:`pathlib.Path`, such as ``is_file``, raise for folders without permission
and for long names.
"""

from __future__ import annotations

import errno
import os


def unreadable(path: str | os.PathLike[str]) -> str:
    """Return the reason why a file cannot be read, such as ``no file `x` ``; empty if the file is readable."""
    try:
        with open(path, "rb"):
            return ""
    except OSError as error:
        if error.errno == errno.ENOENT:
            return f"no file `{path}`"
        return f"`{path}` cannot be read ({error.strerror})"
    except ValueError as error:  # the name contains a NUL
        return f"`{path}` is not a path ({error})"


def unwritable(path: str | os.PathLike[str]) -> str:
    """Return the reason why a file cannot be written, with the fix; empty if the file is writable. A missing file is
    writable if its folder is.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return f"`{path}` is a folder; name a file in it"
    if not os.path.isdir(folder):
        return f"no folder `{folder}`; create the folder, or mount a volume there"
    try:
        there = bool(os.stat(path))
    except FileNotFoundError:
        there = False
    except OSError as error:  # for example, the name is too long
        return f"`{path}` cannot be written ({error.strerror}); choose another path"
    if not os.access(path if there else folder, os.W_OK):
        return f"`{path}` cannot be written; make its folder writable for this user (uid {os.getuid()})"
    return ""
