"""The exporter's image in Compose's limits is attacked by connections, beside 20 honest probes.

CI attacks in three ways, each for 30 s; ``make hostile`` in each way for ten minutes (``HOSTILE_SECONDS``).
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from attacks import ATTACKS
from harness import OWN_LABEL, ROOT, compose, remove, run
from onlooker import Watch

HOSTILE = ROOT / "tests/hostile"
IMAGE = "infercanary-exporter:dev"
PROBES = 20
MOST_BYTES = 300 << 20
"""Of the container: Compose gives it 512 MiB, and without an attack it has about 100."""
TLS = frozenset({"silent", "half_hellos"})
HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "256")


class Found(NamedTuple):
    """What honest users saw of one exporter."""

    attack: str
    watch: Watch
    quiet: float
    most: int
    alive: bool

    def __str__(self) -> str:
        return (
            f"{self.attack}: scrape p99 {self.watch.p99:.3f} s (without attack {self.quiet:.3f} s), memory "
            f"{self.most >> 20} MiB, {self.watch.value('infercanary_connections_refused_total'):g} connections refused"
        )


@pytest.fixture(scope="module")
def image() -> str:
    compose("build", "--quiet", "exporter", seconds=600)
    return IMAGE


def docker(*arguments: str) -> str:
    return run("docker", *arguments).strip()


def peak(container: str) -> int:
    """The most bytes that it had, by its control group; the kernel's name of it differs by version."""
    code = (
        "import glob; f = glob.glob('/sys/fs/cgroup/memory/memory.max_usage_in_bytes') + "
        "glob.glob('/sys/fs/cgroup/memory.peak'); print(open(f[0]).read())"
    )
    return int(docker("exec", container, "python", "-c", code))


@contextmanager
def started(image: str, folder: Path, attack: str) -> Iterator[tuple[str, str, str]]:
    """An exporter with its probes on a network of their own: its name, its URL, its network."""
    name = f"infercanary-hostile-{attack.replace('_', '-')}"
    with ExitStack() as stack:
        remove(name, f"{name}-probes", f"{name}-attacker")
        run("sh", "-c", f"docker network rm {name} 2>/dev/null || true")
        docker("network", "create", "--label", OWN_LABEL, name)
        stack.callback(lambda: docker("network", "rm", name))
        stack.callback(lambda: remove(name, f"{name}-probes", f"{name}-attacker"))
        common = (
            "--detach",
            "--label",
            OWN_LABEL,
            "--network",
            name,
            "--init",
            "--volume",
            f"{HOSTILE}:/hostile:ro",
        )
        docker("run", *common, "--name", f"{name}-probes", "--cpus", "0.5", "--entrypoint", "python", image,
               "/hostile/honest.py", "0.0.0.0", "9800", str(PROBES))  # fmt: skip
        listed = [
            {"url": f"http://{name}-probes:{9800 + n}", "service": "s", "container": f"c{n}"}
            for n in range(PROBES)
        ]
        (folder / "exporter.yaml").write_text(json.dumps({"discovery": "none", "probes": listed}))
        arguments = ["--config", "/etc/infercanary/exporter.yaml"]
        if attack in TLS:
            run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x", "-addext",
                "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "server.key"), "-out",
                str(folder / "server.pem"))  # fmt: skip
            (folder / "server.key").chmod(0o644)
            (folder / "web.yml").write_text(
                "tls_server_config: {cert_file: server.pem, key_file: server.key}"
            )
            arguments += ["--web-config", "/etc/infercanary/web.yml"]
        folder.chmod(0o755)
        docker("run", *common, *HARDENED, "--name", name, "--memory", "512m", "--memory-swap", "512m", "--cpus", "0.5",
               "--ulimit", "nofile=1024:1024", "--tmpfs", "/tmp", "--publish", "127.0.0.1::9797",
               "--volume", f"{folder}:/etc/infercanary:ro", image, *arguments)  # fmt: skip
        port = docker("port", name, "9797/tcp").rpartition(":")[2]
        yield name, f"http{'s' if attack in TLS else ''}://127.0.0.1:{port}", name


def attacked(image: str, folder: Path, ways: Sequence[str], seconds: float) -> Found:
    """Attack one exporter for so long, in each of these ways, and watch it."""
    folder.mkdir()
    attack = "-".join(ways)
    with started(image, folder, attack) as (name, url, network):
        context = ssl.create_default_context(cafile=str(folder / "server.pem")) if attack in TLS else None
        watch = Watch(url, PROBES, context)
        try:
            deadline = time.monotonic() + 60
            while watch.value("infercanary_up") < PROBES:
                assert time.monotonic() < deadline, (watch.faults[-3:], docker("logs", name))
                time.sleep(0.2)
            watch.clear()
            time.sleep(5)
            quiet = watch.p99
            watch.clear()
            command = [
                "docker",
                "run",
                "--rm",
                "--name",
                f"{name}-attacker",
                "--label",
                OWN_LABEL,
                "--network",
                network,
            ]
            command += ["--cpus", "0.5", "--ulimit", "nofile=4096:4096", "--volume", f"{HOSTILE}:/hostile:ro"]
            each = [f"python /hostile/attacks.py {way} {name} 9797 {seconds}" for way in ways]
            command += ["--entrypoint", "sh", image, "-c", " && ".join(each)]
            subprocess.run(command, check=True, timeout=seconds * len(ways) + 120)
        finally:
            watch.end()
        state = docker(
            "inspect", "--format", "{{.State.Running}} {{.RestartCount}} {{.State.OOMKilled}}", name
        )
        lines = docker("logs", name).splitlines()
        assert (
            len([line for line in lines if re.search("Traceback|connection was closed", line)]) < seconds + 10
        )
        found = Found(attack, watch, quiet, peak(name), state == "true 0 false")
    print(found)
    return found


def held(found: Found, p99_seconds: float = 1) -> None:
    """What nobody who connects may change."""
    assert found.alive
    assert found.watch.faults == [], found
    assert found.watch.p99 < p99_seconds, found
    assert found.most < MOST_BYTES, found
    assert found.watch.value("infercanary_connections_refused_total") > 0, found


@pytest.mark.quiet  # how long a scrape takes is judged
@pytest.mark.takes(110)
def test_three_attacks_for_half_a_minute_each(image: str, tmp_path: Path) -> None:
    """Half a minute has few scrapes, so its p99 is nearly its slowest: the limit is for a hang, not a figure."""
    held(attacked(image, tmp_path / "all", ("slow_readers", "silent_in_clear", "idle"), 30), p99_seconds=3)


@pytest.mark.campaign
@pytest.mark.parametrize("way", [*ATTACKS])
def test_hostile_for_ten_minutes(image: str, tmp_path: Path, way: str) -> None:
    held(attacked(image, tmp_path / way, [way], float(os.environ.get("HOSTILE_SECONDS", "600"))))
