"""Images of the example server for benchmarks with Docker, including images with a slower model."""

from __future__ import annotations

import subprocess

BASE = "infercanary-example:dev"

# code at the end of the model's file: the model waits before each inference
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
    done = subprocess.run(["docker", *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def slower(seconds: float) -> str:
    """Return Dockerfile lines for an image whose model waits ``seconds`` before each inference."""
    code = " ".join(f"'{line}'" for line in _SLOWER.format(seconds=seconds).splitlines())
    return f"USER root\nRUN printf '%s\\n' {code} >> model.py\nUSER 10001"
