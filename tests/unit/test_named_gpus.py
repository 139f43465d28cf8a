"""Pages, messages and files of containers name the GPU that a canary measures."""

import re
import subprocess

import pytest

from tests.programs import ROOT
from tests.scenarios import cases


def tracked():
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this folder is not a git repository")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


EVERY_GPU = re.compile(
    r"--gpus[ =,\"']*(?:all\b|\d)|^[ -]*count: *(?:all|\d+)$|NVIDIA_VISIBLE_DEVICES[ =:\"']*all\b"
)
"""Pattern for all GPUs of a host, or for a number of GPUs that Docker chooses. A canary measures one device,
so the container must name the device.
"""


def test_gpus_are_named():
    refused = "tests/unit/ab/test_conditions.py", "tests/unit/test_named_gpus.py", "benchmarks/results/"
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if not (name := str(path.relative_to(ROOT))).startswith(refused)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if EVERY_GPU.search(line)
    ]
    assert not found, "\n".join(["name the GPU, as in --gpus device=0:", *found])


@cases(["--gpus all", "--gpus=all", '"--gpus", "all"', "--gpus 1", "count: all"])
def test_text_that_names_no_gpu(text):
    assert EVERY_GPU.search(text)
    assert not EVERY_GPU.search("--gpus device=0,1")
