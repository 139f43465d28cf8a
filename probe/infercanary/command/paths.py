"""Why a file that a person named cannot be read or written: words for one line, and nothing raises.

Methods of :class:`pathlib.Path` such as ``is_file`` raise where a folder may not be searched, or a name is too long.
"""

from __future__ import annotations

import errno
import os


def unreadable(path: str | os.PathLike[str]) -> str:
    """Why ``path`` cannot be read.

    Args:
        path: As a person gave it.

    Returns:
        Such as ``no file `x` ``; empty where it is a file that can be read.
    """
    try:
        with open(path, "rb"):
            return ""
    except OSError as error:
        if error.errno == errno.ENOENT:
            return f"no file `{path}`"
        return f"`{path}` cannot be read ({error.strerror})"
    except ValueError as error:  # a NUL in it
        return f"`{path}` is no path ({error})"


def unwritable(path: str | os.PathLike[str]) -> str:
    """Why a file cannot be written, asked before minutes are spent: nothing is opened.

    Args:
        path: The file; it need not exist.

    Returns:
        With the fix; empty where it can be.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return f"`{path}` is a folder; name a file in it"
    if not os.path.isdir(folder):
        return f"no folder `{folder}`; make it, or mount a volume there"
    try:
        there = bool(os.stat(path))
    except FileNotFoundError:
        there = False
    except OSError as error:  # such as a name that is too long
        return f"`{path}` cannot be written ({error.strerror}); name another place"
    if not os.access(path if there else folder, os.W_OK):
        return f"`{path}` cannot be written; make its folder writable for this user (uid {os.getuid()})"
    return ""
