"""A real probe and a real exporter as processes that can be killed and restarted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import closing, contextmanager
from http.client import HTTPException

from ports import free_port

from infercanary.contract.journal import decode
from infercanary.contract.report import decode as report_in
from infercanary.judge.model import ServiceKey
from infercanary.store.store import open_store

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
    """Wait until a function says yes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s"
        time.sleep(0.05)


def stored(path):
    """Boot id → the sequences of its runs in a store."""
    with closing(open_store(path)) as store:
        found = store.generations(KEY, CANARY)
        kept = {generation.boot_id: [sample.sequence for sample in samples] for generation, samples in found}
        taken = {boot: count for (_, boot), count in store.taken(KEY, CANARY).items()}
        assert store.database.set_aside_at is None
    assert taken == {boot: len(numbers) for boot, numbers in kept.items()}
    return kept


def certificate(folder, name, *more, address="IP:127.0.0.1"):
    """Make a certificate that signs itself; its key is beside it."""
    pem = folder / f"{name}.pem"
    kind = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    names = f"-subj /CN={name} -addext subjectAltName={address} -keyout {name}.key -out {name}.pem"
    command = ["openssl", "req", *kind.split(), *names.split(), *more]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return pem


class Process:
    """A command, in a folder of its own, with its log.

    Args:
        folder: Made; it holds the settings.
        environment: Variables that the process has besides those of this one.
    """

    command: Sequence[str] = ("-m", "infercanary")
    """How Python starts it."""
    arguments: Sequence[str] = ()
    """Others than its settings."""

    def __init__(self, folder, name, environment=None):
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = environment or {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self):
        """Start it; it is up a second or so later."""
        command = [sys.executable, *self.command, self.name, "--config", f"{self.name}.yaml", *self.arguments]
        environment = {**os.environ, **self.environment}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def kill(self):
        """End it as a lack of memory does."""
        if self.process is not None:
            assert self.process.poll() is None, f"{self.folder.name} ended by itself: {self.log[-4000:]}"
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """End it as a container's stop does, and wait for that."""
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(60) == 0
            self.process = None

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def get(self, path):
        """What it answers; nothing where it does not."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                body = response.read()
        except (OSError, HTTPException):  # also where it is killed in the middle of an answer
            return b""
        return body


class ProbeProcess(Process):
    """Three runs a second of a canary that sleeps, kept in a journal."""

    def __init__(self, folder, environment=None, seconds=0.001):
        super().__init__(folder, "probe", environment)
        (folder / "quick.py").write_text(TARGET)
        self.takes(seconds)

    def takes(self, seconds, more=""):
        """From its next start on its canary takes so long."""
        (self.folder / "probe.yaml").write_text(
            f"listen: 127.0.0.1:{self.port}\ninterval_seconds: 0.3\nduty_cap: 1\ncontrols: false\njournal: journal\n"
            f"canaries: {{{CANARY}: {{target: 'quick:Quick', options: {{seconds: {seconds}}}}}}}\n{more}"
        )

    def works(self):
        """Whether it has a run of this start: it offers those of earlier ones first."""
        body = self.get("/report")
        return bool(body) and bool(self.ring().get(report_in(body).boot_id))

    def journalled(self):
        """Boot id → the sequences of its runs, of all starts until now."""
        found: dict[str, list[int]] = {}
        for file in ("journal.1", "journal"):
            if (self.folder / file).exists():
                for line in (self.folder / file).read_bytes().splitlines():
                    if line.endswith(b"}") and (entry := decode(line)).run is not None:
                        found.setdefault(entry.boot_id, []).append(entry.run.sequence)
        return found

    def ring(self):
        """The same of the runs that it offers now."""
        found: dict[str, list[int]] = {}
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
    """It polls these probes ten times a second, and keeps their runs in a file.

    Args:
        folder: Made.
        probes: Container → URL.
        environment: Variables that its process has besides those of this one.
        store: A file, or a database.
        poll_seconds: Between two questions to a probe.
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
        """Run it by other settings and arguments; its URL as it logs it. It is killed if it still runs afterwards."""
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
        """Whether it stores what all of its probes report."""
        stored = self.values("infercanary_stored_runs_total")
        return any(stored.values()) and {*self.values("infercanary_up").values()} == {1.0}

    def has_collected(self, rings):
        """Whether it took as many runs since it was started as the rings of its probes had."""
        counts = sorted(self.values("infercanary_runs_collected_total").items())
        had = [sum(map(len, ring.values())) for ring in rings]
        return len(counts) == len(had) and all(
            count >= runs for (_, count), runs in zip(counts, had, strict=True)
        )

    def values(self, name):
        """The series of a metric, by labels; none where it does not answer."""
        text = self.get("/metrics").decode()
        return {labels: float(value) for labels, value in re.findall(rf"^{name}({{.*}}|) (\S+)$", text, re.M)}


def urls(probes):
    """Container → URL."""
    return {probe.folder.name: probe.url for probe in probes}
