"""Starts Python with a search path in which the libraries come before the working folder.

``python -m`` and ``python -c`` put the working folder first, and an image's PYTHONPATH often contains this folder.
Then an app's ``types.py`` or ``yaml.py`` would replace the library of the same name. PYTHONSAFEPATH does not help,
because it needs Python 3.11 and leaves PYTHONPATH unchanged.
"""

from __future__ import annotations

import sys

LIBRARIES_FIRST = (
    "import os, sys; exists = os.path.exists; "
    "here = lambda path: exists('.') and exists(path) and os.path.samefile(path, '.'); "
    "sys.path[:] = [*(path for path in sys.path if not here(path or '.')), '']"
)
"""Code that moves the working folder to the end of the search path. It imports only modules that are already loaded."""

_RUN_MODULE = (
    f"{LIBRARIES_FIRST}; del sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def libraries_first() -> None:
    """Move the working folder to the end of this process's module search path."""
    exec(LIBRARIES_FIRST, {})  # noqa: S102 - the same code as in a child


def run_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return a command that runs a module as ``python -m`` does, but with the libraries first in the search path.

    Args:
        module: Full name of a module, or of a package with ``__main__``.
        arguments: Arguments of the module.
    """
    return [python, "-c", _RUN_MODULE, module, *arguments]
