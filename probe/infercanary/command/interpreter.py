"""Starts Python with the working folder behind the libraries.

``python -m`` and ``python -c`` put the working folder first, and an image's PYTHONPATH often names it: an app's
``types.py`` or ``yaml.py`` would replace the library's. PYTHONSAFEPATH needs Python 3.11 and leaves PYTHONPATH as it
is.
"""

from __future__ import annotations

import sys

LIBRARIES_FIRST = (
    "import os, sys; exists = os.path.exists; "
    "here = lambda path: exists('.') and exists(path) and os.path.samefile(path, '.'); "
    "sys.path[:] = [*(path for path in sys.path if not here(path or '.')), '']"
)
"""Code that moves the working folder to the end of the search path; it imports nothing new."""

_RUN_MODULE = (
    f"{LIBRARIES_FIRST}; del sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def libraries_first() -> None:
    """Move the working folder behind the libraries in this process."""
    exec(LIBRARIES_FIRST, {})  # noqa: S102 - the same code as in a child


def run_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module as ``python -m`` does, with the libraries first.

    Args:
        module: Full name of a module, or of a package with ``__main__``.
        arguments: Arguments of the module.
    """
    return [python, "-c", _RUN_MODULE, module, *arguments]
