"""Builds the stand-in for ``libcuda.so.1``, for tests that run the real ctypes code over it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "fake_cuda" / "cuda.c"
CC = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")

needs_cc = pytest.mark.skipif(
    CC is None, reason="the stand-in for CUDA needs a C compiler: apt-get install gcc"
)


def build(folder: Path, *flags: str) -> Path:
    """Compile it into ``folder``, which is then for ``LD_LIBRARY_PATH``."""
    command = [str(CC), "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags, str(SOURCE)]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


def build_cupti(folder: Path) -> Path:
    """Compile the stand-in for CUPTI beside that of CUDA, which is there already."""
    command = [
        str(CC),
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        str(SOURCE.with_name("cupti.c")),
    ]
    subprocess.run(
        [*command, "-o", str(folder / "libcupti.so.19"), f"-L{folder}", "-l:libcuda.so.1"], check=True
    )
    return folder
