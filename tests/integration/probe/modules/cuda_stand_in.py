"""Builds a stand-in for ``libcuda.so.1``, which the real ctypes code loads in tests."""

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


def build(folder, *flags):
    """Compile the library into ``folder``, and return this folder for ``LD_LIBRARY_PATH``."""
    return _compile(folder, "libcuda.so.1", SOURCE, *flags)


def build_cupti(folder):
    return _compile(folder, "libcupti.so.19", SOURCE.with_name("cupti.c"), f"-L{folder}", "-l:libcuda.so.1")


def build_nvml(folder, *flags):
    """Compile the stand-in for NVML, which reads its script from ``$FAKE_NVML``."""
    return _compile(folder, "libnvidia-ml.so.1", SOURCE.parents[1] / "fake_nvml/nvml.c", *flags)


def _compile(folder, name, source, *flags):
    command = [str(CC), "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
    subprocess.run([*command, str(source), *flags, "-o", str(folder / name)], check=True)
    return folder
