"""``infercanary probe`` in a separate process, with its settings file, output and report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from http.client import HTTPException

from ports import free_port
from watching import MODULES, fetch, until

PROBE = (sys.executable, "-m", "infercanary", "probe")


def scripted(kind="Scripted", **options):
    return f"{{target: 'scripted:{kind}', options: {{{', '.join(f'{k}: {v}' for k, v in options.items())}}}}}"


def run_probe(folder, canaries, *arguments, settings="", modules=MODULES, **environment):
    config = folder / "probe.yaml"
    config.write_text(f"{settings}\ncanaries: {canaries}\n")
    done = subprocess.run(
        [*PROBE, "--config", str(config), *arguments], cwd=modules, capture_output=True, timeout=120,
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, **environment},
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class ProbeProcess:
    """A probe process, which starts at once and is killed at the end of a ``with`` block.

    Args:
        folder: Folder for settings and output.
        canaries: Canaries of the settings, as YAML.
        settings: Additional lines of the settings.
        duty_cap: Setting `duty_cap`.
        modules: Working folder with the canaries' modules.
        command: Command before ``--config``.
        environment: Additional environment variables.
    """

    def __init__(
        self, folder, canaries, settings="", *, duty_cap=1, modules=MODULES, command=PROBE, environment=()
    ):
        listen = f"127.0.0.1:{free_port()}"
        self.address = f"http://{listen}"
        folder.mkdir(exist_ok=True)
        self.config = folder / "probe.yaml"
        self.config.write_text(
            f"listen: {listen}\ninterval_seconds: 0.1\nduty_cap: {duty_cap}\n{settings}\ncanaries: {canaries}\n"
        )
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.config)], cwd=modules, stdout=log, stderr=log,
                env={**os.environ, **dict(environment)},
            )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def until(self, condition, what="it did not happen"):
        def seen():
            assert self.process.poll() is None, self.output()
            try:
                report = fetch(self.address)
            except (OSError, HTTPException):  # the process does not serve yet, or it restarts
                return None
            return report if condition(report) else None

        return until(seen, what, 150)

    def ran(self, canary="c", runs=1, outcome="ok"):
        return self.until(lambda seen: seen.runs(canary, outcome) >= runs, f"no {runs} runs of {canary}")

    def output(self):
        return self._log.read_text()

    def end(self, number=signal.SIGTERM, seconds=25):
        """Send a signal and return the exit code. The wait is shorter than the deadline of a run (30 s)."""
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        assert "Traceback" not in self.output()
        return code
