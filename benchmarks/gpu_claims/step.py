"""A step: a function that measures something within 8 minutes, and can run alone."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gpu_claims.claim import Measured

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 480.0
_GUARD = 'read -r line; kill -s KILL -- "-$1" 2>/dev/null'
MODULES = ("timing", "controls", "tenant", "memory", "changes", "restarts", "variants", "engines", "tests")


class NotRun(Exception):
    """A step cannot run on this machine. The message names the reason or the missing requirement."""


class Place(NamedTuple):
    device: str
    """``cuda`` or ``cpu``; on the CPU only the step's logic is tested."""
    scale: float
    """Factor for repeats and seconds: 1 on a GPU, less to test the logic."""
    folder: Path
    """Folder for files, which is removed after the step."""

    @property
    def on_gpu(self) -> bool:
        """True if this device can decide claims."""
        return self.device.startswith("cuda")

    def times(self, number: int, least: int = 3) -> int:
        """Return the scaled number of repeats."""
        return max(least, round(number * self.scale))


class Step(NamedTuple):
    name: str
    about: str
    function: Callable[[Place], list[Measured]]
    needs_gpu: bool
    """False if the step's logic also runs on a CPU, or if the step uses a stand-in."""
    stand_in: bool
    """True if the step uses a stand-in and never needs a device."""


_steps: dict[str, Step] = {}

F = Callable[[Place], list[Measured]]


def step(name: str, about: str, *, needs_gpu: bool = False, stand_in: bool = False) -> Callable[[F], F]:
    def registering(function: F) -> F:
        _steps[name] = Step(name, about, function, needs_gpu, stand_in)
        return function

    return registering


def steps() -> dict[str, Step]:
    for module in MODULES:
        importlib.import_module(f"gpu_claims.{module}")
    return dict(_steps)


@contextmanager
def group(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process in a separate group, which is killed at the end of the block, even if this process was
    killed.

    A killed process cannot clean up. So a guard process waits for the end of a pipe that only this process
    holds open, and then kills the group.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            yield process
        finally:
            guard.communicate()


def need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise NotRun(f"needs {', '.join(missing)} in {sys.executable}")


def torch_module(place: Place) -> Any:
    """Return torch, after a check of the device."""
    need("torch")
    import torch

    if place.on_gpu and not torch.cuda.is_available():
        raise NotRun(
            f"torch {torch.__version__} sees no CUDA device; install a torch with CUDA for this driver"
        )
    return torch


def synchronized(torch: Any, place: Place) -> None:
    """Wait until the device has finished its work."""
    if place.on_gpu:
        torch.cuda.synchronize()


def run_median(target: Any, repeats: int = 5) -> float:
    """Return the median wall seconds of a run, as in a probe."""
    walls: list[float] = [target.clock.measure(target.run)[0].wall for _ in range(repeats)]
    return statistics.median(walls)


def child(place: Place, code: str, *arguments: str, seconds: float = 200.0) -> str:
    """Return the output of a separate process, which leaves no memory in this process."""
    done = subprocess.run(
        [sys.executable, "-c", code, place.device, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"child process ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


class Busy:
    """Processes that keep the device busy within :meth:`at_work`, by matrix products or copies.

    The processes start once and wait for commands, because a start takes longer than a measurement.
    """

    def __init__(self, place: Place, kind: Literal["compute", "memory"], count: int = 1) -> None:
        self._place, self._kind, self._count = place, kind, count
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Busy:
        for _ in range(self._count):
            process = subprocess.Popen(
                [sys.executable, "-c", _LOAD, self._place.device, self._kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
        try:
            self._all_say("idle")
        except RuntimeError:
            self.__exit__()
            raise
        return self

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the device busy within the block.

        After the block the device is idle, because all queued work has ended.
        """
        self._tell("work")
        self._all_say("busy")
        try:
            yield
        finally:
            self._tell("stop")
            self._all_say("idle")

    def _tell(self, command: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(f"{command}\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise RuntimeError(f"a load process ended before the command `{command}`") from None

    def _all_say(self, state: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != state:
                raise RuntimeError(f"a load process ended before it was {state}")

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


# One command is sent at a time, so that no command waits in a buffer during select(). The process ends with
# its standard input. "busy" follows the first batch and "idle" the last batch, because a device finishes
# queued work even after its process was stopped.
_LOAD = """
import select, sys, torch
device, kind = sys.argv[1:3]
on_gpu = device != "cpu"
if kind == "compute":
    size = 8192 if on_gpu else 512
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    work = lambda: a @ a
else:
    a = torch.empty((2 << 30 if on_gpu else 256 << 20) // 4, device=device)
    b = torch.empty_like(a)
    work = lambda: b.copy_(a)
def batch():
    for _ in range(20):
        work()
    if on_gpu:
        torch.cuda.synchronize()
batch()
print("idle", flush=True)
while sys.stdin.readline():
    batch()
    print("busy", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        batch()
    if not sys.stdin.readline():
        break
    print("idle", flush=True)
"""


def run_pytest(options: Sequence[str]) -> tuple[int, int, int, str]:
    """Run pytest in this interpreter; return the numbers of passed, failed and skipped tests, and the last lines."""
    need("pytest")
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS - 20
    )
    lines = done.stdout.strip().splitlines()
    last = lines[-1] if lines else done.stderr.strip()[-200:]
    counts = dict.fromkeys(("passed", "failed", "skipped", "error"), 0)
    for part in last.split(","):
        words = part.split()
        for number, word in pairwise(words):
            key = word.removesuffix("s") if word == "errors" else word
            if number.isdecimal() and key in counts:
                counts[key] = int(number)
    if done.returncode not in (0, 1, 5):
        raise RuntimeError(f"pytest ended with {done.returncode}: {last}")
    wrong = "; ".join(line for line in lines if line.startswith(("FAILED ", "ERROR ")))
    skips = "; ".join(line.partition("] ")[2] for line in lines if line.startswith("SKIPPED"))
    return counts["passed"], counts["failed"] + counts["error"], counts["skipped"], wrong or skips or last
