"""A real probe and a real exporter as separate processes, which a test can kill and restart."""

import asyncio
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import closing, contextmanager
from http.client import HTTPException
from typing import Any

from ports import free_port

from infercanary.contract.journal import decode
from infercanary.contract.report import decode as report_in
from infercanary.judge.model import ServiceKey
from infercanary.store.store import open_store
from tests.programs import ended

KEY, CANARY = ServiceKey("", "s"), "quick"

TARGET = """
import threading
from infercanary.probe.timing import HostClock


class Quick:
    clock = HostClock()

    def __init__(self, seconds): self.seconds = seconds

    def open(self): pass

    def run(self, phase):
        with phase("compute"):
            threading.Event().wait(self.seconds)  # libfaketime has no clock_nanosleep()

    def values(self, result): return [1.0]

    def environment(self): return {"quick": str(self.seconds)}

    def close(self): pass
"""


def until(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is not met after {seconds} s"
        time.sleep(0.05)


async def comes_true(condition):
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "the condition is not met after 15 s"
        await asyncio.sleep(0.01)


def stored(path):
    with closing(open_store(path)) as store:
        found = store.generations(KEY, CANARY)
        kept = {generation.boot_id: [sample.sequence for sample in samples] for generation, samples in found}
        taken = {boot: count for (_, boot), count in store.taken(KEY, CANARY).items()}
        assert store.database.set_aside_at is None
    assert taken == {boot: len(numbers) for boot, numbers in kept.items()}
    return kept


def certificate(folder, name, *more, address="IP:127.0.0.1"):
    pem = folder / f"{name}.pem"
    kind = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    names = f"-subj /CN={name} -addext subjectAltName={address} -keyout {name}.key -out {name}.pem"
    command = ["openssl", "req", *kind.split(), *names.split(), *more]
    ended(*command, cwd=folder)
    return pem


class Process:
    """A command with its own folder and log.

    Args:
        folder: New folder for the settings.
        environment: Additional environment variables.
    """

    command: Sequence[str] = ("-m", "infercanary")
    """Arguments with which Python starts the program."""
    arguments: Sequence[str] = ()
    """Additional arguments of the command."""

    def __init__(self, folder, name, environment=None):
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = environment or {}
        self.process: Any = None

    def start(self):
        """Start the process, but do not wait until it serves."""
        command = [sys.executable, *self.command, self.name, "--config", f"{self.name}.yaml", *self.arguments]
        environment = {**os.environ, **self.environment}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def kill(self):
        if self.process is not None:
            assert self.process.poll() is None, f"{self.folder.name} ended by itself: {self.log[-4000:]}"
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(60) == 0
            self.process = None

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                body = response.read()
        except (OSError, HTTPException):  # a test may kill the process during an answer
            return b""
        return body


class ProbeProcess(Process):
    def __init__(self, folder, environment=None, seconds=0.001):
        super().__init__(folder, "probe", environment)
        (folder / "quick.py").write_text(TARGET)
        self.takes(seconds)

    def takes(self, seconds):
        """Set the canary's duration in seconds; it applies from the next start on."""
        (self.folder / "probe.yaml").write_text(
            f"listen: 127.0.0.1:{self.port}\ninterval_seconds: 0.3\nduty_cap: 1\ncontrols: false\njournal: journal\n"
            f"canaries: {{{CANARY}: {{target: 'quick:Quick', options: {{seconds: {seconds}}}}}}}\n"
        )

    def works(self):
        """Return True if the probe has a run of this start, because it offers runs of earlier starts first."""
        body = self.get("/report")
        return bool(body) and bool(self.ring().get(report_in(body).boot_id))

    def journalled(self):
        found = {}
        for file in ("journal.1", "journal"):
            if (self.folder / file).exists():
                for line in (self.folder / file).read_bytes().splitlines():
                    if line.endswith(b"}") and (entry := decode(line)).run is not None:
                        found.setdefault(entry.boot_id, []).append(entry.run.sequence)
        return found

    def ring(self):
        """Return the sequence numbers of the runs that the probe offers now, by boot id."""
        found = {}
        cursor = ""
        while body := self.get(f"/report?since={cursor}"):
            report = report_in(body)
            if not report.runs:
                break
            for run in report.runs:
                found.setdefault(run.boot_id or report.boot_id, []).append(run.sequence)
            cursor = report.cursor
        return found


class ExporterProcess(Process):
    """An exporter that polls these probes ten times a second, and stores their runs.

    Args:
        folder: New folder for the settings.
        probes: URLs by container.
        environment: Additional environment variables.
        store: A file or a database; empty for a file in the folder.
        poll_seconds: Seconds between polls.
    """

    def __init__(self, folder, probes, environment=None, store="", poll_seconds=0.1):
        super().__init__(folder, "exporter", environment)
        self.store = store or folder / "store.db"
        listed = "".join(
            f"\n- {{url: '{url}', service: {KEY.name}, container: {name}}}" for name, url in probes.items()
        )
        (folder / "exporter.yaml").write_text(
            f"listen: 127.0.0.1:{self.port}\npoll_seconds: {poll_seconds}\nstore: {self.store}\n"
            f"discovery: none\nprobes:{listed or ' []'}\n"
        )

    @contextmanager
    def listening(self, settings, *arguments, listen=""):
        """Run the exporter with other settings and arguments, yield the logged URL, and kill the process if it
        still runs.
        """
        (self.folder / "exporter.yaml").write_text(settings)
        self.arguments = ("--listen", listen or f"127.0.0.1:{self.port}", *arguments)
        self.start()
        try:
            until(lambda: "event=listening" in self.log, 60)
            yield self.log.partition("url=")[2].split()[0]
        finally:
            if self.process is not None and self.process.poll() is None:
                self.kill()

    def works(self):
        stored = self.values("infercanary_stored_runs_total")
        return any(stored.values()) and {*self.values("infercanary_up").values()} == {1.0}

    def has_collected(self, rings):
        """Return True if the exporter, since its start, has collected at least as many runs as the probes'
        buffers had.
        """
        counts = sorted(self.values("infercanary_runs_collected_total").items())
        had = [sum(map(len, ring.values())) for ring in rings]
        return len(counts) == len(had) and all(
            count >= runs for (_, count), runs in zip(counts, had, strict=True)
        )

    def values(self, name):
        text = self.get("/metrics").decode()
        return {labels: float(value) for labels, value in re.findall(rf"^{name}({{.*}}|) (\S+)$", text, re.M)}


def urls(probes):
    return {probe.folder.name: probe.url for probe in probes}
