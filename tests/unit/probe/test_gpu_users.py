"""Processes of a container that use a GPU, with a simulated /proc."""

import pytest

from infercanary.probe.samplers.nvml import users
from tests.scenarios import typed

# Open files of processes, and number of processes that compute on each GPU. Processes that use only NVML,
# like the probe, do not count. In the host's PID namespace, only processes of the container count. Processes
# with too many files make the number unknown.
PROCESSES = """
""                                                     | 0 | 0
null nvidia-uvm nvidia0 nvidiactl                      | 1 | 0
nvidia-uvm nvidia0 nvidia1                             | 1 | 1
nvidiactl nvidia0                                      | 0 | 0
nvidia-uvm nvidia0, nvidia-uvm nvidia0 nvidia1, null   | 2 | 1
nvidia-uvm nvidia0 other, nvidia-uvm nvidia0           | 1 | 0
ended, nvidia-uvm nvidia10                             | 0 | 0
null null null                                         | ~ | ~
unreadable                                             | ~ | ~
"""


@pytest.mark.parametrize(("processes", "on_0", "on_1"), typed(PROCESSES))
def test_processes_of_the_container_that_compute_on_the_gpu(tmp_path, monkeypatch, processes, on_0, on_1):
    monkeypatch.setattr(users, "_MOST_FILES", 2 if processes == "null null null" else 99)
    (tmp_path / "meminfo").touch()
    for pid, files in enumerate(["self", *processes.split(", ")]):
        folder = tmp_path / (files if files == "self" else str(pid))
        folder.mkdir()
        if files == "ended":
            continue
        (folder / "cgroup").write_bytes(b"0::/../other\n" if "other" in files else b"0::/\n")
        if files == "unreadable":
            (folder / "fd").touch()  # an error other than the end of a process
            continue
        (folder / "fd").mkdir()
        for number, file in enumerate(files.split()):
            (folder / f"fd/{number}").symlink_to(f"/dev/{file}")
    assert [users.own_processes(f"/dev/nvidia{gpu}", tmp_path) for gpu in (0, 1)] == [on_0, on_1]
    assert users.own_processes("/dev/nvidia0", tmp_path / "none") is None
