"""Compares the limit that `infercanary doctor --limits` names with the effect of interventions on the same model.

Twelve models with seeded sizes run on the CPU, each with one thread, pinned to CPU 0. The truth of a model is measured,
and not decided by its author: its time is taken again after a change that touches one resource. The share of the time
that depends on the resource follows:

- compute: narrower vector instructions, SSE in MKL and oneDNN, and AVX2 in torch's own loops. The effect on a
  reference, a large matrix product, counts as 1.
- memory: the same operations on data that fit into the second-level cache. The effect on a reference, a large copy,
  counts as 1.
- scheduling: without the quota; without the thread that holds the lock; without the operators (the remaining time is
  Python's); or with each operator split in two, with the same work in all (the added time is that of calls).
- io: the file stays in the page cache.

With a quota, any saved work also saves pauses. So the quota's share is taken first, and compute and memory share the
time that remains without the quota.

The truth is the resource with the largest share. All variants of a model run in turn, for a quarter of a second each,
so the machine's other load affects them alike. Needs root and cgroup v1, for the quota and a slow disk. Exits with 1 if
less than 90 % are named right.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any, NamedTuple

from scipy.stats import binomtest

GOAL = 0.9
LEAST = 0.3
"""A model whose largest share is smaller has no truth."""

_CGROUPS = Path("/sys/fs/cgroup")
_NARROW = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",  # SSE2, on CPUs of other vendors, too
}
_SECONDS, _ROUNDS = 0.25, 7
_QUOTA = 0.4
_DISK = 100 << 20  # bytes per second
_FILE = Path("/var/tmp/infercanary-limits.bin")  # on a disk, not in memory
_CHUNK = 1 << 15  # floats of 4 bytes: 128 KiB

Run = Callable[..., Any]
Build = Callable[[random.Random, str], Run]
"""Builds a model from the source of its sizes, and from the change: "", "fit" or "own"."""


def _times(number: int, work: Callable[[], Any]) -> Run:
    def run(_: Any) -> Any:
        for _ in range(number):
            result = work()
        return result[0] if isinstance(result, list) else result

    return run


def gemm(rng: random.Random, change: str) -> Run:
    import torch

    size, number = rng.randrange(512, 1025, 128), 1
    if change == "fit":
        size, number = 128, (size // 128) ** 3
    a, b = torch.randn(2, size, size)
    return _times(number, lambda: torch.mm(a, b))


def convolution(rng: random.Random, change: str) -> Run:
    import torch

    channels, size, number = rng.choice((32, 64, 96)), 56, rng.randrange(2, 7)
    layer = torch.nn.Conv2d(channels, channels, 3, padding=1)
    data = torch.randn(1 if change == "fit" else number, channels, size, size)
    return _times(number if change == "fit" else 1, lambda: layer(data))


def prefill(rng: random.Random, change: str) -> Run:
    import torch

    heads = 1 if change == "fit" else 8
    query = torch.randn(1, heads, rng.randrange(768, 1537, 128), 64)
    attention = torch.nn.functional.scaled_dot_product_attention
    return _times(8 // heads, lambda: attention(query, query, query))


def chain(rng: random.Random, change: str) -> Run:
    import torch

    chunks = rng.randrange(768, 1537)
    data = torch.randn(_CHUNK * (1 if change == "fit" else chunks))
    return _times(chunks if change == "fit" else 1, lambda: data.mul_(0.5).add_(1.0).relu_())


def copy(rng: random.Random, change: str) -> Run:
    import torch

    chunks = rng.randrange(768, 1537)
    source, target = torch.randn(2, _CHUNK * (1 if change == "fit" else chunks))
    return _times(chunks if change == "fit" else 1, lambda: target.copy_(source))


def decode(rng: random.Random, change: str) -> Run:
    import torch

    length, number = rng.randrange(32, 65) << 10, 1
    if change == "fit":
        length, number = 256, length // 256
    keys, values = torch.randn(2, 1, 8, length, 64)
    query = torch.randn(1, 8, 1, 64)
    attention = torch.nn.functional.scaled_dot_product_attention
    return _times(number, lambda: attention(query, keys, values))


def gather(rng: random.Random, change: str) -> Run:
    import torch

    rows, number = 512 if change == "fit" else 1 << 20, rng.randrange(100, 400) << 10
    table, result = torch.randn(rows, 64), torch.empty(number, 64)
    index = torch.randint(rows, (number,))
    return _times(1, lambda: torch.index_select(table, 0, index, out=result))


def tiny(rng: random.Random, change: str) -> Run:
    import torch

    parts = [torch.randn(64)] if change != "own" else [*torch.randn(2, 32)]
    return _times(rng.randrange(200, 800, 50), lambda: [torch.sigmoid(part) for part in parts])


def python(rng: random.Random, change: str) -> Run:
    import torch

    number = rng.randrange(100_000, 300_000)
    a, b = torch.randn(2, 256, 256)

    def run() -> Any:
        total = float(sum(i % 7 for i in range(number)))
        return torch.tensor([total]) if change == "own" else torch.mm(a, b)

    return _times(1, run)


def lock(rng: random.Random, change: str) -> Run:
    import torch

    held, guard = rng.uniform(4e-3, 12e-3), threading.Lock()
    a, b = torch.randn(2, 256, 256)

    def hold() -> None:
        while True:
            with guard:
                time.sleep(held)
            time.sleep(1e-3)

    def run() -> Any:
        with guard:
            return torch.mm(a, b)

    if change != "own":
        threading.Thread(target=hold, daemon=True).start()
    return _times(1, run)


def file(rng: random.Random, change: str) -> Run:
    import torch

    size = rng.randrange(4, 17) << 20
    path = _FILE.with_suffix(f".{size}{change}")
    path.write_bytes(os.urandom(size))
    os.sync()
    handle = os.open(path, os.O_RDONLY)
    path.unlink()

    def run() -> Any:
        if change != "own":
            os.posix_fadvise(handle, 0, size, os.POSIX_FADV_DONTNEED)
        data = bytearray(os.pread(handle, size, 0))
        return torch.frombuffer(data, dtype=torch.uint8)[:64].float()

    return _times(1, run)


class Model(NamedTuple):
    """A model, and its own intervention."""

    build: Build
    resource: str = ""
    """Resource of its own intervention; empty for none."""
    share: Callable[[float], float] = lambda ratio: 1 - ratio
    """Share of the time, by the ratio of the times after and before the intervention."""
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
    "tiny": Model(tiny, "scheduling", lambda ratio: ratio - 1),
    "python": Model(python, "scheduling", lambda ratio: ratio),
    "lock": Model(lock, "scheduling"),
    "quota": Model(gemm, "scheduling", quota=_QUOTA),
    "file": Model(file, "io", bytes_per_second=_DISK),
}


def model() -> Run:
    """Build the model that the environment names; `limits:model` in probe.yaml."""
    name, seed, change = os.environ["LIMITS_MODEL"].split(",")
    return MODELS[name].build(random.Random(f"{name} {seed}"), change)


def serve() -> None:
    """For each line of standard input, run for a while, and print the mean seconds of an inference."""
    import torch

    with torch.inference_mode():
        run = model()
        for _ in range(3):
            run(None)
        for _ in sys.stdin:
            begin, number = time.perf_counter(), 0
            while (took := time.perf_counter() - begin) < _SECONDS or number < 3:
                run(None)
                number += 1
            print(took / number, flush=True)


@contextmanager
def groups(model: Model, change: str) -> Iterator[list[Path]]:
    """Make the model's cgroups (v1): a CPU quota, a slow disk."""
    made = []
    if model.quota is not None and not change:
        made.append(_CGROUPS / "cpu/infercanary-limits")
        made[-1].mkdir(exist_ok=True)
        (made[-1] / "cpu.cfs_quota_us").write_text(str(int(100_000 * model.quota)))
    if model.bytes_per_second is not None:
        made.append(_CGROUPS / "blkio/infercanary-limits")
        made[-1].mkdir(exist_ok=True)
        number = os.stat(_FILE.parent).st_dev
        limit = f"{os.major(number)}:{os.minor(number)} {model.bytes_per_second}"
        (made[-1] / "blkio.throttle.read_bps_device").write_text(limit)
    yield made


