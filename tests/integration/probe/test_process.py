"""``infercanary probe`` as a process of its own: alone, beside a server, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import MODULES, Seen, fetch, until


class Started:
    """A probe's process, with its settings file and its output."""

    def __init__(self, folder: Path, canaries: str, *, settings: str = "", modules: Path = MODULES) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.config = folder / "probe.yaml"
        self.config.write_text(
            f"listen: {self.address.removeprefix('http://')}\ninterval_seconds: 0.1\nduty_cap: 1\n"
            f"{settings}\ncanaries: {canaries}\n"
        )
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "probe", "--config", str(self.config)],
            cwd=modules, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def seen(self) -> Seen | None:
        assert self.process.poll() is None, self.output()
        try:
            return fetch(self.address)
        except OSError:
            return None

    def until(self, condition: Callable[[Seen], Any], what: str = "it did not happen") -> Seen:
        found: Seen = until(lambda: (s := self.seen()) and condition(s) and s, what, seconds=60)
        return found

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def end(self, number: int) -> tuple[int, float]:
        """The exit code after a signal, and how long that took."""
        begin = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(60), time.monotonic() - begin


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(canaries: str, **more: Any) -> Started:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Started(folder, canaries, **more))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        each.log.close()


def scripted(**options: Any) -> str:
    return (
        f"{{target: 'scripted:Scripted', options: {{{', '.join(f'{k}: {v}' for k, v in options.items())}}}}}"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_torch_canary_and_a_clean_end(
    start: Callable[..., Started], tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tiny.py").write_text("import torch\ndef model(): return torch.nn.Linear(4, 4)\n")
    probe = start(
        "{tiny: {target: torch, options: {model: 'tiny:model', inputs: [{shape: [1, 4]}]}}}", modules=tmp_path
    )
    seen = probe.until(lambda s: s.runs("tiny", "ok") >= 2)
    assert "torch" in seen.report.environment
    assert (seen.value("infercanary_cpu_seconds_total", "process", "", "") or 0) > 0
    code, seconds = probe.end(number)
    assert code == 0, probe.output()
    assert seconds < 10
    assert "Traceback" not in probe.output()
    assert f"the report is at {probe.address}/report" in probe.output()


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("open", signal.SIGTERM),
        ("open", signal.SIGINT),
        ("run", signal.SIGTERM),
        ("values", signal.SIGINT),
        ("close", signal.SIGTERM),
    ],
)
def test_it_ends_promptly_while_a_canary_hangs(
    start: Callable[..., Started], method: str, number: signal.Signals
) -> None:
    """Deadlines are 30 s for a run and 600 s for opening: neither holds up `docker stop`, which waits for 10 s."""
    probe = start(f"{{c: {scripted(**{method: 'hang'})}}}")
    if method in ("open", "run"):  # the first repeat is part of opening
        probe.until(lambda s: s.state("c") == "opening")
    elif method == "close":
        probe.until(lambda s: s.runs("c", "ok") >= 1)
    else:
        probe.until(lambda s: s.state("c") in ("warming", "steady"))
        time.sleep(0.5)  # a slot is due every 0.1 s
    code, seconds = probe.end(number)
    assert code == 0, probe.output()
    assert seconds < 9
    assert "Traceback" not in probe.output()


def test_a_canary_that_hangs_while_it_warms_up(start: Callable[..., Started]) -> None:
    bad, good = scripted(run="hang"), scripted()
    probe = start(f"{{bad: {bad}, good: {good}}}", settings="open_timeout_seconds: 0.5")
    probe.until(lambda s: s.state("bad") == "failing" and s.runs("good", "ok") >= 2)
    assert "canary bad: not open after 0.5 s (open_timeout_seconds); still waiting for it" in probe.output()
    code, seconds = probe.end(signal.SIGTERM)
    assert (code, "Traceback" in probe.output()) == (0, False)
    assert seconds < 9


