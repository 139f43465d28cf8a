"""``infercanary probe`` as a process of its own: alone, beside a server, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from probe_process import PROBE, ProbeProcess, scripted
from watching import MODULES, until


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("open", signal.SIGINT),
        ("run", signal.SIGTERM),
        ("values", signal.SIGINT),
        ("close", signal.SIGTERM),
    ],
)
def test_it_ends_promptly_while_a_canary_hangs(tmp_path: Path, method: str, number: signal.Signals) -> None:
    """Deadlines are 30 s for a run and 600 s for opening: neither holds up the end."""
    with ProbeProcess(tmp_path, f"{{c: {scripted(**{method: 'hang'})}}}") as probe:
        if method in ("open", "run"):  # the first repeat is part of opening
            probe.until(lambda s: s.state("c") == "opening")
        elif method == "close":
            probe.ran()
        else:
            probe.until(lambda s: s.state("c") in ("warming", "steady"))
            time.sleep(0.5)  # a slot is due every 0.1 s
        assert probe.end(number) == 0, probe.output()


def test_canaries_that_hang_raise_or_exit_are_tried_again_and_the_other_goes_on(tmp_path: Path) -> None:
    """Only a mistake of the user's ends the process; what may repair itself (a server not up yet) does not."""
    canaries = {
        "hangs": scripted(run="hang"),
        "raises": scripted(open="raise"),
        "exits": scripted(open="exit"),
        "interrupts": scripted(values="interrupt"),
        "good": scripted(),
    }
    text = ", ".join(f"{name}: {canary}" for name, canary in canaries.items())
    with ProbeProcess(tmp_path, f"{{{text}}}", "open_timeout_seconds: 2") as probe:
        seen = probe.until(
            lambda s: (
                s.runs("good", "ok") >= 2
                and s.state("hangs") == "failing"
                and s.runs("interrupts", "raised") >= 2
            )
        )
        assert {seen.state(name) for name in canaries if name != "good"} == {"failing"}
        assert seen.state("good") in ("warming", "steady")
        assert probe.end(signal.SIGINT) == 0
    assert "canary hangs: not open after 2 s (open_timeout_seconds); still waiting for it" in probe.output()
    assert "canary raises: cannot be opened: ValueError: open broken on purpose" in probe.output()


def test_a_mistake_found_when_opening_ends_it(tmp_path: Path) -> None:
    with ProbeProcess(tmp_path, f"{{good: {scripted()}, bad: {scripted(open='usage')}}}") as probe:
        assert probe.process.wait(60) == 2
    assert probe.output() == f"infercanary: {probe.config}: canaries.bad: open: fix this\n"


def test_torch_on_the_cpu_beside_a_canary_that_asks_for_cuda(tmp_path: Path) -> None:
    """An image without CUDA is no mistake in the settings: a probe that ended could not be asked."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    options = "{{target: torch, options: {{model: 'torch.nn:ReLU', inputs: [{{shape: [2]}}], device: {}}}}}"
    canaries = f"{{gpu: {options.format('cuda')}, cpu: {options.format('cpu')}}}"
    with ProbeProcess(tmp_path, canaries) as probe:
        seen = probe.until(lambda s: s.runs("cpu", "ok") and s.runs("gpu", "raised"))
        assert probe.end() == 0
    assert "torch" in seen.report.environment
    assert (seen.value("infercanary_cpu_seconds_total", "process", "", "") or 0) > 0
    assert seen.value("infercanary_cuda_missing", "gpu", "cpu_only_build") == 1
    assert seen.state("gpu") == "failing"
    refused = "canary gpu: cannot be opened: device: `cuda` was asked for, but torch .* is a CPU-only build; install"
    assert len(re.findall(refused, probe.output())) == 1
    assert f"the report is at {probe.address}/report" in probe.output()


def test_a_second_probe_on_the_same_port_is_one_line_and_the_first_goes_on(tmp_path: Path) -> None:
    with ProbeProcess(tmp_path, f"{{c: {scripted()}}}") as probe:
        first = probe.ran()
        done = subprocess.run(
            [*PROBE, "--config", str(probe.config)],
            cwd=MODULES,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(
            r"infercanary: \S+: listen: cannot listen on \S+ \(Address already in use\); free it, .*\n",
            done.stderr,
        )
        assert probe.ran(runs=first.runs("c", "ok") + 1).report.boot_id == first.report.boot_id


def test_the_socket_is_gone_after_the_end(tmp_path: Path) -> None:
    path, config = tmp_path / "probe.sock", tmp_path / "probe.yaml"
    config.write_text(f"listen: unix://{path}\ncanaries: {{c: {scripted()}}}\n")
    command = [*PROBE, "--config", str(config), "--log-level", "error"]
    with subprocess.Popen(command, cwd=MODULES, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(path.exists, seconds=60)
        finally:
            process.terminate()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said, path.exists()) == (0, "", False)


def test_importing_the_probe_imports_no_torch_and_little_else() -> None:
    script = (
        "import sys, infercanary.probe, infercanary.probe.__main__, infercanary.probe.config\n"
        "heavy = {'torch', 'numpy', 'aiohttp', 'docker', 'prometheus_client', 'infercanary.exporter'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
