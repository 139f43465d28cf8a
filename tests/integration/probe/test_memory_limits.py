"""A real limit on memory: what does not fit is refused, nobody is killed, and the other canary runs on."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from watching import MODULES, Seen, fetch, until

MIB = 1 << 20
MOUNT = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    """A control group of the test's own."""

    folder: Path

    def kills(self) -> int:
        """How many processes the kernel ended in it for memory."""
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (self.folder / name).read_text(), re.MULTILINE)
                assert found is not None
                return int(found[1])
        raise AssertionError("the kernel does not count them")


def made(name: str, size: int) -> Group:
    """Make one below this process's own, of v1 or v2; skip where that is not allowed."""
    paths = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    is_v2 = (MOUNT / "cgroup.controllers").exists()
    path = paths.get("" if is_v2 else "memory", "/").lstrip("/")
    above = (MOUNT if is_v2 else MOUNT / "memory") / path
    folder = (above if above.is_dir() else MOUNT) / name
    try:
        folder.mkdir()
        (folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(size))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    return Group(folder)


@pytest.fixture
def group() -> Iterator[Group]:
    found = made(f"infercanary-test-{os.getpid()}", 300 * MIB)
    yield found
    until(lambda: not (found.folder / "cgroup.procs").read_text(), "processes are left in the control group")
    found.folder.rmdir()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The relu of a tensor of any four dimensions."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kind, helper = onnx.TensorProto.FLOAT, onnx.helper
    x, y = (helper.make_tensor_value_info(name, kind, ["n", "c", "h", "w"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(made, str(tmp_path / "relu.onnx"))
    return tmp_path / "relu.onnx"


SERVER = """
import logging, signal, sys, time
from infercanary.probe.config import read
logging.basicConfig(level="INFO")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
read(sys.argv[1]).start()
while True:
    time.sleep(1)
"""


class Limited:
    """A probe in the control group, alone or inside a server's process; at work while the context lasts."""

    def __init__(self, group: Group, folder: Path, canaries: str, inside: bool = False) -> None:
        self.group = group
        self.log = folder / "log"
        config = folder / "probe.yaml"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        config.write_text(
            f"listen: {self._address}\ninterval_seconds: 0.1\nduty_cap: 1\ncanaries:\n{canaries}\n"
        )
        command = [sys.executable, "-m", "infercanary", "probe", "--config", str(config)]
        if inside:
            command = [sys.executable, "-c", SERVER, str(config)]
        with self.log.open("w") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group.folder / "cgroup.procs"), *command],
                cwd=MODULES, stdout=output, stderr=output,
            )  # fmt: skip

    def until(self, condition: Callable[[Seen], Any], what: str) -> Seen:
        def seen() -> Seen | None:
            assert self._process.poll() is None, self.log.read_text()
            with suppress(OSError, HTTPException):  # in the middle of an answer it may start anew
                found = fetch(f"http://{self._address}")
                return found if condition(found) else None
            return None

        found: Seen = until(seen, what, seconds=90)
        return found

    def score(self) -> str:
        return Path(f"/proc/{self._process.pid}/oom_score_adj").read_text()

    def lines(self, words: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if words in line]

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0 and self.group.kills() == 0


@pytest.mark.root
def test_an_input_that_is_too_large_costs_nobody_memory(group: Group, model: Path, tmp_path: Path) -> None:
    canaries = (
        f"  big: {{target: onnx, options: {{model: {model}, inputs: [{{shape: [4, 3, 4000, 4000]}}]}}}}\n"
        f"  small: {{target: onnx, options: {{model: {model}, inputs: [{{shape: [1, 3, 8, 8]}}]}}}}\n"
    )
    with Limited(group, tmp_path, canaries) as probe:
        first = probe.until(lambda s: s.runs("small", "ok") >= 3, "no run of the other")
        last = probe.until(lambda s: s.runs("small", "ok") > first.runs("small", "ok"), "the other stopped")
    assert last.state("big") == "out_of_memory"
    assert last.value("infercanary_run_failures_total", "big", "out_of_memory") == 1
    [why] = (p.labels for p in last.families["infercanary_canary_failure_info"].points)
    [logged] = probe.lines("inputs[0]")
    assert why[:2] == ("big", "out_of_memory") and logged.endswith(why[2])
    assert re.fullmatch(
        r"cannot be opened: canaries\.big\.inputs\[0\]: \[4, 3, 4000, 4000\] float32 needs 732 MiB; \d+ MiB are left "
        r"of the container's limit of 300 MiB, less 64 MiB in reserve; give a smaller shape, or grant more memory",
        why[2],
    ), why


@pytest.mark.root
@pytest.mark.campaign
def test_a_sweep_stops_before_the_kernel_has_to(group: Group, model: Path, tmp_path: Path) -> None:
    """A sample is 3 MiB, and as much comes out: 8 of them fit; of 40 the inputs would, and the outputs would not."""
    canaries = (
        f"  c: {{target: onnx, options: {{model: {model}, inputs: [{{shape: [1, 3, 512, 512]}}]}}, "
        "sweep: {batches: [1, 8, 40], seconds: 6, every_seconds: 1}}\n"
    )
    with Limited(group, tmp_path, canaries) as probe:
        last = probe.until(lambda s: s.value("infercanary_sweep_timestamp_seconds", "c"), "no sweep ended")
        probe.until(lambda s: s.runs("c", "ok") > last.runs("c", "ok"), "the canary stopped")
    points = {p.labels for p in last.families["infercanary_sweep_samples_per_second"].points}
    assert points == {("c", "1", "1"), ("c", "8", "1")}
    assert re.search(
        r"sweep of batch 40: out_of_memory: canaries\.c\.sweep: batch 40, by what batch 8 took, needs 2\d\d MiB; ",
        probe.log.read_text(),
    ), probe.log.read_text()


