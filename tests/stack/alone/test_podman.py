"""Podman through its Docker-compatible socket: a container is found, ends, and comes back as another image."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import ROOT, eventually, get

# What Debian's Podman wants on a machine without systemd; elsewhere it changes nothing that is tested.
CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
CONFIG = """
canaries: {product: {target: "work:Work"}}
interval_seconds: 0.5
duty_cap: 1
controls: false
samplers: {nvml: false}
listen: unix:///probes/probe.sock
"""
WORK = """
from infercanary.probe.timing import HostClock
class Work:
    clock = HostClock()
    def open(self): pass
    def run(self, phase):
        with phase("compute"):
            return sum(range(1000))
    def values(self, result): return [float(result)]
    def environment(self): return {}
    def close(self): pass
"""
Podman = Callable[..., str]


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    """Podman with a storage of its own."""
    run = tempfile.mkdtemp(prefix="podman-")  # Podman takes no longer path than one of 50 characters
    if not shutil.which("podman") or os.geteuid() != 0:
        pytest.skip("no Podman here, or not root")
    (tmp_path / "containers.conf").write_text(CONF)
    environment = {**os.environ, "CONTAINERS_CONF": str(tmp_path / "containers.conf")}
    base = [
        "podman",
        "--root",
        f"{tmp_path}/storage",
        "--runroot",
        run,
        "--storage-driver",
        "vfs",
    ]

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [*base, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # An image of nothing but links: a container gets this machine's own programs.
    with tarfile.open(tmp_path / "bare.tar", "w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    service = subprocess.Popen(
        [*base, "system", "service", "--time", "0", f"unix://{tmp_path}/podman.sock"], env=environment
    )
    try:
        yield call
    finally:
        call("rm", "--all", "--force", "--time", "0")
        service.terminate()
        service.wait(20)
        shutil.rmtree(run)


def test_a_container_is_found_ends_and_comes_back_as_another_image(podman: Podman, tmp_path: Path) -> None:
    for number in (1, 2):
        podman("import", str(tmp_path / "bare.tar"), "--message", str(number), f"bare:{number}")
    probes = tmp_path / "probes"
    probes.mkdir()
    (probes / "probe.yaml").write_text(CONFIG)
    (probes / "work.py").write_text(WORK)
    seen = {"/usr", sys.base_prefix, str(Path(sys.prefix).resolve()), str(ROOT)}
    seen |= {str(Path(sys.modules["infercanary.command"].__path__[0]).parents[2])}
    mounts = [f"--volume={folder}:{folder}:ro" for folder in sorted(seen)]

    def start(number: int) -> None:
        podman(
            "run", "--detach", "--replace", "--name", "app", "--no-healthcheck", "--network", "none", *mounts,
            f"--volume={probes}:/probes", "--workdir", "/probes", "--label", "infercanary.enable=true",
            "--label", f"infercanary.socket=unix://{probes}/probe.sock", f"bare:{number}",
            f"{Path(sys.prefix).resolve()}/bin/python", "-m", "infercanary", "probe", "--config", "/probes/probe.yaml",
        )  # fmt: skip

    def metric(pattern: str) -> str | None:
        found = re.search(pattern, get(f"http://127.0.0.1:{port}/metrics").decode())
        return found and found[1]

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    up = r"infercanary_up\{[^}]*\} (\S+)"
    with ExitStack() as stack:
        start(1)
        (tmp_path / "exporter.yaml").write_text("poll_seconds: 0.5\n")
        exporter = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "infercanary", "exporter", "--listen", f"127.0.0.1:{port}",
                 "--config", str(tmp_path / "exporter.yaml")],
                env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/podman.sock"},
            )
        )  # fmt: skip
        stack.callback(exporter.terminate)
        eventually("it is found", 30, lambda: metric(up) in ("1", "1.0"))
        image = r'infercanary_container_info\{[^}]*image="([^"]*)"'
        assert metric(image) == "bare:1", "localhost/ is not shown"
        podman("stop", "--time", "1", "app")
        eventually("it is gone, by an event", 20, lambda: metric(up) is None)
        start(2)
        eventually(
            "it is another image", 30, lambda: metric(image) == "bare:2" and metric(up) in ("1", "1.0")
        )
