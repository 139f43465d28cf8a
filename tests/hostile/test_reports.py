"""Reports that are changed at random places, beside honest probes, at one exporter process."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from onlooker import Watch, memory
from test_connections import HERE, started


@pytest.mark.parametrize(
    ("honest", "hostile", "reports"),
    [(8, 20, 50), pytest.param(500, 250, 1_000, marks=[pytest.mark.campaign, pytest.mark.quiet])],
)
def test_changed_reports_cost_no_honest_probe(
    honest: int, hostile: int, reports: int, tmp_path: Path
) -> None:
    """No poll of an honest one fails, no traceback, memory as Compose gives it; of 500, each scrape is fast too."""
    python = sys.executable
    with (
        started(python, str(HERE / "honest.py"), "127.0.0.1", "0", str(honest), "few") as good,
        started(python, str(HERE / "changed.py"), "127.0.0.1", str(hostile), "1") as bad,
    ):
        assert good.stdout is not None and bad.stdout is not None
        urls = {"honest": good.stdout.readline().split(), "hostile": bad.stdout.readline().split()}
        probes = [
            {"url": url, "service": kind, "container": f"{kind}-{n}"}
            for kind, found in urls.items()
            for n, url in enumerate(found)
        ]
        config: dict[str, Any] = {
            "discovery": "none",
            "store": "judge.sqlite",
            "probes": probes,
        }
        config["poll_seconds"] = 0.3 if honest < 100 else 5
        (tmp_path / "exporter.yaml").write_text(json.dumps(config))
        command = [
            python,
            "-m",
            "infercanary.exporter",
            "--listen",
            "127.0.0.1:0",
            "--config",
            "exporter.yaml",
        ]
        with started("sh", "-c", 'exec "$@" 2>log', "sh", *command, cwd=tmp_path) as process:
            log = tmp_path / "log"
            deadline = time.monotonic() + 60
            while not log.exists() or "event=listening" not in log.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            [line] = [line for line in log.read_text().splitlines() if "event=listening" in line]
            watch = Watch(line.partition("url=")[2].split()[0], honest, every=1.0 if honest > 100 else 0.1)
            try:
                given = 0
                while given < reports or sum(up(watch, "honest")) < honest:
                    given = int(bad.stdout.readline())
                    assert process.poll() is None
                    assert time.monotonic() < deadline + 300
            finally:
                watch.end()
            text = log.read_text()
            _, most = memory(process.pid)
    print(f"{given} hostile reports: scrape p99 {watch.p99:.3f} s, memory at most {most >> 20} MiB")
    assert "Traceback" not in text
    failed = [line for line in watch.text.splitlines() if line.startswith("infercanary_poll_failures_total{")]
    assert [line for line in failed if 'service="honest"' in line and not line.endswith(" 0.0")] == []
    assert any('service="hostile"' in line and not line.endswith(" 0.0") for line in failed)
    assert most < 512 << 20
    assert honest < 100 or watch.p99 < 1


def up(watch: Watch, service: str) -> list[bool]:
    """Of each probe of a service, whether it answered."""
    lines = [line for line in watch.text.splitlines() if line.startswith("infercanary_up{")]
    return [line.endswith(" 1.0") for line in lines if f'service="{service}"' in line]
