"""A real memory limit: the probe refuses work that does not fit, and the other canary continues."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from control_group import limited
from fresh import running
from probe_process import PROBE, ProbeProcess
from watching import MODULES, until

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def group():
    with limited(300 * MIB) as made:
        yield made


@pytest.fixture
def model(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.onnx_models import save

    tensor = onnx.TensorProto.FLOAT, ["n", "c", "h", "w"]
    return save(tmp_path / "relu.onnx", "Relu", tensor, tensor)


SERVER = """
import logging, signal, sys, time
from infercanary.probe.config import read
logging.basicConfig(level="INFO")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
read(sys.argv[2]).start()
while True:
    time.sleep(1)
"""


class Limited(ProbeProcess):
    def __init__(self, group, folder, canaries, inside=False):
        self.group = group
        command = [sys.executable, "-c", SERVER] if inside else [*PROBE]
        super().__init__(folder, canaries, command=group.joining(*command))

    def lines(self, words):
        return [line for line in self.output().splitlines() if words in line]

    def goes_on(self, canary, since):
        return self.ran(canary, since.runs(canary, "ok") + 1)

    def __exit__(self, *_):
        try:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(60) == 0
            assert self.group.kills() == 0
        finally:
            super().__exit__()


def why(seen, canary):
    """Return the reason for the state out_of_memory, after a check that the log contains it once."""
    assert seen.state(canary) == "out_of_memory"
    assert seen.value("infercanary_run_failures_total", canary, "out_of_memory") == 1
    [labels] = (point.labels for point in seen.families["infercanary_canary_failure_info"].points)
    assert labels[:2] == (canary, "out_of_memory")
    return labels[2]


def test_an_input_that_is_too_large_costs_nobody_memory(group, model, tmp_path):
    canary = f"{{target: onnx, options: {{model: {model}, inputs: [{{shape: SHAPE}}]}}}}"
    large, small = (canary.replace("SHAPE", shape) for shape in ("[4, 3, 4000, 4000]", "[1, 3, 8, 8]"))
    with Limited(group, tmp_path, f"{{big: {large}, small: {small}}}") as probe:
        last = probe.goes_on("small", since=probe.ran("small", 3))
    [logged] = probe.lines("inputs[0]")
    assert logged.endswith(why(last, "big"))
    assert re.fullmatch(
        r"cannot be opened: canaries\.big\.inputs\[0\]: \[4, 3, 4000, 4000\] float32 needs 732 MiB; \d+ MiB are left "
        r"of the container's limit of 300 MiB, less 64 MiB in reserve; .*",
        why(last, "big"),
    )


@pytest.mark.parametrize("inside", [False, True])
def test_slow_growth_is_ended_before_the_kernel_must_kill(group, tmp_path, inside):
    """The process restarts with the same pid, leaves this canary out, reports the reason, and does not retry
    soon.

    A server's process does not restart: its probe interrupts the opening.
    """
    growing = "target: growing:Growing, options: {mib"
    with Limited(
        group, tmp_path, f"{{grows: {{{growing}: 600, rate: 200}}}}, small: {{{growing}: 1}}}}}}", inside
    ) as probe:
        last = probe.ran("small", 3)
        score = Path(f"/proc/{probe.process.pid}/oom_score_adj").read_text()
        assert score == ("0\n" if inside else "1000\n")
        assert "opening it was ended" in why(last, "grows")
        time.sleep(1)
        probe.goes_on("small", since=last)
    [logged] = probe.lines("cannot be opened")  # one line, because there is no second attempt
    found = re.search(
        r"canary grows: cannot be opened: canaries\.grows: opening it was ended after it took (\d+) MiB, because "
        r"only the reserve of 64 MiB of the container's limit of 300 MiB was left; ", logged,
    )  # fmt: skip
    assert found is not None and 100 < int(found[1]) < 240, logged


def test_after_a_memory_kill_the_entrypoint_logs_it_and_waits_long(group, tmp_path):
    """The canary allocates all memory in C code that holds the interpreter's lock, so no thread can check the
    memory.
    """
    (tmp_path / "probe.yaml").write_text(
        "listen: 127.0.0.1:0\ncanaries: {leaps: {target: growing:Leaping, options: {mib: 900}}}\n"
    )
    log, served = tmp_path / "log", tmp_path / "served"
    command = [sys.executable, "-m", "infercanary", "beside", "--config", str(tmp_path / "probe.yaml"), "--"]
    server = ["sh", "-c", f"trap 'exit 7' TERM; touch {served}; while :; do sleep 0.1; done"]
    with log.open("w") as output:
        process = subprocess.Popen(
            group.joining(*command, *server),
            cwd=MODULES, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: "it is started again" in log.read_text(), "the probe was not ended", seconds=60)
        assert served.exists()
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(30) == 7
    assert group.kills() == 1
    assert "the probe was killed, probably by the kernel because memory ran out" in log.read_text()


# A server in the same control group; a signal makes it allocate 165 MiB.
TENANT = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
held = []
for _ in range(165):
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.01)
print("has it", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("inside", [False, True])
def test_a_server_gets_memory_that_it_takes_later(group, tmp_path, inside):
    growing = "target: growing:Growing, options: {rate: 1000, mib"
    canaries = f"{{large: {{{growing}: 120}}}}, small: {{{growing}: 10}}}}}}"
    command = group.joining(sys.executable, "-c", TENANT)
    with running(*command) as (tenant, _), Limited(group, tmp_path, canaries, inside) as probe:
        probe.ran("large")
        first = probe.ran("small")
        tenant.send_signal(signal.SIGUSR1)
        assert tenant.stdout.readline() == "has it\n"
        probe.until(lambda seen: seen.state("large") == "out_of_memory", "the large canary was not closed")
        last = probe.ran("small", first.runs("small", "ok") + 3 if inside else 1)
    assert (last.report.boot_id == first.report.boot_id) == inside
    [logged] = probe.lines("closed to free")
    assert re.search(
        r"canaries\.large: closed to free \d+ MiB, because only 38 MiB of the container's limit of 300 MiB "
        r"were left; opened again in an hour; ", logged,
    ), logged  # fmt: skip
