"""Libraries that do not fit: explains errors of the loader and of engines, and gives fixes."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from glob import glob
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, get_args

from infercanary.command.settings import UsageError
from infercanary.probe.deadline import one_line
from infercanary.probe.memory import place_of
from infercanary.probe.targets.failures import Failure

Misfit = Literal["no_libraries", "version_mismatch"]
MISFITS: tuple[Misfit, ...] = get_args(Misfit)
"""Failure reasons that concern libraries."""

# Messages of glibc: elf/dl-load.c, dl-lookup.c and dl-version.c. `not found in the system path` is from torch, which
# searches CUDA's wheels itself (torch/__init__.py, _preload_cuda_deps).
_MISSING = re.compile(r"([\w+.-]+?\.so)((?:\.\d+)*): cannot open shared object file")
_UNLOADABLE = re.compile(
    r"cannot open shared object file|failed to map segment from shared object|\.so\S* not found in the system path"
    r"|invalid ELF header|file too short|wrong ELF class"
)
# Sources: https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html#cudnnstatus-t and
# cuda.h. UNSUPPORTED_PTX_VERSION also means another version: minor-version compatibility excludes code that the driver
# must compile.
_OTHER_VERSION = re.compile(
    r"undefined symbol|version [`'][^']+' not found|cuDNN version (?:incompatibility|mismatch)|VERSION_MISMATCH"
    r"|UNSUPPORTED_PTX_VERSION|unsupported toolchain|driver version is insufficient|driver on your system is too old"
)
_FOLDERS = """
    /lib /lib64 /usr/lib /usr/lib64 /lib/*-linux-gnu /usr/lib/*-linux-gnu /usr/local/lib /usr/local/cuda*/lib64
    /usr/local/cuda*/targets/*/lib /opt/*/lib /usr/local/lib/*-linux-gnu
"""
_WHEELS = ("nvidia/*/lib", "torch/lib", "tensorrt_libs")

_first_words: dict[str, str] = {}  # engine → message of the first failed import


class Found(NamedTuple):
    """Reason why libraries do not fit together, and the fix."""

    reason: Misfit
    fix: str


def imported(name: str, install: str) -> ModuleType:
    """Import an engine.

    Args:
        name: Name of the engine's module, which may already be imported.
        install: Install command, for the message if the module is not installed.

    Raises:
        UsageError: The module is not installed.
        Failure: The module is installed and cannot be loaded: `no_libraries` or `version_mismatch`.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise UsageError(f"{name} cannot be imported ({error}); {install}") from None
        found, words = Found("no_libraries", f"install `{error.name}`, which {name} needs"), str(error)
    except Exception as error:
        if place_of(error) is not None:
            raise
        # A failed first import leaves modules behind. A second import would therefore fail with another, misleading
        # error.
        words = _first_words.setdefault(name, one_line(error).removeprefix("ImportError: "))
        found = misfit(words) or Found("no_libraries", f"the module is installed, but broken: {install}")
    raise Failure(found.reason, f"{name} cannot be imported ({words}); {found.fix}")


def is_installed(distribution: str) -> bool:
    """True if the distribution's metadata is installed, even if its files are damaged.

    Args:
        distribution: Name on PyPI.
    """
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def misfit(words: str) -> Found | None:
    """Interpret an error message of the loader or an engine.

    Args:
        words: Message, such as ``libcudart.so.11.0: cannot open shared object file: No such file or directory``.

    Returns:
        The reason and the fix; None if the message is about something else.
    """
    if missing := _MISSING.search(words):
        return _missing(*missing.groups())
    if _OTHER_VERSION.search(words):
        return Found(
            "version_mismatch",
            "one of these libraries has another version than the others: install libraries of one "
            f"release{_searched()}",
        )
    if _UNLOADABLE.search(words):
        return Found("no_libraries", f"install the libraries for which the engine was built{_searched()}")
    return None


def _missing(stem: str, version: str) -> Found:
    """Search for a library that the loader did not find, and for other versions of it."""
    paths = [path for folder in _folders() for path in sorted(folder.glob(f"{stem}*"))]
    for path in paths:
        if path.name == f"{stem}{version}":
            return Found(
                "no_libraries",
                f"the library is in {path.parent}, where the loader does not search: add this folder to "
                f"LD_LIBRARY_PATH{_searched()}",
            )
    for path in paths:
        have = path.name.removeprefix(f"{stem}.")
        if version and have[:1].isdigit() and have.split(".")[0] != version.split(".")[1]:
            return Found(
                "version_mismatch",
                f"the engine needs version {version[1:]}, but {path.parent} has {have}: install the version for "
                "which the engine was built",
            )
    return Found("no_libraries", f"install the libraries for which the engine was built{_searched()}")


def _searched() -> str:
    path = os.environ.get("LD_LIBRARY_PATH", "")
    return f" (LD_LIBRARY_PATH is {path[:80]})" if path else ""


def _folders() -> Iterator[Path]:
    """Yield the folders that may hold libraries, in the order in which the loader searches."""
    yield from map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    wheels = (f"{site}/{wheel}" for site in sys.path if site for wheel in _WHEELS)
    for pattern in (*_FOLDERS.split(), *wheels):
        yield from map(Path, sorted(glob(pattern)))
