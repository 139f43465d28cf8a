"""Reports that are changed at random places, beside honest probes, at one exporter process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from onlooker import Watch, memory

from tests.integration.exporter.processes import ExporterProcess, until


@contextmanager
def probes(script: str, *arguments: object) -> Iterator[tuple[list[str], Iterator[str]]]:
    """Their URLs, and the lines that they print from then on."""
    command = [sys.executable, str(Path(__file__).with_name(script)), "127.0.0.1", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split(), process.stdout
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("honest", "hostile", "reports"),
    [(8, 20, 50), pytest.param(500, 250, 1_000, marks=[pytest.mark.campaign, pytest.mark.quiet])],
)
def test_changed_reports_cost_no_honest_probe(
    honest: int, hostile: int, reports: int, tmp_path: Path
) -> None:
    """No poll of an honest one fails, no traceback, memory as Compose gives it; of 500, each scrape is fast too."""
    with probes("honest.py", 0, honest, "few") as (good, _), probes("changed.py", hostile, 1) as (bad, lines):
        urls = {f"honest-{n}": url for n, url in enumerate(good)} | {
            f"hostile-{n}": url for n, url in enumerate(bad)
        }
        exporter = ExporterProcess(tmp_path, urls, poll_seconds=0.3 if honest < 100 else 5)
        exporter.start()
        until(lambda: exporter.get("/-/healthy"), 60)
        watch = Watch(exporter.url, honest, every=1.0 if honest > 100 else 0.1)

        def honest_up() -> float:
            return sum(up for labels, up in exporter.values("infercanary_up").items() if '"honest-' in labels)

        try:
            deadline = time.monotonic() + 360
            while (given := int(next(lines))) < reports or honest_up() < honest:
                assert time.monotonic() < deadline
        finally:
            watch.end()
        assert exporter.process is not None
        _, most = memory(exporter.process.pid)
        failures = exporter.values("infercanary_poll_failures_total")
        exporter.kill()
    print(f"{given} hostile reports: scrape p99 {watch.p99:.3f} s, memory at most {most >> 20} MiB")
    assert "Traceback" not in exporter.log
    failed = {labels for labels, count in failures.items() if count}
    assert failed and all('"hostile-' in labels for labels in failed)
    assert most < 512 << 20
    assert honest < 100 or watch.p99 < 1
