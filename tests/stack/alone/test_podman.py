"""Podman through its Docker-compatible socket: a container appears, ends, and returns with another image."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from canaries import TARGET
from harness import ROOT, Stack, eventually, run
from ports import free_port

# On a machine without systemd, Debian's Podman needs these settings. Elsewhere, the settings do not affect
# the test.
CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
SETTINGS = {
    "canaries": {"product": {"target": "spin:Spin"}},
    "interval_seconds": 0.5, "duty_cap": 1, "controls": False, "samplers": {"nvml": False},
    "listen": "unix:///probes/probe.sock",
}  # fmt: skip
PYTHON = f"{Path(sys.prefix).resolve()}/bin/python"
Podman = Callable[..., str]


@pytest.fixture
def podman(tmp_path):
    if not shutil.which("podman") or os.geteuid() != 0:
        pytest.skip("needs Podman and root")
    (tmp_path / "containers.conf").write_text(CONF)
    conf = str(tmp_path / "containers.conf")
    with tempfile.TemporaryDirectory(prefix="podman-") as runs:  # Podman limits the path to 50 characters
        base = ["podman", "--root", f"{tmp_path}/storage", "--runroot", runs, "--storage-driver", "vfs"]
        call = lambda *arguments: run(*base, *arguments, CONTAINERS_CONF=conf).strip()  # noqa: E731
        service = subprocess.Popen(
            [*base, "system", "service", "--time", "0", f"unix://{tmp_path}/podman.sock"],
            env={**os.environ, "CONTAINERS_CONF": conf},
        )
        try:
            yield call
        finally:
            call("rm", "--all", "--force", "--time", "0")
            service.terminate()
            service.wait(20)


def test_a_container_is_found_ends_and_comes_back_as_another_image(podman, tmp_path):
    # An image with nothing but symbolic links to /usr: its container uses this machine's programs.
    with tarfile.open(tmp_path / "bare.tar", "w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    for number in (1, 2):
        podman("import", str(tmp_path / "bare.tar"), "--message", str(number), f"bare:{number}")
    probes = tmp_path / "probes"
    probes.mkdir()
    (probes / "probe.yaml").write_text(yaml.safe_dump(SETTINGS))
    (probes / "spin.py").write_text(TARGET)
    seen = {"/usr", sys.base_prefix, str(Path(sys.prefix).resolve()), str(ROOT)}
    seen |= {str(Path(sys.modules["infercanary.command"].__path__[0]).parents[2])}
    mounts = [f"--volume={folder}:{folder}:ro" for folder in sorted(seen)]

    def start(number):
        podman(
            "run", "--detach", "--replace", "--name", "app", "--no-healthcheck", "--network", "none", *mounts,
            f"--volume={probes}:/probes", "--workdir", "/probes", "--label", "infercanary.enable=true",
            "--label", f"infercanary.socket=unix://{probes}/probe.sock", f"bare:{number}",
            PYTHON, "-m", "infercanary", "probe", "--config", "/probes/probe.yaml",
        )  # fmt: skip

    listen = f"127.0.0.1:{free_port()}"
    exporter = Stack(f"http://{listen}")

    def images():
        up = {labels["container"] for labels, on in exporter.samples("infercanary_up") if on}
        infos = exporter.samples("infercanary_container_info")
        return [labels["image"] for labels, _ in infos if labels["container"] in up]

    with ExitStack() as stack:
        start(1)
        (tmp_path / "exporter.yaml").write_text("poll_seconds: 0.5\n")
        options = ("--listen", listen, "--config", str(tmp_path / "exporter.yaml"))
        process = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "exporter", *options],
            env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/podman.sock"},
        )
        stack.enter_context(process)
        stack.callback(process.terminate)
        # Podman puts `localhost/` before the name; the exporter removes this prefix.
        eventually("the container is found", 30, lambda: images() == ["bare:1"])
        podman("stop", "--time", "1", "app")
        eventually("an event removes the container", 20, lambda: not exporter.samples("infercanary_up"))
        start(2)
        eventually("the container has another image", 30, lambda: images() == ["bare:2"])
