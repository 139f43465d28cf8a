"""A probe's memory never harms the server: each way to start a probe, each trouble, in real containers with
limits.

The container has 1,100 MiB, of which the server holds 700. In each case the server stays up (the same process
answers, and no allocation fails), the kernel kills nothing, and log and exporter give the reason.
"""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from harness import OWN_LABEL, PROJECT, ROOT, Stack, eventually, get, remove, run
from ports import free_port

from tests.scenarios import cases

pytestmark = (
    pytest.mark.campaign
)  # in CI, tests/integration/probe/test_memory_limits.py sets limits by control groups

MOUNTED = Path(__file__).parent / "memory"
LIMIT, HELD = 1100, 700  # MiB
OWN_LIMIT = 400  # for a probe alone in a container

NAME, ALONE = f"{PROJECT}-memory", f"{PROJECT}-memory-alone"
SERVER = ("python3", "/app/tenant.py")
PROBE = ("infercanary", "probe", "--config", "/app/probe.yaml")

WAYS = ("background", "beside", "exec", "inside", "alone")
"""`probe & exec server`, `infercanary beside`, `docker exec … probe --once`, `Probe.start()`, another container."""
EACH_WAY = pytest.mark.parametrize("way", WAYS)

SMALL = {"target": "torch", "options": {"model": "models:relu", "inputs": [{"shape": [8]}]}}
"""The canary opens first, when the server holds its memory, and continues in spite of the large canary."""


def canary(model, *shape, batches=()):
    options = {"model": model, "inputs": [{"shape": list(shape or (8,))}]}
    sweep = {"sweep": {"batches": list(batches), "seconds": 1.5 * len(batches), "every_seconds": 1}}
    return {"target": "torch", "options": options, **(sweep if batches else {})}


class Scene:
    def __init__(self, way, folder, image, stack):
        self._way = way
        self._folder = folder
        self._image = image
        self._stack = stack
        self._once: subprocess.Popen[str] | None = None

    def begin(self, big, small=SMALL, holds=HELD):
        """Start server, probe and exporter. The way `exec` has no exporter, because its probe serves no report."""
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
        return ALONE if self._way == "alone" else NAME

    def server(self):
        return json.loads(get(self._url))

    def take(self, mib, rate=100):
        asked = urllib.request.Request(f"{self._url}/take?mib={mib}&rate={rate}", method="POST")
        with urllib.request.urlopen(asked, timeout=60) as response:
            assert json.load(response)["failed"] == 0

    def value(self, name, **labels):
        return self.exporter.value(name, **labels) or 0.0

    def ran(self, name, runs=2):
        def count():
            return self.value("infercanary_runs_total", canary=name, outcome="ok")

        before = count()
        eventually(f"{name} runs", 60, lambda: count() >= before + runs)

    def out_of_memory(self, words):
        """Wait until exporter and log report the large canary as out of memory; for `exec`, the command reports it."""
        if self._once is not None:
            code, output = self.ended()
            assert code == 3
            assert re.search(words, output)
            return
        failed = {"canary": "big", "reason": "out_of_memory"}
        eventually(
            "the failure is counted", 60, lambda: self.value("infercanary_run_failures_total", **failed) > 0
        )
        assert re.search(words, self.log()), self.log()

    def ended(self):
        output, _ = self._once.communicate(timeout=90)
        print(output)
        return self._once.returncode, " ".join(output.split())

    def log(self):
        return run("sh", "-c", f"docker logs {self.probe} 2>&1")

    def goes_on(self):
        if self._way != "exec":
            self.ran("small")
        self.unharmed()

    def unharmed(self, kills=0):
        """Check that the server did not restart, and that no allocation failed."""
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
        self._stack.callback(self._stack.enter_context(subprocess.Popen(command, cwd=ROOT)).terminate)
        self.exporter = Stack(f"http://{listen}")


def state_of(name):
    [found] = json.loads(run("docker", "inspect", name))
    return (*(found["State"][key] for key in ("Running", "Pid", "StartedAt")), found["RestartCount"])


def oom_kills(name):
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
    """A separate probe closes the large canary. In the server's process, the probe postpones runs and sweeps."""
    if way == "inside":  # a point of the sweep takes up to 50 MiB for a short time
        scene.begin(canary("models:relu", 1, 3, 512, 512, batches=(1, 2)), holds=500)
        swept = "infercanary_sweep_samples_per_second"
        eventually("the canary was swept", 60, lambda: scene.value(swept, canary="big", batch="2"))
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
        eventually("the probe holds memory", 60, lambda: run(*held))
        scene.take(300)
        scene.out_of_memory(r"canaries\.big: opening it was ended after it took \d+ MiB")
    else:
        scene.begin(canary("models:holding"), small=None)
        scene.ran("big")
        scene.take(300)
        scene.out_of_memory(r"canaries\.big: closed to free \d+ MiB, because only \d+ MiB of the container's")
    scene.unharmed()


@cases(["beside", "background", "exec"])
def test_a_factory_that_takes_all_in_an_instant(way, scene):
    """No thread sees this allocation in time, so the kernel kills the probe, but not the server."""
    scene.begin(canary("models:leaping"))
    # Each count of kills starts a process in the container. Beside a factory that takes all memory, the
    # kernel might then kill the server.
    if way == "exec":
        assert scene.ended()[0] == 137
    elif way == "beside":
        said = "the probe was killed, probably by the kernel because memory ran out"
        eventually("the entrypoint logs the kill", 80, lambda: said in scene.log())
    else:
        eventually("the probe was killed", 60, lambda: oom_kills(NAME))
    scene.unharmed(kills=oom_kills(NAME))