def test_a_canary_whose_open_fails_is_reported_and_tried_again(start: Callable[..., Started]) -> None:
    """Only a mistake of the user's ends the process; what may repair itself (a server not up yet) does not."""
    probe = start(f"{{bad: {scripted(open='raise')}, exits: {scripted(open='exit')}, good: {scripted()}}}")
    seen = probe.until(lambda s: s.runs("good", "ok") >= 1)
    assert seen.state("bad") == seen.state("exits") == "failing"
    assert "canary bad: cannot be opened: ValueError: open broken on purpose" in probe.output()
    assert probe.end(signal.SIGTERM)[0] == 0


def test_a_mistake_found_when_opening_ends_it(start: Callable[..., Started]) -> None:
    probe = start(f"{{good: {scripted()}, bad: {scripted(open='usage')}}}")
    assert probe.process.wait(60) == 2
    assert probe.output() == f"infercanary: {probe.config}: canaries.bad: open: fix this\n"


def test_an_image_without_cuda_is_refused_and_reported(start: Callable[..., Started]) -> None:
    """It is no mistake in the settings: a probe that ended could not be asked, and the other canary goes on."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    gpu = "{target: torch, options: {model: 'torch:relu', inputs: [{shape: [2]}], device: cuda}}"
    probe = start(f"{{gpu: {gpu}, cpu: {{target: 'scripted:Scripted'}}}}")
    seen = probe.until(lambda s: s.runs("cpu", "ok") >= 3 and s.runs("gpu", "raised"))
    assert seen.value("infercanary_cuda_missing", "gpu", "cpu_only_build") == 1
    assert (seen.state("gpu"), seen.state("cpu")) == ("failing", "steady")
    assert probe.end(signal.SIGTERM)[0] == 0
    refused = "canary gpu: cannot be opened: device: `cuda` was asked for, but torch .* is a CPU-only build; install"
    assert len(re.findall(refused, probe.output())) == 1


def test_keyboard_interrupt_raised_by_a_model_does_not_end_it(start: Callable[..., Started]) -> None:
    probe = start(f"{{bad: {scripted(values='interrupt')}, good: {scripted()}}}")
    seen = probe.until(lambda s: s.runs("bad", "raised") >= 2 and s.runs("good", "ok") >= 2)
    assert seen.report.runs[0].detail in ("KeyboardInterrupt", "")
    assert probe.end(signal.SIGINT)[0] == 0


def test_beside_a_server_it_is_another_process(start: Callable[..., Started], tmp_path: Path) -> None:
    """The second way: server and probe in one container. Either may end, and the other goes on."""
    script = "import http.server\nhttp.server.ThreadingHTTPServer(('127.0.0.1', 0), None).serve_forever()"
    server = subprocess.Popen([sys.executable, "-c", script])
    try:
        probe = start(f"{{c: {scripted()}}}")
        probe.until(lambda s: s.runs("c", "ok") >= 1)
        assert probe.end(signal.SIGTERM)[0] == 0
        assert server.poll() is None
        again = start(f"{{c: {scripted()}}}")
        first = again.until(lambda s: s.runs("c", "ok") >= 1).report.boot_id
        server.kill()
        server.wait()
        before = again.until(lambda s: True).runs("c", "ok")
        assert again.until(lambda s: s.runs("c", "ok") > before).report.boot_id == first
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def test_a_second_probe_on_the_same_port_is_one_line(start: Callable[..., Started], tmp_path: Path) -> None:
    probe = start(f"{{c: {scripted()}}}")
    probe.until(lambda s: True)
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "probe", "--config", str(probe.config)],
        cwd=MODULES, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"infercanary: \S+: listen: cannot listen on \S+ \(Address already in use\); free it, .*\n",
        done.stderr,
    )


def test_the_socket_is_gone_after_the_end(start: Callable[..., Started], tmp_path: Path) -> None:
    path = tmp_path / "probe.sock"
    probe = start(f"{{c: {scripted()}}}")
    probe.process.kill()
    probe.process.wait()
    probe.config.write_text(
        probe.config.read_text().replace(
            f"listen: {probe.address.removeprefix('http://')}", f"listen: unix://{path}"
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "infercanary", "probe", "--config", str(probe.config), "--log-level", "error"],
        cwd=MODULES, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(path.exists, seconds=60)
        process.terminate()
        assert process.wait(60) == 0
        assert not path.exists()
        assert process.stderr is not None and process.stderr.read() == ""
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


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
