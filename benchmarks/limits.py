"""Compares the limit that `infercanary doctor --limits` names with the effect of interventions on the same model.

Twelve models with seeded sizes run on the CPU, each with one thread, pinned to CPU 0. The truth of a model is measured,
and not decided by its author: its time is taken again after changes that touch one resource only. The share of the
time that depends on the resource follows:

- compute: narrower vector instructions (torch and oneDNN; the effect on a large matrix product counts as 1);
- memory: a process on CPU 1 that copies large buffers (the effect on a large copy counts as 1);
- scheduling: more CPU quota; no other thread that holds the lock; operators split in two, with the same work in all;
  without the operators (Python's time remains); io: the file stays in the page cache. These count by the time that is
  saved, or added by the split, or that remains.

The truth is the resource with the largest share. Needs root and cgroup v1, for the quota and a slow disk. Exits with 1
if less than 90 % are named right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from scipy.stats import binomtest

GOAL = 0.9
LEAST = 0.3
"""A model whose largest share is smaller has no truth."""

_CGROUPS = Path("/sys/fs/cgroup")
_NARROW = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
}
_SECONDS = 2.0
_QUOTA = 0.4
_DISK = 100 << 20  # bytes per second
_FILE = Path("/var/tmp/infercanary-limits.bin")  # on a disk, not in memory

Run = Callable[..., Any]


def gemm(rng: random.Random, changed: bool) -> Run:
    import torch

    size = rng.randrange(384, 1025, 64)
    a, b = torch.randn(2, size, size)
    return lambda _: torch.mm(a, b)


def convolution(rng: random.Random, changed: bool) -> Run:
    import torch

    channels = rng.choice((32, 64, 96))
    layer = torch.nn.Conv2d(channels, channels, 3, padding=1)
    data = torch.randn(rng.randrange(2, 7), channels, 56, 56)
    return lambda _: layer(data)


def prefill(rng: random.Random, changed: bool) -> Run:
    import torch

    query = torch.randn(1, 8, rng.randrange(768, 1537, 128), 64)
    return lambda _: torch.nn.functional.scaled_dot_product_attention(query, query, query)


def chain(rng: random.Random, changed: bool) -> Run:
    import torch

    data = torch.randn(rng.randrange(24, 49) << 20)
    return lambda _: data.mul_(0.5).add_(1.0).relu_()


def copy(rng: random.Random, changed: bool) -> Run:
    import torch

    source = torch.randn(rng.randrange(24, 49) << 20)
    target = torch.empty_like(source)
    return lambda _: target.copy_(source)


def decode(rng: random.Random, changed: bool) -> Run:
    import torch

    keys, values = torch.randn(2, 1, 8, rng.randrange(32, 65) << 10, 64)
    query = torch.randn(1, 8, 1, 64)
    return lambda _: torch.nn.functional.scaled_dot_product_attention(query, keys, values)


def gather(rng: random.Random, changed: bool) -> Run:
    import torch

    rows = 1 << 20
    table = torch.randn(rows, 64)
    index = torch.randint(rows, (rng.randrange(100, 400) << 10,))
    return lambda _: torch.nn.functional.embedding(index, table)


def tiny(rng: random.Random, changed: bool) -> Run:
    import torch

    number = rng.randrange(200, 800, 50)
    parts = [torch.randn(64)] if not changed else [*torch.randn(2, 32)]

    def run(_: Any) -> Any:
        for _ in range(number):
            for part in parts:
                result = torch.sigmoid(part)
        return result

    return run


def python(rng: random.Random, changed: bool) -> Run:
    import torch

    number, size = rng.randrange(100_000, 300_000), 256
    a, b = torch.randn(2, size, size)

    def run(_: Any) -> Any:
        total = sum(i % 7 for i in range(number))
        return torch.tensor([float(total)]) if changed else torch.mm(a, b)

    return run


def lock(rng: random.Random, changed: bool) -> Run:
    import torch

    held, free, guard = rng.uniform(4e-3, 12e-3), 1e-3, threading.Lock()
    a, b = torch.randn(2, 256, 256)

    def hold() -> None:
        while True:
            with guard:
                time.sleep(held)
            time.sleep(free)

    if not changed:
        threading.Thread(target=hold, daemon=True).start()

    def run(_: Any) -> Any:
        with guard:
            return torch.mm(a, b)

    return run


def file(rng: random.Random, changed: bool) -> Run:
    import torch

    size = rng.randrange(4, 17) << 20
    _FILE.write_bytes(os.urandom(size))
    os.sync()
    handle = os.open(_FILE, os.O_RDONLY)

    def run(_: Any) -> Any:
        if not changed:
            os.posix_fadvise(handle, 0, size, os.POSIX_FADV_DONTNEED)
        data = bytearray(os.pread(handle, size, 0))
        return torch.frombuffer(data, dtype=torch.uint8)[:64].float()

    return run


class Model(NamedTuple):
    """A model, and its own intervention."""

    build: Callable[[random.Random, bool], Run]
    resource: str = ""
    """Resource of its own intervention; empty for none."""
    share: Callable[[float, float], float] = lambda before, after: 1 - after / before
    """Share of the time by the times before and after the intervention."""
    quota: float | None = None
    bytes_per_second: int | None = None


MODELS = {
    "gemm": Model(gemm),
    "convolution": Model(convolution),
    "prefill": Model(prefill),
    "chain": Model(chain),
    "copy": Model(copy),
    "decode": Model(decode),
    "gather": Model(gather),
    "tiny": Model(tiny, "scheduling", lambda before, after: after / before - 1),
    "python": Model(python, "scheduling", lambda before, after: after / before),
    "lock": Model(lock, "scheduling"),
    "quota": Model(gemm, "scheduling", quota=_QUOTA),
    "file": Model(file, "io", bytes_per_second=_DISK),
}


def model() -> Run:
    """Build the model that the environment names; `limits:model` in probe.yaml."""
    name, seed, changed = os.environ["LIMITS_MODEL"].split()
    return MODELS[name].build(random.Random(f"{name} {seed}"), changed == "1")


def print_seconds() -> None:
    """Print the mean seconds of an inference, as a child process."""
    import torch

    with torch.inference_mode():
        run = model()
        for seconds in (_SECONDS / 4, _SECONDS):
            begin, number = time.perf_counter(), 0
            while (took := time.perf_counter() - begin) < seconds or number < 5:
                run(None)
                number += 1
    print(took / number)


@contextmanager
def groups(model: Model, changed: bool) -> Iterator[list[Path]]:
    """Make the model's cgroups (v1): a CPU quota, a slow disk."""
    made = []
    if model.quota is not None and not changed:
        made.append(_CGROUPS / "cpu/infercanary-limits")
        made[-1].mkdir(exist_ok=True)
        (made[-1] / "cpu.cfs_quota_us").write_text(str(int(100_000 * model.quota)))
    if model.bytes_per_second is not None:
        made.append(_CGROUPS / "blkio/infercanary-limits")
        made[-1].mkdir(exist_ok=True)
        number = os.stat("/var/tmp").st_dev
        limit = f"{os.major(number)}:{os.minor(number)} {model.bytes_per_second}"
        (made[-1] / "blkio.throttle.read_bps_device").write_text(limit)
    try:
        yield made
    finally:
        for group in made:
            group.rmdir()


