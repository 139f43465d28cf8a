"""``infercanary demo``: upgrades a ResNet-18 server on this machine to a slow version, and shows the verdict."""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live

from infercanary.command.children import free_port
from infercanary.command.exit_codes import ExitCode
from infercanary.command.interpreter import run_module
from infercanary.command.interruption import Interrupted, Interruption
from infercanary.demo.processes import Processes, example
from infercanary.demo.screen import is_final, outcome, progress, screen

_SLOW = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Environment variables of the slow server. torch and oneDNN run without AVX, as in the Compose file's slow image."""
_EXPORTER = """
listen: 127.0.0.1:{exporter}
poll_seconds: 1
discovery: none
links: {{runbooks: "http://127.0.0.1:{exporter}/runbooks"}}
probes: [{{url: "http://127.0.0.1:{probe}", service: resnet18, container: demo}}]
"""
_PATIENCE_SECONDS = 240.0
"""Time limit for the whole demo: four times its duration on an idle machine."""
_POLL_SECONDS = 0.5
# Ignore proxy settings, because a proxy cannot reach this machine's loopback.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@click.command(
    name="demo",
    epilog="Exit codes: 0 the expected verdict, 1 another verdict, 2 a part cannot run, 3 no verdict in time.",
)
def command() -> None:
    """Upgrade a ResNet-18 server to a slow version, and show the verdict. The demo takes about a minute.

    \b
      infercanary demo

    The demo starts a server with a probe, and the exporter. In a terminal, both continue after the verdict until
    Ctrl-C. They listen on 127.0.0.1 only. The demo leaves nothing running.
    """
    interruption = Interruption()
    with interruption.handled(), Processes() as processes:
        sys.exit(Demo(processes, interruption).run())


class Demo:
    """One run of the demo.

    On a terminal, the demo shows a live screen. Otherwise it prints a line for each step, and the screen at the end.

    Args:
        processes: Child processes; the context must be entered.
        interruption: Signals that end the demo.
    """

    def __init__(self, processes: Processes, interruption: Interruption) -> None:
        self._console, self._processes, self._interruption = Console(), processes, interruption
        self._server, self._probe, self._exporter = free_port(), free_port(), free_port()
        self._since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._latencies: dict[str, list[float]] = {}
        self._answer: dict[str, Any] = {}
        self._status = ""
        self._up = self._end = time.monotonic() + _PATIENCE_SECONDS

    def run(self) -> int:
        code = ExitCode.INTERRUPTED
        with Live(get_renderable=self.screen, console=self._console, auto_refresh=False) as self._live:
            try:
                config = self._processes.folder / "exporter.yaml"
                config.write_text(_EXPORTER.format(exporter=self._exporter, probe=self._probe))
                self._processes.start(
                    "exporter", run_module("infercanary", "exporter", "--config", config.name)
                )
                with suppress(TimeoutError):
                    self._serve("baseline", 12)
                    self._show("upgrade: stopping the server")
                    self._processes.end("server")
                    self._serve("upgrade", 5, **_SLOW)
                code, status = outcome(self._answer, time.monotonic() - self._up, self._status)
                self._status, self._end = status, float("inf")
                while self._console.is_terminal:
                    self._nap(f"{status} Ctrl-C ends the demo.")
            except Interrupted:
                if code == ExitCode.INTERRUPTED:
                    self._status = "Stopped before the verdict."
        self._console.print()
        return code

    def screen(self) -> Group:
        links = (
            f"inference server  http://127.0.0.1:{self._server}/predict\n"
            f"status page       http://127.0.0.1:{self._exporter}/"
        )
        return screen(links, self._latencies, self._answer, self._status)

    def _serve(self, phase: str, needed: int, **environment: str) -> None:
        """Start a server, and wait until the judge has enough of its runs."""
        self._processes.start(
            "server",
            [sys.executable, "server.py"],
            cwd=example(),
            OMP_NUM_THREADS="1",  # as in the Compose file: synchronization of threads would add noise
            IMAGE_SIZE="160",  # other work on the machine disturbs shorter runs less
            HOST="127.0.0.1",
            PORT=str(self._server),
            PROBE_LISTEN=f"127.0.0.1:{self._probe}",
            PROBE_INTERVAL_SECONDS="2",
            PROBE_DUTY_CAP="1",  # no other work is expected on the machine
            **environment,
        )
        while True:
            if report := _get(self._probe, "/report"):
                self._up = min(self._up, time.monotonic())
                self._latencies[phase] = [
                    statistics.median(run["latencies"]) for run in report["runs"] if run["outcome"] == "ok"
                ]
            verdict = f"/api/v1/verdict?service=resnet18&since={self._since}"
            self._answer = _get(self._exporter, verdict) or self._answer
            if is_final(self._answer) or (phase == "baseline" and self._answer.get("runs", 0) >= needed):
                return
            self._nap(progress(phase, self._latencies.get(phase), needed, self._answer))

    def _nap(self, status: str) -> None:
        self._show(status)
        self._processes.check()
        if time.monotonic() >= self._end:
            raise TimeoutError
        self._interruption.pause(_POLL_SECONDS)

    def _show(self, status: str) -> None:
        if status != self._status and not self._console.is_terminal:
            self._console.print(status, markup=False, highlight=False)
        self._status = status
        self._live.refresh()


def _get(port: int, path: str) -> Any:
    """Return the JSON answer of a child process; empty if the child does not answer."""
    try:
        with _direct.open(f"http://127.0.0.1:{port}{path}", timeout=2) as response:
            return json.load(response)
    except (OSError, ValueError, HTTPException):
        return {}


if __name__ == "__main__":
    command()
