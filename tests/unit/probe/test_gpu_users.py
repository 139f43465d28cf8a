"""The processes of a container that hold a GPU, by a /proc that was made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from infercanary.probe.samplers.nvml import users

OWN, OTHER = b"0::/\n", b"0::/../other\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_bytes(OWN)
    (tmp_path / "meminfo").touch()
    return tmp_path


def process(proc: Path, pid: int, *files: str, cgroup: bytes = OWN) -> None:
    (proc / f"{pid}/fd").mkdir(parents=True)
    (proc / f"{pid}/cgroup").write_bytes(cgroup)
    for i, file in enumerate(files):
        (proc / f"{pid}/fd/{i}").symlink_to(file)


def test_those_that_compute_on_it(proc: Path) -> None:
    process(proc, 1, "/dev/null", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl")
    process(proc, 7, "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1")
    process(proc, 8, "/dev/nvidiactl", "/dev/nvidia0")  # NVML alone, as the probe
    process(proc, 9, "socket:[1]")
    assert users.own_processes("/dev/nvidia0", proc) == 2
    assert users.own_processes("/dev/nvidia1", proc) == 1
    assert users.own_processes("/dev/nvidia10", proc) == 0


def test_those_of_other_containers_are_none_of_its_own(proc: Path) -> None:
    """In the host's PID namespace all are seen."""
    process(proc, 1, "/dev/nvidia-uvm", "/dev/nvidia0", cgroup=OTHER)
    process(proc, 2, "/dev/nvidia-uvm", "/dev/nvidia0")
    assert users.own_processes("/dev/nvidia0", proc) == 1


def test_one_that_ends_meanwhile_is_none(proc: Path) -> None:
    (proc / "3").mkdir()
    assert users.own_processes("/dev/nvidia0", proc) == 0


def test_what_cannot_be_looked_into_is_not_known(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(proc, 1, "/dev/null", "/dev/null")
    monkeypatch.setattr(users, "_MOST_FILES", 1)
    assert users.own_processes("/dev/nvidia0", proc) is None, "too many files"
    assert users.own_processes("/dev/nvidia0", proc / "none") is None
    process(proc, 2)
    (proc / "2/fd").rmdir()
    (proc / "2/fd").touch()  # an error that is not that of a process which has ended
    assert users.own_processes("/dev/nvidia0", proc) is None