def child(
    command: list[str], name: str, seed: int, changed: bool = False, variables: Mapping[str, str] = {}
) -> str:
    """Run a command for a model, pinned to CPU 0 and with one thread; return its output."""
    known = {"LIMITS_MODEL": f"{name} {seed} {int(changed)}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with groups(MODELS[name], changed) as made:

        def enter() -> None:
            os.sched_setaffinity(0, {0})
            for group in made:
                (group / "cgroup.procs").write_text("0")

        done = subprocess.run(
            command, cwd=Path(__file__).parent, env=os.environ | known | {**variables}, preexec_fn=enter,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)
    return done.stdout


def seconds(name: str, seed: int, changed: bool = False, variables: Mapping[str, str] = {}) -> float:
    """Return the median of several processes: mean seconds of an inference."""
    command = [sys.executable, __file__, "--time"]
    return median(float(child(command, name, seed, changed, variables)) for _ in range(3))


@contextmanager
def hog() -> Iterator[None]:
    """Copy large buffers on CPU 1."""
    code = (
        "import os, numpy; os.sched_setaffinity(0, {1}); a = numpy.ones(64 << 20); b = a.copy()\n"
        "while True: numpy.copyto(b, a)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(2)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def diagnosed(name: str, seed: int) -> dict[str, Any]:
    """Return the doctor's answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as settings:
        options = {"model": "limits:model", "inputs": [{"shape": [1]}]}
        json.dump({"canaries": {name: {"target": "torch", "options": options}}}, settings)
        settings.flush()
        command = [sys.executable, "-m", "infercanary", "doctor", "--json", "--limits", settings.name]
        answer: dict[str, Any] = json.loads(child(command, name, seed))["canaries"][0]
    return answer


class Effects(NamedTuple):
    """Seconds before and after an intervention."""

    before: float
    narrow: float
    beside_hog: float


def effects(name: str, seed: int) -> Effects:
    before, narrow = seconds(name, seed), seconds(name, seed, variables=_NARROW)
    with hog():
        return Effects(before, narrow, seconds(name, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="sizes of each model")
    parser.add_argument("--only", choices=MODELS, help="a single model")
    parser.add_argument("--time", action="store_true", help="print the time of the model in LIMITS_MODEL")
    asked = parser.parse_args()
    if asked.time:
        print_seconds()
        return 0
    # The references have other sizes than the models: seed -1.
    product, stream = effects("gemm", -1), effects("copy", -1)
    widths, hogs = product.narrow / product.before, stream.beside_hog / stream.before
    print(f"narrow instructions: a matrix product takes {widths:.2f} times as long")
    print(f"a neighbour's copies: a copy takes {hogs:.2f} times as long\n")
    print(f"{'model':<14}{'compute':>9}{'memory':>9}{'own':>18}  {'truth':<12}{'answer':<12}why or sentence")
    named: list[bool] = []
    for name, model in MODELS.items():
        for seed in range(asked.seeds if asked.only in (None, name) else 0):
            found = effects(name, seed)
            shares = {
                "compute": (found.narrow / found.before - 1) / (widths - 1),
                "memory": (found.beside_hog / found.before - 1) / (hogs - 1),
            }
            own = ""
            if model.resource:
                share = model.share(found.before, seconds(name, seed, changed=True))
                shares[model.resource] = share
                own = f"{model.resource} {share:.2f}"
            truth = max(shares, key=lambda resource: shares[resource])
            truth = truth if shares[truth] >= LEAST else "none"
            answer = diagnosed(name, seed)
            limit = "none" if answer["limit"] == "unknown" else answer["limit"]
            named.append(truth in (limit, answer["tied_with"]))
            detail = answer["why"] or ", ".join(f"{k} {v:.2f}" for k, v in answer["shares"].items())
            print(
                f"{name:<14}{shares['compute']:>9.2f}{shares['memory']:>9.2f}{own:>18}  {truth:<12}{limit:<12}{detail}",
                flush=True,
            )
    share, ends = sum(named) / len(named), binomtest(sum(named), len(named)).proportion_ci(method="wilson")
    print(f"\nnamed right: {sum(named)} of {len(named)}, 95 % interval [{ends.low:.0%}, {ends.high:.0%}]")
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
