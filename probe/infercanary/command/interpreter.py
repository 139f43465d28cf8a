"""Starts Python with the working folder behind the libraries.

``python -m`` and ``python -c`` put the working folder first, and an image's PYTHONPATH often names it: an app's
``types.py`` or ``yaml.py`` is then imported in place of the library. PYTHONSAFEPATH needs Python 3.11, and leaves
PYTHONPATH as it is.
"""

from __future__ import annotations

import sys

LIBRARIES_FIRST = (
    "import os, sys; exists = os.path.exists; "
    "here = lambda path: exists('.') and exists(path) and os.path.samefile(path, '.'); "
    "sys.path[:] = [*(path for path in sys.path if not here(path or '.')), '']"
)
"""Code that puts the working folder at the end of the search path; it imports nothing new."""

_RUN_MODULE = (
    f"{LIBRARIES_FIRST}; del sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def libraries_first() -> None:
    """Search modules in the working folder, but behind the libraries, in this process."""
    exec(LIBRARIES_FIRST, {})  # noqa: S102 - the same code as in a child


def run_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module as ``python -m`` does, with the libraries first.

    Args:
        module: Its full name, or a package's with ``__main__``.
        arguments: The module's.
        python: The interpreter.
    """
    return [python, "-c", _RUN_MODULE, module, *arguments]
