"""The example server with a canary whose model hangs for ever."""

import os
import subprocess
import sys
import textwrap
import time
import urllib.request

from ports import free_port

from infercanary.contract.report import decode
from tests.programs import ROOT

EXAMPLE = ROOT / "examples" / "resnet18"

# If the trap file exists, the first forward pass removes the file and hangs.
SCRIPT = textwrap.dedent(
    """
    import sys, threading
    from pathlib import Path
    from aiohttp import web
    import server

    trap = Path(sys.argv[1])
    app = server.create_app()

    def hang(*_):
        if trap.exists():
            trap.unlink()
            threading.Event().wait()

    app[server.CLASSIFIER].model.register_forward_pre_hook(hang)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=None)
    """
)


def until(condition, what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def wait_for(url, seconds=60.0):
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return bytes(response.read())
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.1)


def test_a_canary_that_hangs_leaves_the_server_serving(tmp_path):
    trap, log = tmp_path / "trap", tmp_path / "log"
    port, probe_port = free_port(), free_port()
    environment = {
        "PROBE_LISTEN": f"127.0.0.1:{probe_port}",
        "PROBE_INTERVAL_SECONDS": "0.5",
        "PROBE_DUTY_CAP": "0.5",
        "PROBE_TIMEOUT_SECONDS": "3",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(trap), str(port)],
            cwd=EXAMPLE, stdout=output, stderr=output, env={**os.environ, **environment},
        )  # fmt: skip
    try:

        def runs(outcome):
            found = decode(wait_for(f"http://127.0.0.1:{probe_port}/report")).runs
            return sum(run.outcome == outcome for run in found)

        until(lambda: runs("ok") >= 1, log.read_text)
        trap.touch()
        until(lambda: not trap.exists(), log.read_text)
        # During the hang, the request waits for the only thread of the pool; then another thread answers.
        image = bytes(3 * 224 * 224)
        for _ in range(3):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", data=image)
            with urllib.request.urlopen(request, timeout=30) as response:
                assert response.status == 200
        until(lambda: runs("timed_out") >= 1, log.read_text)
        assert "no result within 3 s (timeout_seconds)" in log.read_text()
    finally:
        server.kill()
        server.wait(10)
