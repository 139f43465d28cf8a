"""The exporter is attacked by connections, as a process: what an honest scraper and honest probes see meanwhile.

The same attacks run for 30 s against the image in its memory limit (tests/stack/alone/test_hostile.py), and for ten
minutes by ``make hostile``.
"""

from __future__ import annotations

import json
import resource
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from onlooker import Watch, memory

pytestmark = pytest.mark.quiet  # how long a scrape takes is judged
HERE = Path(__file__).parent
PROBES = 20
ATTACKER = "127.0.0.2"
"""As containers have it, who attacks has another address than who scrapes: one address has one share."""
ATTACK_SECONDS = 1.0
MOST_BYTES = 300 << 20
"""Of the exporter: Compose gives it 512 MiB, and without an attack it has about 100 beside 20 such probes."""


@contextmanager
def started(*command: str, descriptors: int = 0, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process, whose first line is there when this begins; killed at the end."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
        preexec_fn=limit if descriptors else None,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Attacked:
    """A running exporter with its honest probes."""

    def __init__(self, url: str, process: subprocess.Popen[str], log: Path) -> None:
        self.url, self.process, self.log = url, process, log
        self.port = int(url.rpartition(":")[2])


@contextmanager
def exporter(folder: Path, web_config: str = "", descriptors: int = 0) -> Iterator[Attacked]:
    """The command, with 20 probes that it polls each second."""
    with started(sys.executable, str(HERE / "honest.py"), "127.0.0.1", "0", str(PROBES)) as probes:
        assert probes.stdout is not None
        urls = probes.stdout.readline().split()
        listed = [{"url": url, "service": "s", "container": f"c{n}"} for n, url in enumerate(urls)]
        config = {"discovery": "none", "poll_seconds": 1, "probes": listed}
        (folder / "exporter.yaml").write_text(json.dumps(config))
        command = [
            sys.executable,
            "-m",
            "infercanary.exporter",
            "--listen",
            "127.0.0.1:0",
            "--config",
            "exporter.yaml",
        ]
        if web_config:
            (folder / "web.yml").write_text(web_config)
            command += ["--web-config", "web.yml"]
        log = folder / "log"
        with started(
            "sh", "-c", 'exec "$@" 2>log', "sh", *command, descriptors=descriptors, cwd=folder
        ) as process:
            deadline = time.monotonic() + 30
            while "event=listening" not in log.read_text() if log.exists() else True:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            [line] = [line for line in log.read_text().splitlines() if "event=listening" in line]
            yield Attacked(line.partition("url=")[2].split()[0], process, log)


def until_up(watch: Watch) -> None:
    """Wait until all probes were polled; what was before that is no fault."""
    deadline = time.monotonic() + 30
    while watch.value("infercanary_up") < PROBES:
        assert time.monotonic() < deadline, watch.faults[-3:]
        time.sleep(0.05)
    time.sleep(0.3)
    watch.clear()


def attack(found: Attacked, name: str, seconds: float) -> None:
    where = ("127.0.0.1", str(found.port), str(seconds), ATTACKER)
    command = [sys.executable, str(HERE / "attacks.py"), name, *where]
    subprocess.run(command, check=True, timeout=seconds + 60)


def watched(found: Attacked, *names: str, context: ssl.SSLContext | None = None) -> Watch:
    """What was seen while it was attacked in each of these ways, one after the other."""
    watch = Watch(found.url, PROBES, context)
    try:
        until_up(watch)
        time.sleep(0.5)
        quiet = watch.p99
        watch.seconds.clear()
        for name in names:
            attack(found, name, ATTACK_SECONDS)
    finally:
        watch.end()
    now, most = memory(found.process.pid)
    print(
        f"{names}: scrape p99 {watch.p99:.3f} s (without attack {quiet:.3f}), memory {now >> 20} MiB, "
        f"most {most >> 20}, refused {watch.value('infercanary_connections_refused_total'):g}"
    )
    assert found.process.poll() is None
    assert watch.faults == []
    assert watch.p99 < 1
    assert most < MOST_BYTES
    assert watch.value("infercanary_connections_refused_total") > 0
    return watch


def test_slow_readers_and_idle_connections_with_few_descriptors(tmp_path: Path) -> None:
    """400 of the one, 1,100 of the other with 1,024 descriptors."""
    with exporter(tmp_path, descriptors=1024) as found:
        watched(found, "slow_readers", "idle", "slow_headers")
        watched(found, "garbage", "hang_ups")
        text = found.log.read_text()
        assert "Traceback" not in text
        assert len(text.splitlines()) < 40, text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_connections_that_send_nothing(tmp_path: Path) -> None:
    """1,600 of them, before any password; and as many that begin a handshake."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
         "1", "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "server.key", "-out",
         "server.pem"],
        check=True, capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
    web_config = "tls_server_config: {cert_file: server.pem, key_file: server.key}"
    with exporter(tmp_path, web_config) as found:
        watched(found, "silent", "half_hellos", context=context)
        assert "Traceback" not in found.log.read_text()
