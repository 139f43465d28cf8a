"""Containers that run one small canary, which uses nothing but CPU time."""

from __future__ import annotations

from contextlib import contextmanager

import yaml
from harness import OWN_LABEL, PROJECT, eventually, get, remove_containers, run

from infercanary.contract.report import decode

TARGET = """
import os

from infercanary.probe.timing import HostClock

WORK = int(os.environ.get("SPIN", "700000"))  # about 4 ms


class Spin:
    clock = HostClock()

    def open(self):
        pass

    def run(self, phase):
        with phase("compute"):
            return sum(range(WORK))

    def values(self, result):
        return [1.0]

    def environment(self):
        return {}

    def close(self):
        pass
"""
SETTINGS = {
    "canaries": {"spin": {"target": "spin:Spin"}},
    "interval_seconds": 0.8,
    # A run takes a quarter of a second or more, which is several periods of a CPU quota.
    "duty_cap": 0.6,
}
PROBE = ("infercanary", "probe", "--config", "/app/probe.yaml")


class Canary:
    def __init__(self, name):
        self.name = name
        address = run("docker", "port", name, "9798/tcp").split()[0]
        self._url = f"http://{address}/report"

    def report(self):
        return decode(get(self._url))

    def ran(self, runs, since, seconds=30):
        """Wait for ``runs`` runs that ended after ``since`` (Unix time)."""

        def ended(report):
            return [each for each in report.runs if each.started_at + sum(each.latencies) > since][:runs]

        [report] = eventually(
            f"{runs} runs", seconds, lambda: [now for now in [self.report()] if len(ended(now)) == runs]
        )
        return report, ended(report)


@contextmanager
def begun_in(folder, image):
    """Start canaries in separate containers; afterwards, print their logs and remove the containers."""
    target, settings = folder / "spin.py", folder / "probe.yaml"
    target.write_text(TARGET)
    settings.write_text(yaml.safe_dump(SETTINGS))
    mounts = [f"--volume={file}:/app/{file.name}:ro" for file in (target, settings)]
    for file in (target, settings):
        file.chmod(0o644)
    begun = []

    def begin(*options, command=PROBE, name=f"{PROJECT}-cause"):
        begun.append(name)
        run(
            *("docker", "run", "--detach", "--name", name, "--label", OWN_LABEL, "--no-healthcheck"),
            *("--publish", "127.0.0.1::9798", "--env", "OMP_NUM_THREADS=1"),
            *mounts, *options, image, *command,
        )  # fmt: skip
        canary = Canary(name)
        eventually("a run", 60, lambda: canary.report().runs)
        return canary

    remove_containers()
    try:
        yield begin
    finally:
        for name in dict.fromkeys(begun):
            print(name, run("sh", "-c", f"docker logs {name} 2>&1 || true"))
        remove_containers()
