"""What a probe takes of memory never costs its tenant: ways to start it × troubles, in real containers with limits.

The container has 1,100 MiB, and the server in it 700. In each cell the server stays up (the same process, which
answers, and none of whose allocations failed), the kernel ends nothing, and the reason is in the log and at a real
exporter.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
import yaml
from harness import OWN_LABEL, PROJECT, ROOT, Stack, eventually, get, remove, run
from ports import free_port

pytestmark = (
    pytest.mark.campaign
)  # tests/integration/probe/test_memory_limits.py has limits by control groups in CI

MOUNTED = Path(__file__).parent / "memory"
LIMIT, HELD = 1100, 700  # MiB
OWN_LIMIT = 400  # of a probe that is alone in a container

NAME, ALONE = f"{PROJECT}-memory", f"{PROJECT}-memory-alone"
SERVER = ("python3", "/app/tenant.py")
PROBE = ("infercanary", "probe", "--config", "/app/probe.yaml")

Way = Literal["background", "beside", "exec", "inside", "alone"]
"""`probe & exec server`, `infercanary beside`, `docker exec … probe --once`, `Probe.start()`, another container."""
WAYS = ("background", "beside", "exec", "inside", "alone")
EACH_WAY = pytest.mark.parametrize("way", WAYS)

SMALL = {"target": "torch", "options": {"model": "models:relu", "inputs": [{"shape": [8]}]}}
"""Opened first, and when the server has what it holds; goes on, whatever happens to the other."""


def canary(model, *shape, batches=()):
    """The settings of one by torch, and of its sweep."""
    options = {"model": model, "inputs": [{"shape": list(shape or (8,))}]}
    sweep = {"sweep": {"batches": list(batches), "seconds": 1.5 * len(batches), "every_seconds": 1}}
    return {"target": "torch", "options": options, **(sweep if batches else {})}


class Scene:
    """A server in a container, a probe that was started in one of the ways, and an exporter that polls it."""

    def __init__(self, way, folder, image, stack):
        self._way = way
        self._folder = folder
        self._image = image
        self._stack = stack
        self._once: subprocess.Popen[str] | None = None

    def begin(self, big, small=SMALL, holds=HELD):
        """Start it all. The kind `exec` has no exporter: its probe answers none."""
        canaries = {"small": small, "big": big} if small else {"big": big}
        settings = {"interval_seconds": 0.5, "duty_cap": 1, "timeout_seconds": 5}
        (self._folder / "probe.yaml").write_text(
            yaml.safe_dump({**settings, "canaries": canaries}, sort_keys=False)
        )
        for path in self._folder.iterdir():
            path.chmod(0o644)
        if self._way != "exec":
            self._export(port := free_port())
            published = f"--publish=127.0.0.1:{port}:9798"
        here = [] if self._way in ("exec", "alone") else [published]
        command = {
            "background": ("sh", "-c", f"{' '.join(PROBE)} & exec {' '.join(SERVER)}"),
            "beside": ("infercanary", "beside", *PROBE[2:], "--", *SERVER),
        }
        inside = ["--env=PROBE=yes"] if self._way == "inside" else []
        options = ("--publish=127.0.0.1::8000", f"--env=HOLDS={holds}", *inside, *here)
        self._run(NAME, LIMIT, *options, command=command.get(self._way, SERVER))
        self._url = f"http://{run('docker', 'port', NAME, '8000/tcp').split()[0]}"
        self._first = eventually("the server answers", 60, self.server)
        if self._way != "exec":
            eventually("the exporter answers", 60, lambda: get(f"{self.exporter.exporter}/-/healthy"))
        self._state = state_of(NAME)
        if self._way == "alone":
            self._run(ALONE, OWN_LIMIT, published, command=PROBE)
        if self._way == "exec":
            self._once = self._stack.enter_context(
                subprocess.Popen(
                    ["docker", "exec", NAME, *PROBE, "--once"],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip

    @property
    def probe(self):
        """The container that it is in."""
        return ALONE if self._way == "alone" else NAME

    def server(self):
        """What it says of itself."""
        return json.loads(get(self._url))

    def take(self, mib, rate=100):
        """Let the server take more; back when it has."""
        asked = urllib.request.Request(f"{self._url}/take?mib={mib}&rate={rate}", method="POST")
        with urllib.request.urlopen(asked, timeout=60) as response:
            assert json.load(response)["failed"] == 0

    def value(self, name, **labels):
        """At the exporter; 0 where it has none."""
        return self.exporter.value(name, **labels) or 0.0

    def ran(self, name, runs=2):
        """Wait for runs of a canary that go well."""

        def count():
            return self.value("infercanary_runs_total", canary=name, outcome="ok")

        before = count()
        eventually(f"{name} runs", 60, lambda: count() >= before + runs)

    def out_of_memory(self, words):
        """Wait until the exporter and the log say it of the large canary, or the one command that was run does."""
        if self._once is not None:
            code, output = self.ended()
            assert code == 3 and re.search(words, output)
            return
        failed = {"canary": "big", "reason": "out_of_memory"}
        eventually("it is counted", 60, lambda: self.value("infercanary_run_failures_total", **failed) > 0)
        assert re.search(words, self.log()), self.log()

    def ended(self):
        """The exit code of the one command, and what it printed."""
        assert self._once is not None
        output, _ = self._once.communicate(timeout=90)
        print(output)
        return self._once.returncode, " ".join(output.split())

    def log(self):
        """Of the probe."""
        return run("sh", "-c", f"docker logs {self.probe} 2>&1")

    def goes_on(self):
        """The other canary runs, and the server is unharmed."""
        if self._way != "exec":
            self.ran("small")
        self.unharmed()

    def unharmed(self, kills=0):
        """The server is the one that was started, and lost nothing."""
        now = self.server()
        assert (now["pid"], now["started"], now["failed"]) == (self._first["pid"], self._first["started"], 0)
        assert state_of(NAME) == self._state
        assert oom_kills(NAME) == kills
        if self._way == "alone":
            assert oom_kills(ALONE) == kills

    def _run(self, name, limit, *options, command):
        files = (*MOUNTED.iterdir(), self._folder / "probe.yaml")
        run(
            *("docker", "run", "--detach", "--name", name, "--label", OWN_LABEL, "--no-healthcheck", "--init"),
            *(f"--volume={file}:/app/{file.name}:ro" for file in files if file.is_file()),
            *("--env=OMP_NUM_THREADS=1", f"--memory={limit}m", f"--memory-swap={limit}m"),
            *(*options, self._image, *command),
        )  # fmt: skip
        self._stack.callback(remove, name)
        self._stack.callback(lambda: print(name, run("sh", "-c", f"docker logs {name} 2>&1 || true")))

    def _export(self, probe):
        listen = f"127.0.0.1:{free_port()}"
        one = {"url": f"http://127.0.0.1:{probe}", "service": "s", "container": "c"}
        settings = {"listen": listen, "poll_seconds": 0.5, "discovery": "none", "probes": [one]}
        (self._folder / "exporter.yaml").write_text(yaml.safe_dump(settings))
        command = [
            sys.executable,
            "-m",
            "infercanary",
            "exporter",
            "--config",
            f"{self._folder}/exporter.yaml",
        ]
        process = self._stack.enter_context(subprocess.Popen(command, cwd=ROOT))
        self._stack.callback(process.terminate)
        self.exporter = Stack(f"http://{listen}")


def state_of(name):
    """What changes where a container is started anew, or ends."""
    [found] = json.loads(run("docker", "inspect", name))
    return (*(found["State"][key] for key in ("Running", "Pid", "StartedAt")), found["RestartCount"])


def oom_kills(name):
    """How many processes of the container the kernel ended for memory."""
    files = "/sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"
    text = run("docker", "exec", name, "sh", "-c", f"cat {files} 2>/dev/null || true")
    [found] = re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found)


@pytest.fixture
def scene(way, image, tmp_path):
    remove(NAME, ALONE)
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        path.chmod(0o755)
    with ExitStack() as stack:
        yield Scene(way, tmp_path, image, stack)


@EACH_WAY
def test_an_input_that_is_too_large(scene, way):
    scene.begin(canary("models:relu", 4, 3, 4000, 4000))
    scene.out_of_memory(
        r"canaries\.big\.inputs\[0\]: \[4, 3, 4000, 4000\] float32 needs 732 MiB; \d+ MiB are left"
    )
    scene.goes_on()


@EACH_WAY
def test_a_factory_that_grows(scene, way):
    scene.begin(canary("models:growing"))
    scene.out_of_memory(
        r"canaries\.big: opening it was ended after it took \d+ MiB, because only the reserve"
    )
    scene.goes_on()


@EACH_WAY
def test_memory_that_the_server_takes_later(scene, way):
    """Of a process of the probe's own: it gives way. In the server's own, the next round does, and sweeps with it."""
    if way == "inside":  # a round takes up to 50 MiB for a moment
        scene.begin(canary("models:relu", 1, 3, 512, 512, batches=(1, 2)), holds=500)
        swept = "infercanary_sweep_samples_per_second"
        eventually("it was swept", 60, lambda: scene.value(swept, canary="big", batch="2"))
        scene.take(300)
        scene.out_of_memory(
            r"canary small: runs are postponed: a run takes up to \d+ MiB for a short time; \d+ MiB are left"
        )
        assert scene.value("infercanary_canary_state", canary="small", state="out_of_memory") == 1
    elif way == "alone":
        scene.begin(canary("models:holding"))
        scene.ran("big")
        scene.take(300)
        scene.ran("big")
    elif way == "exec":
        scene.begin(canary("models:patient"))
        held = ("docker", "exec", NAME, "sh", "-c", "ls /tmp/patient || true")
        eventually("it holds memory", 60, lambda: run(*held))
        scene.take(300)
        scene.out_of_memory(r"canaries\.big: opening it was ended after it took \d+ MiB")
    else:
        scene.begin(canary("models:holding"), small=None)
        scene.ran("big")
        scene.take(300)
        scene.out_of_memory(r"canaries\.big: closed to free \d+ MiB, because only \d+ MiB of the container's")
    scene.unharmed()


@pytest.mark.parametrize("way", ["beside", "background", "exec"])
def test_a_factory_that_takes_all_in_an_instant(scene, way):
    """Nothing can be known before, nor seen in time: the kernel ends the probe, and not the server."""
    scene.begin(canary("models:leaping"))
    # To count kills is a process in the container: beside one that takes all, the kernel would end the server for it.
    if way == "exec":
        assert scene.ended()[0] == 137
    elif way == "beside":
        said = "the probe was killed, probably by the kernel because memory ran out"
        eventually("it says so", 80, lambda: said in scene.log())
    else:
        eventually("it was ended", 60, lambda: oom_kills(NAME))
    scene.unharmed(kills=oom_kills(NAME))
