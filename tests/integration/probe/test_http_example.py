"""The example server of docs/targets/http.md, as a reader copies it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import infercanary
from infercanary.probe.targets import make

PAGE = Path(__file__).parents[3] / "docs/targets/http.md"


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_it_does_not_wait_for_the_clients_delayed_ack(tmp_path: Path) -> None:
    """It took 43.7 ms for two sums: header and body were two small packets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "server.py").write_text(source.replace("8080", str(port)))
    server = subprocess.Popen([sys.executable, "server.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not answers(port):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        scorer = make(
            "http",
            {
                "url": f"http://127.0.0.1:{port}/score",
                "json": {"rows": [[1, 2, 3], [4, 5, 6]]},
                "expect": {"json": {"model": "sum"}, "values": "/scores"},
            },
        )
        result = infercanary.time(scorer, runs=2)
    finally:
        server.kill()
        server.wait()
    assert min(min(run.latencies) for run in result.runs) < 0.03, result