@pytest.mark.root
@pytest.mark.parametrize("inside", [False, True])
def test_what_grows_slowly_is_ended_before_the_kernel_has_to(
    group: Group, tmp_path: Path, inside: bool
) -> None:
    """The process starts anew without it, under the same pid, and says why; it is not tried again soon.

    A server's process interrupts the opening.
    """
    canaries = (
        "  grows: {target: growing:Growing, options: {mib: 600, rate: 200}}\n"
        "  small: {target: growing:Growing, options: {mib: 1}}\n"
    )
    with Limited(group, tmp_path, canaries, inside) as probe:
        last = probe.until(lambda s: s.runs("small", "ok") >= 3, "no run of the other")
        assert probe.score() == ("0\n" if inside else "1000\n")
        assert last.state("grows") == "out_of_memory"
        assert last.value("infercanary_run_failures_total", "grows", "out_of_memory") == 1
        [why] = (p.labels for p in last.families["infercanary_canary_failure_info"].points)
        time.sleep(1)
        probe.until(lambda s: s.runs("small", "ok") > last.runs("small", "ok"), "the other stopped")
    assert why[:2] == ("grows", "out_of_memory")
    [logged] = probe.lines("cannot be opened")  # once: it was not tried again
    found = re.search(
        r"canary grows: cannot be opened: canaries\.grows: opening it was ended when it had taken (\d+) MiB, with "
        r"nothing left of the container's limit of 300 MiB but the 64 MiB in reserve; take a smaller model or input, "
        r"or grant more memory$", logged,
    )  # fmt: skip
    assert found is not None and 100 < int(found[1]) < 240, logged


@pytest.mark.root
def test_where_the_kernel_ended_the_probe_the_entrypoint_says_it_and_waits_long(
    group: Group, tmp_path: Path
) -> None:
    """It takes all in an instant, in C code that keeps the interpreter's lock: nobody could look meanwhile."""
    (tmp_path / "probe.yaml").write_text(
        "listen: 127.0.0.1:0\ncanaries: {leaps: {target: growing:Leaping, options: {mib: 900}}}\n"
    )
    log, served = tmp_path / "log", tmp_path / "served"
    command = [sys.executable, "-m", "infercanary", "beside", "--config", str(tmp_path / "probe.yaml"), "--"]
    server = ["sh", "-c", f"trap 'exit 7' TERM; touch {served}; while :; do sleep 0.1; done"]
    with log.open("w") as output:
        process = subprocess.Popen(
            ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group.folder / "cgroup.procs"), *command, *server],
            cwd=MODULES, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: "it is started again" in log.read_text(), "the probe was not ended", seconds=60)
        assert served.exists() and process.poll() is None
    finally:
        process.terminate()
        assert process.wait(30) == 7
    assert group.kills() == 1
    assert "the probe was killed, by the kernel where memory was used up" in log.read_text()


class Tenant:
    """A server in the same control group, which takes memory when the test says so."""

    def __init__(self, group: Group, mib: int, rate: float) -> None:
        code = (
            "import sys, time\nsys.stdin.readline()\nheld = []\n"
            f"for n in range({mib}):\n held.append(bytearray(b'x' * {MIB}))\n time.sleep(1 / {rate})\n"
            "print('has it', flush=True)\nsys.stdin.readline()"
        )
        self._process = subprocess.Popen(
            ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group.folder / "cgroup.procs"), sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def take(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "has it\n"

    def __enter__(self) -> Tenant:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.root
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_server_takes_later_is_given_to_it(group: Group, tmp_path: Path, inside: bool) -> None:
    """The largest canary makes room; the smaller one goes on."""
    canaries = (
        "  large: {target: growing:Growing, options: {mib: 120, rate: 1000}}\n"
        "  small: {target: growing:Growing, options: {mib: 10, rate: 1000}}\n"
    )
    with Tenant(group, 165, 100) as tenant, Limited(group, tmp_path, canaries, inside) as probe:
        first = probe.until(lambda s: min(s.runs(c, "ok") for c in ("large", "small")), "no run of both")
        tenant.take()
        probe.until(
            lambda s: (
                (s.state("large"), s.state("small") in ("warming", "steady")) == ("out_of_memory", True)
                and (s.report.boot_id == first.report.boot_id) == inside
                and s.runs("small", "ok") >= (first.runs("small", "ok") + 3 if inside else 1)
            ),
            "it did not give way",
        )
    [logged] = probe.lines("it was closed")
    assert re.search(
        r"canaries\.large: it was closed to give \d+ MiB back, with nothing left of the container's limit of 300 MiB "
        r"but 38 MiB; it is opened again in an hour; grant more memory$", logged,
    ), logged  # fmt: skip
