"""``infercanary demo``: an upgrade that makes a ResNet-18 server slow, and the verdict on it, on this machine."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress

import click
import yaml
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from infercanary.command.interpreter import run_module
from infercanary.demo import shown
from infercanary.demo.processes import Processes, example, free_port
from infercanary.judge.policy import LIVE
from infercanary.probe.pace import pace

_INTERVAL_SECONDS, _DUTY_CAP = 2.0, 0.5  # a verdict within minutes, on a machine that has nothing else to do
_STEADY_INTERVAL_SECONDS, _STEADY_DUTY_CAP = 3.0, 0.05
_SLOW = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""What keeps torch and oneDNN off the CPU's vector instructions, as in the Compose file's slow image."""
_ANSWERS = ("regressed", "improved", "equivalent")
_PATIENCE_SECONDS = 240.0
"""For a verdict, which takes a minute after the upgrade where nothing else is busy."""


@click.command(name="demo")
@click.option("--steady", is_flag=True, help="No upgrade: one server that runs until Ctrl-C.")
@click.option(
    "--duration",
    type=click.FloatRange(min=1),
    help="Seconds after which it ends by itself [default: on Ctrl-C; not in a terminal, after the verdict].",
)
def command(steady: bool, duration: float | None) -> None:
    """Replace a ResNet-18 server by a slow one, and show the verdict on what changed. It takes about four minutes.

    \b
      infercanary demo
      infercanary demo --steady --duration 600

    Starts the server with its probe, the exporter, and Prometheus where one is installed. Shows a live table and the
    URLs to look at. Listens on 127.0.0.1 only; Ctrl-C ends everything it started.
    """
    console = Console()
    end = time.monotonic() + duration if duration else float("inf")
    try:
        with Processes() as processes:
            demo = _Demo(console, processes, steady)
            if not steady and demo.waits_for_baseline(end):
                demo.upgrade()
                demo.waits_for_verdict(end)
            if steady or duration or console.is_terminal:
                demo.watch(end)
    except KeyboardInterrupt:
        pass
    console.print("Stopped: nothing is left running.")


class _Demo:
    """Its processes, started, and what is shown of them.

    Args:
        console: Where it is shown.
        processes: Where they are started.
        steady: Whether the pace is that of a server which goes on.
    """

    def __init__(self, console: Console, processes: Processes, steady: bool) -> None:
        self._console, self._processes = console, processes
        pace_of = (_STEADY_INTERVAL_SECONDS, _STEADY_DUTY_CAP) if steady else (_INTERVAL_SECONDS, _DUTY_CAP)
        self._interval, self._duty = pace(*pace_of)
        self._server, self._probe = free_port(8000), free_port(9798)
        with console.status("Starting a ResNet-18 inference server with the probe in its process …"):
            self._start_server()
        console.print(f"[green]✓[/] inference server   http://127.0.0.1:{self._server}/predict")
        with console.status("Starting the exporter …"):
            self._url = self._start_exporter()
        console.print(f"[green]✓[/] status page        {self._url}/")
        console.print(f"[green]✓[/] metrics            {self._url}/metrics")
        self._start_prometheus()
        console.print(
            f"A canary run every {self._interval:g} s, with at most {self._duty:.0%} of the time (duty); in production "
            "the default is 10 s and 1 %.\nCtrl-C ends the demo.\n"
        )

    def waits_for_baseline(self, end: float) -> bool:
        """Show the runs of the first server until they are a baseline; false where the time ends before."""
        wanted = LIVE.pool.full_baseline_runs
        self._console.print(f"[bold]1.[/] The server as it is: a baseline of {wanted} runs.")
        return self.watch(end, until=lambda values: shown.runs(values) >= wanted)

    def upgrade(self) -> None:
        """Exchange the server for one that computes without vector instructions."""
        self._console.print(
            "[bold]2.[/] The upgrade: the same server, in whose image somebody left "
            + " ".join(f"{name}={value}" for name, value in _SLOW.items())
            + "."
        )
        with self._console.status("Exchanging the server …"):
            self._processes.end("server")
            self._start_server(**_SLOW)

    def waits_for_verdict(self, end: float) -> None:
        """Show the runs of the second server until the judge has an answer, and that in its words."""
        end = min(end, time.monotonic() + _PATIENCE_SECONDS)
        answered = self.watch(end, until=lambda values: shown.verdict(values) in _ANSWERS)
        sentence = escape(shown.sentence(shown.scrape(self._url)))
        if answered:
            self._console.print(f"[bold]3.[/] The verdict: [bold]{sentence}[/]")
        else:
            self._console.print(f"[bold]3.[/] Still open, which a busy machine may cause: {sentence}")
        self._console.print(f"It is on the status page, too: {self._url}/\n")

    def watch(self, end: float, until: shown.Condition = lambda _: False) -> bool:
        """Redraw the table each second; where the output is no terminal, print it once, at the end.

        Args:
            end: When to stop, of the monotonic clock.
            until: When to stop, by what the exporter's metrics say.

        Returns:
            Whether that came.
        """
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                self._processes.check()
                with suppress(OSError):  # a slow answer costs this second's table
                    values = shown.scrape(self._url)
                    live.update(shown.table(values), refresh=True)
                    if until(values):
                        break
                if time.monotonic() >= end:
                    return False
                time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        self._console.print()
        return True

    def _start_server(self, **environment: str) -> None:
        self._processes.start(
            "server",
            [sys.executable, "server.py"],
            cwd=example(),
            OMP_NUM_THREADS="1",  # as in the Compose file: threads that wait for one another are noise
            HOST="127.0.0.1",
            PORT=str(self._server),
            PROBE_LISTEN=f"127.0.0.1:{self._probe}",
            PROBE_INTERVAL_SECONDS=str(self._interval),
            PROBE_DUTY_CAP=str(self._duty),
            **environment,
        )
        self._processes.wait_for("server", f"http://127.0.0.1:{self._server}/healthz", 120)

    def _start_exporter(self) -> str:
        port = free_port(9797)
        config = {
            "listen": f"127.0.0.1:{port}",
            "poll_seconds": 1,
            "docker": {"enabled": False},
            "links": {"runbooks": f"http://127.0.0.1:{port}/runbooks"},
            "probes": [
                {"url": f"http://127.0.0.1:{self._probe}", "service": "resnet18", "container": "demo"}
            ],
        }
        (self._processes.folder / "exporter.yaml").write_text(yaml.safe_dump(config))
        self._processes.start("exporter", run_module("infercanary", "exporter", "--config", "exporter.yaml"))
        self._processes.wait_for("exporter", f"http://127.0.0.1:{port}/-/ready", 30)
        self._exporter = port
        return f"http://127.0.0.1:{port}"

    def _start_prometheus(self) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            self._console.print("[dim]–[/] Prometheus         not installed: the demo goes on without it")
            return
        port = free_port(9090)
        url = f"http://127.0.0.1:{port}"
        with self._console.status("Starting Prometheus …"):
            scrape = {
                "job_name": "infercanary",
                "static_configs": [{"targets": [f"127.0.0.1:{self._exporter}"]}],
            }
            config = {"global": {"scrape_interval": "5s"}, "scrape_configs": [scrape]}
            (self._processes.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            arguments = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
            # A folder of its own also where a distribution's default is the system's (Debian: /var/lib/prometheus).
            self._processes.start("Prometheus", [binary, *arguments, "--storage.tsdb.path=data"])
            self._processes.wait_for("Prometheus", f"{url}/-/ready", 30)
        self._console.print(f"[green]✓[/] Prometheus         {url}/")


if __name__ == "__main__":
    command()
