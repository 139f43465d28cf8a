"""Images of the example server for the benchmarks that need Docker: commands, and a model that is slower on purpose."""

from __future__ import annotations

import subprocess

BASE = "infercanary-example:dev"

# Before each inference, in the model itself.
_SLOWER = """
import time

_build = build


def build():
    def wait(module, inputs):
        end = time.perf_counter() + {seconds}
        while time.perf_counter() < end:
            pass

    model = _build()
    model.register_forward_pre_hook(wait)
    return model
"""


def docker(*arguments: str, text: str | None = None) -> str:
    """Run a command of Docker's; its output."""
    done = subprocess.run(["docker", *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def slower(seconds: float) -> str:
    """The lines of a Dockerfile on the base's, whose model waits so long before each inference."""
    code = " ".join(f"'{line}'" for line in _SLOWER.format(seconds=seconds).splitlines())
    return f"USER root\nRUN printf '%s\\n' {code} >> model.py\nUSER 10001"