@contextmanager
def child(command: list[str], name: str, seed: int, change: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a command for a model, pinned to CPU 0 and with one thread."""
    variables = {"LIMITS_MODEL": f"{name},{seed},{change}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with groups(MODELS[name], change) as made:

        def enter() -> None:
            os.sched_setaffinity(0, {0})
            for group in made:
                (group / "cgroup.procs").write_text("0")

        with subprocess.Popen(
            command, cwd=Path(__file__).parent, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE,
            preexec_fn=enter,  # noqa: PLW1509 - this process has no threads
            env=os.environ | variables | (_NARROW if change == "narrow" else {}),
        ) as process:  # fmt: skip
            yield process


def ratios(name: str, seed: int, changes: Sequence[str]) -> dict[str, float]:
    """Return change → median ratio of the times with and without the change."""
    command = [sys.executable, __file__, "--serve"]
    with ExitStack() as stack:
        processes = {
            change: stack.enter_context(child(command, name, seed, change)) for change in ("", *changes)
        }
        found: dict[str, list[float]] = {change: [] for change in changes}
        for _ in range(_ROUNDS):
            seconds = {change: _ask(process) for change, process in processes.items()}
            for change in changes:
                found[change].append(seconds[change] / seconds[""])
        for process in processes.values():
            process.kill()
    return {change: median(values) for change, values in found.items()}


def _ask(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def diagnosed(name: str, seed: int) -> dict[str, Any]:
    """Return the doctor's answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as settings:
        options = {"model": "limits:model", "inputs": [{"shape": [1]}]}
        json.dump({"canaries": {name: {"target": "torch", "options": options}}}, settings)
        settings.flush()
        command = [sys.executable, "-m", "infercanary", "doctor", "--json", "--limits", settings.name]
        with child(command, name, seed) as process:
            output, said = process.communicate()
    if not output:
        raise RuntimeError(said)
    answer: dict[str, Any] = json.loads(output)["canaries"][0]
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="sizes of each model")
    parser.add_argument("--only", choices=MODELS, help="a single model")
    parser.add_argument("--serve", action="store_true", help="time the model in LIMITS_MODEL")
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return 0
    # References with other sizes than the models.
    narrow, fit = ratios("gemm", -1, ["narrow"])["narrow"], ratios("copy", -1, ["fit"])["fit"]
    print(f"narrow instructions: a matrix product takes {narrow:.2f} times as long")
    print(f"data in the cache: a copy takes {fit:.2f} times as long\n")
    print(
        f"{'model':<12} {'compute':>7} {'memory':>7} {'own':>5}  {'truth':<10} {'answer':<10} shares of the answer"
    )
    named: list[bool] = []
    for name, model in MODELS.items():
        for seed in range(asked.seeds if asked.only in (None, name) else 0):
            found = ratios(name, seed, ["narrow", "fit", *(["own"] if model.resource else [])])
            own = model.share(found["own"]) if model.resource else 0.0
            rest = found["own"] if model.quota else 1.0  # time without the quota
            shares = {
                "compute": (found["narrow"] - rest) / (narrow - 1),
                "memory": (rest - found["fit"]) / (1 - fit),
            }
            largest = max(shares, key=lambda resource: shares[resource])
            truth, share = (model.resource, own) if own > shares[largest] else (largest, shares[largest])
            answer = diagnosed(name, seed)
            named.append(share >= LEAST and truth in (answer["limit"], answer["tied_with"]))
            reason = answer["why"] or ", ".join(
                f"{k} {v:.2f}" for k, v in answer["shares"].items() if v >= 0.005
            )
            print(
                f"{name:<12} {shares['compute']:>7.2f} {shares['memory']:>7.2f} {own:>5.2f}  {truth:<10} "
                f"{answer['limit']:<10} {reason}",
                flush=True,
            )
    for group in _CGROUPS.glob("*/infercanary-limits"):
        group.rmdir()
    ends = binomtest(sum(named), len(named)).proportion_ci(method="wilson")
    print(f"\nnamed right: {sum(named)} of {len(named)}, 95 % interval [{ends.low:.0%}, {ends.high:.0%}]")
    return 0 if sum(named) >= GOAL * len(named) else 1


if __name__ == "__main__":
    sys.exit(main())
