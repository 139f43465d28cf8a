"""``infercanary demo``: a ResNet-18 server with its probe, the exporter, and Prometheus where one is installed."""

from __future__ import annotations

import shutil
import sys
import time
import urllib.request
from contextlib import suppress

import click
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from infercanary.demo.processes import Processes, example, free_port

Values = dict[str, dict[tuple[tuple[str, str], ...], float]]

# Five times the default duty, so that a newcomer sees a run every few seconds.
_DUTY_CAP = "0.05"
_INTERVAL_SECONDS = "3"


@click.command(name="demo")
@click.option(
    "--duration",
    type=click.FloatRange(min=1),
    help="Seconds after which it ends by itself [default: on Ctrl-C].",
)
def command(duration: float | None) -> None:
    """A ResNet-18 server with its probe, the exporter, and Prometheus where one is installed, on this machine.

    Shows a live table and the URLs to look at. Listens on 127.0.0.1 only; Ctrl-C ends everything it started.
    """
    console = Console()
    try:
        with Processes() as processes:
            exporter = _start(console, processes)
            _watch(console, processes, exporter, duration)
    except KeyboardInterrupt:
        pass
    console.print("Stopped: nothing is left running.")


def _start(console: Console, processes: Processes) -> str:
    """Start everything; the exporter's URL."""
    server, probe, exporter = free_port(8000), free_port(9798), free_port(9797)
    url = f"http://127.0.0.1:{exporter}"
    with console.status("Starting a ResNet-18 inference server with the probe in its process …"):
        processes.start(
            "server",
            [sys.executable, "server.py"],
            cwd=example(),
            HOST="127.0.0.1",
            PORT=str(server),
            PROBE_LISTEN=f"127.0.0.1:{probe}",
            PROBE_INTERVAL_SECONDS=_INTERVAL_SECONDS,
            PROBE_DUTY_CAP=_DUTY_CAP,
        )
        processes.wait_for("server", f"http://127.0.0.1:{server}/healthz", 120)
    console.print(f"[green]✓[/] inference server   http://127.0.0.1:{server}/predict")
    with console.status("Starting the exporter …"):
        config = {
            "listen": f"127.0.0.1:{exporter}",
            "poll_seconds": 1,
            "docker": {"enabled": False},
            "probes": [{"url": f"http://127.0.0.1:{probe}", "service": "resnet18", "container": "demo"}],
        }
        (processes.folder / "exporter.yaml").write_text(yaml.safe_dump(config))
        processes.start(
            "exporter", [sys.executable, "-m", "infercanary", "exporter", "--config", "exporter.yaml"]
        )
        processes.wait_for("exporter", f"{url}/-/ready", 30)
    console.print(f"[green]✓[/] status page        {url}/")
    console.print(f"[green]✓[/] metrics            {url}/metrics")
    _start_prometheus(console, processes, exporter)
    return url


def _start_prometheus(console: Console, processes: Processes, exporter: int) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        console.print("[dim]–[/] Prometheus         not installed: the demo goes on without it")
        return
    port = free_port(9090)
    url = f"http://127.0.0.1:{port}"
    with console.status("Starting Prometheus …"):
        scrape = {"job_name": "infercanary", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
        config = {"global": {"scrape_interval": "5s"}, "scrape_configs": [scrape]}
        (processes.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        arguments = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
        # A folder of its own also where a distribution's default is the system's (Debian: /var/lib/prometheus).
        processes.start("Prometheus", [binary, *arguments, "--storage.tsdb.path=data"])
        processes.wait_for("Prometheus", f"{url}/-/ready", 30)
    console.print(f"[green]✓[/] Prometheus         {url}/")


def _watch(console: Console, processes: Processes, url: str, duration: float | None) -> None:
    """Redraw the table each second; where the output is no terminal, print it once, at the end."""
    end = time.monotonic() + duration if duration else float("inf")
    console.print("A canary run follows every few seconds; Ctrl-C ends the demo.\n")
    with Live(console=console, auto_refresh=False) as live:
        while True:
            processes.check()
            with suppress(OSError):  # a slow answer costs this second's table
                live.update(_table(_scrape(url)), refresh=True)
            if time.monotonic() >= end:
                break
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
    console.print()


def _scrape(url: str) -> Values:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:  # noqa: S310 - our own exporter
        text = response.read().decode()
    values: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return values


def _table(values: Values) -> Table:
    table = Table("container", "canary", "state", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("median", "min", "IQR", "runs", "every", "duty"):
        table.add_column(column, justify="right", no_wrap=True)
    for labels, active in values.get("infercanary_canary_state", {}).items():
        known = dict(labels)
        if not active:
            continue
        state = known.pop("state")
        canary = tuple(sorted(known.items()))
        container = tuple(item for item in canary if item[0] != "canary")

        def milliseconds(name: str, key: tuple[tuple[str, str], ...] = canary) -> str:
            value = values.get(name, {}).get(key)
            return "–" if value is None else f"{value * 1e3:.2f} ms"

        runs = values.get("infercanary_runs_total", {}).get(
            tuple(sorted({**known, "outcome": "ok"}.items())), 0
        )
        interval = values.get("infercanary_interval_seconds", {}).get(container, 0)
        duty = values.get("infercanary_duty_ratio", {}).get(container)
        table.add_row(
            known["container"],
            known["canary"],
            state,
            milliseconds("infercanary_run_median_seconds"),
            milliseconds("infercanary_run_minimum_seconds"),
            milliseconds("infercanary_run_iqr_seconds"),
            f"{runs:.0f}",
            f"{interval:.1f} s",
            "–" if duty is None else f"{duty:.2%}",
        )
    if not table.rows:
        table.add_row("demo", "…", "no report", *["–"] * 6)
    return table


if __name__ == "__main__":
    command()
