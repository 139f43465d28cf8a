"""Each run is stored exactly once, however often the exporter is killed."""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from infercanary.contract.report import Run, decode
from infercanary.judge.model import ServiceKey
from infercanary.store.sqlite import SqliteStore

S = ServiceKey("", "s")

TARGET = """
import time
from infercanary.probe.timing import HostClock
from infercanary.judge.model import ServiceKey


class Quick:
    clock = HostClock()

    def open(self): pass

    def run(self, phase):
        with phase("compute"):
            time.sleep(0.001)

    def values(self, result): return [1.0]

    def environment(self): return {}

    def close(self): pass
"""


def free_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        return int(candidate.getsockname()[1])


@contextmanager
def probe(folder: Path) -> Iterator[str]:
    """A real one, with three runs a second; its URL."""
    (folder / "quick.py").write_text(TARGET)
    port = free_port()
    (folder / "probe.yaml").write_text(
        f"listen: 127.0.0.1:{port}\ninterval_seconds: 0.3\nduty_cap: 1\ncontrols: false\n"
        "canaries: {quick: {target: 'quick:Quick'}}\n"
    )
    command = [
        sys.executable,
        "-m",
        "infercanary",
        "probe",
        "--config",
        "probe.yaml",
        "--log-level",
        "error",
    ]
    child = subprocess.Popen(command, cwd=folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


def reported(url: str) -> tuple[str, tuple[Run, ...]]:
    with urllib.request.urlopen(f"{url}/report", timeout=10) as response:
        report = decode(response.read())
    assert report.lost_runs == 0
    return report.boot_id, report.runs


def stored(path: Path) -> dict[str, list[int]]:
    """Boot id → the sequences of its runs."""
    store = SqliteStore.open(path)
    try:
        found = store.generations(S, "quick")
        return {generation.boot_id: [sample.sequence for sample in samples] for generation, samples in found}
    finally:
        store.close()


def collected(port: int) -> dict[str, float]:
    """Container → its runs, as the exporter shows them; nothing where it does not answer yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    except OSError:
        return {}
    lines = re.findall(r'^infercanary_runs_total{.*container="(\w+)".*outcome="ok".*} (\S+)', text, re.M)
    return {container: float(count) for container, count in lines}


def until(port: int, runs: int) -> None:
    """Wait until the exporter shows so many runs of both."""
    deadline = time.monotonic() + 60
    while len(counts := collected(port)) < 2 or min(counts.values()) < runs:
        assert time.monotonic() < deadline, counts
        time.sleep(0.1)


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.campaign)])
def test_every_run_is_stored_once(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "judge.sqlite"
    rng = random.Random(1)
    with ExitStack() as stack:
        urls = []
        for name in "ab":
            (tmp_path / name).mkdir()
            urls.append(stack.enter_context(probe(tmp_path / name)))
        probes = "".join(
            f"\n- {{url: '{url}', service: s, container: {name}}}"
            for name, url in zip("ab", urls, strict=True)
        )
        config = tmp_path / "exporter.yaml"
        port = free_port()
        config.write_text(
            f"listen: 127.0.0.1:{port}\npoll_seconds: 0.1\nstore: {path}\n"
            f"docker: {{enabled: false}}\nprobes:{probes}\n"
        )
        command = [
            sys.executable,
            "-m",
            "infercanary",
            "exporter",
            "--config",
            str(config),
            "--log-level",
            "error",
        ]
        for _ in range(kills):
            child = subprocess.Popen(command)
            # It takes a second or so to start; killed before, between and within its writes.
            time.sleep(rng.uniform(0.5, 3))
            assert child.poll() is None
            child.kill()
            child.wait()
        child = subprocess.Popen(command)
        try:
            until(port, 13)
            made = dict(reported(url) for url in urls)
            until(port, max(map(len, made.values())) + 2)
        finally:
            child.terminate()
            child.wait(20)
    kept = stored(path)
    assert set(kept) == set(made)
    for boot, runs in made.items():
        sequences = [run.sequence for run in runs]
        assert len(sequences) > 10
        assert len(set(kept[boot])) == len(kept[boot])
        assert kept[boot][: len(sequences)] == sequences
