"""A real limit on memory: what does not fit is refused, nobody is killed, and the other canary runs on."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
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


class Limited:
    """A probe in the control group, at work while the context lasts."""

    def __init__(self, group: Group, folder: Path, canaries: str) -> None:
        self.group = group
        self.log = folder / "log"
        config = folder / "probe.yaml"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        config.write_text(
            f"listen: {self._address}\ninterval_seconds: 0.1\nduty_cap: 1\ncanaries:\n{canaries}\n"
        )
        command = [sys.executable, "-m", "infercanary", "probe", "--config", str(config)]
        with self.log.open("w") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group.folder / "cgroup.procs"), *command],
                cwd=MODULES, stdout=output, stderr=output,
            )  # fmt: skip

    def until(self, condition: Callable[[Seen], Any], what: str) -> Seen:
        def seen() -> Seen | None:
            assert self._process.poll() is None, self.log.read_text()
            with suppress(OSError):
                found = fetch(f"http://{self._address}")
                return found if condition(found) else None
            return None

        found: Seen = until(seen, what, seconds=90)
        return found

    def lines(self, words: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if words in line]

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0 and self.group.kills() == 0


def test_an_input_that_is_too_large_costs_nobody_memory(group: Group, model: Path, tmp_path: Path) -> None:
    canaries = (
        f"  big: {{target: onnx, options: {{model: {model}, inputs: [{{shape: [4, 3, 4000, 4000]}}]}}}}\n"
        f"  small: {{target: onnx, options: {{model: {model}, inputs: [{{shape: [1, 3, 8, 8]}}]}}}}\n"
    )
    with Limited(group, tmp_path, canaries) as probe:
        first = probe.until(lambda s: s.runs("small", "ok") >= 3, "no run of the other")
        last = probe.until(lambda s: s.runs("small", "ok") > first.runs("small", "ok"), "the other stopped")
    assert last.state("big") == "failing"
    assert last.value("infercanary_run_failures_total", "big", "out_of_memory") == 1
    room = last.value("infercanary_memory_room_bytes")
    assert room is not None and 0 < room < 300 * MIB
    [why] = (p.labels for p in last.families["infercanary_canary_failure_info"].points)
    [logged] = probe.lines("inputs[0]")
    assert why[:2] == ("big", "out_of_memory") and logged.endswith(why[2])
    assert re.fullmatch(
        r"cannot be opened: canaries\.big\.inputs\[0\]: \[4, 3, 4000, 4000\] float32 needs 732 MiB; \d+ MiB are left "
        r"of the container's limit of 300 MiB, less 64 MiB in reserve; give a smaller shape, or grant more memory",
        why[2],
    ), why


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
    assert last.value("infercanary_sweep_missing_points_total", "c", "out_of_memory") == 1
    assert re.search(
        r"sweep of batch 40: out_of_memory: canaries\.c\.sweep: batch 40, by what batch 8 took, needs 2\d\d MiB; ",
        probe.log.read_text(),
    ), probe.log.read_text()
