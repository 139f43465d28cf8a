"""Compares the limit that `infercanary doctor --limits` names with the effect of interventions on the same model.

Twelve models of torch and eight of ONNX Runtime have seeded sizes and run on the CPU, with one thread, pinned to CPU 0.
The truth of a model is measured, and not decided by its author: its time is taken again after a change that touches one
resource. The share of the time that depends on the resource follows:

- compute: narrower vector instructions, SSE in MKL, oneDNN and ONNX Runtime, and AVX2 in torch's own loops. The effect
  on a reference, a large matrix product, counts as 1.
- memory: the same operations on data that fit into the second-level cache. The effect on a reference, a large copy
  (ONNX Runtime: Relu), counts as 1.
- scheduling: without the quota; without the thread that holds the lock; without the operators (the remaining time is
  Python's); or with each operator split in two, with the same work in all (the added time is that of calls).
- io: the file stays in the page cache.

With a quota, any saved work also saves pauses. So the quota's share is taken first, and compute and memory share the
time that remains without the quota.

The truth is the resource with the largest share. All variants of a model run in turn, for a quarter of a second each,
so the machine's other load affects them alike. Needs root and cgroup v1, for the quota and a slow disk. Exits with 1 if
less than 90 % are named right.

With --batches, the batch until which larger batches help, as the doctor names it, is compared with the throughput of
each batch, measured in the same way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any, NamedTuple

from scipy.stats import binomtest

import limits_torch
from limits_onnx import GRAPHS, on_onnx

GOAL = 0.9
LEAST = 0.3
"""Smallest share of a resource that counts as the true limit of a model."""

_CGROUPS = Path("/sys/fs/cgroup")
_NARROW = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",  # SSE2, for CPUs of other vendors as well
}
_SECONDS, _ROUNDS = 0.25, 7
_QUOTA = 0.4
_DISK = 100 << 20  # bytes per second

Build = Callable[[random.Random, str], limits_torch.Run]
"""Builds a model from the source of its sizes, and from the change: "", "narrow", "fit", "own" or a batch."""


class Model(NamedTuple):
    """A model, and its own intervention."""

    build: Build
    resource: str = ""
    """Resource that the model's own intervention changes; empty without an own intervention."""
    share: Callable[[float], float] = lambda ratio: 1 - ratio
    """Share of the time, by the ratio of the times after and before the intervention."""
    quota: float | None = None
    bytes_per_second: int | None = None
    shape: Sequence[int] = (1,)
    """Shape of the input; the data of most models are not inputs."""


MODELS = {
    "gemm": Model(limits_torch.gemm),
    "convolution": Model(limits_torch.convolution),
    "prefill": Model(limits_torch.prefill),
    "chain": Model(limits_torch.chain),
    "copy": Model(limits_torch.copy),
    "decode": Model(limits_torch.decode),
    "gather": Model(limits_torch.gather),
    "tiny": Model(limits_torch.tiny, "scheduling", lambda ratio: ratio - 1),
    "python": Model(limits_torch.python, "scheduling", lambda ratio: ratio),
    "lock": Model(limits_torch.lock, "scheduling"),
    "quota": Model(limits_torch.gemm, "scheduling", quota=_QUOTA),
    "file": Model(limits_torch.file, "io", bytes_per_second=_DISK),
    **{f"onnx {name}": Model(on_onnx(GRAPHS[f"onnx {name}"]))
       for name in ("gemm", "convolution", "prefill", "chain", "relu", "decode")},
    "onnx tiny": Model(on_onnx(GRAPHS["onnx tiny"]), "scheduling", lambda ratio: ratio - 1),
    "onnx quota": Model(on_onnx(GRAPHS["onnx gemm"]), "scheduling", quota=_QUOTA),
}  # fmt: skip
BATCHED = {
    "linear": Model(limits_torch.linear, shape=(1, 4096)),
    "image": Model(limits_torch.image, shape=(1, 64, 56, 56)),
    "small": Model(limits_torch.small, shape=(1, 64)),
    "onnx linear": Model(on_onnx(GRAPHS["onnx linear"])),
}
"""Models that use a batch; the change is the batch."""
ALL = MODELS | BATCHED


def model() -> limits_torch.Run:
    """Build the model that LIMITS_MODEL names; probe.yaml refers to this function as `limits:model`."""
    name, seed, change = os.environ["LIMITS_MODEL"].split(",")
    return ALL[name].build(random.Random(f"{name} {seed}"), change)


def serve() -> None:
    """For each line of standard input, run the model for a while, and print the mean seconds of an inference."""
    with ExitStack() as stack:
        if not os.environ["LIMITS_MODEL"].startswith("onnx"):
            import torch

            stack.enter_context(torch.inference_mode())
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
        number = os.stat(limits_torch.FILE.parent).st_dev
        limit = f"{os.major(number)}:{os.minor(number)} {model.bytes_per_second}"
        (made[-1] / "blkio.throttle.read_bps_device").write_text(limit)
    yield made


@contextmanager
def child(command: list[str], name: str, seed: int, change: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a command for a model, pinned to CPU 0 and with one thread."""
    variables = {"LIMITS_MODEL": f"{name},{seed},{change}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with groups(ALL[name], change) as made:

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
    """Return the median ratio of the times with and without each change."""
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
    with tempfile.TemporaryDirectory() as folder:
        file, settings = Path(folder, "model.onnx"), Path(folder, "probe.yaml")
        options: dict[str, Any] = {"model": "limits:model", "inputs": [{"shape": [*ALL[name].shape]}]}
        if name.startswith("onnx"):
            graph = GRAPHS[name.replace("quota", "gemm")](random.Random(f"{name} {seed}"), "")
            graph.save(file)
            options = graph.options(file)
        target = "onnx" if name.startswith("onnx") else "torch"
        canary = {"target": target, "options": options}
        settings.write_text(json.dumps({"canaries": {name.replace(" ", "-"): canary}}))
        command = [sys.executable, "-m", "infercanary", "doctor", "--json", "--limits", str(settings)]
        with child(command, name, seed) as process:
            output, said = process.communicate()
    if not output:
        raise RuntimeError(said)
    answer: dict[str, Any] = json.loads(output)["canaries"][0]
    return answer


def compare_batches() -> None:
    """Print the doctor's useful batch of each model, and the throughput of each batch relative to the batch before."""
    batches = [2**i for i in range(9)]
    print(
        f"{'model':<12} {'doctor':>6} {'measured':>8}  throughput of each batch / throughput of half the batch"
    )
    for name in BATCHED:
        answer = diagnosed(name, 0)
        found = ratios(name, 0, [str(batch) for batch in batches[1:]])
        rates = [1.0, *(batch / found[str(batch)] for batch in batches[1:])]
        gains = [after / before for before, after in itertools.pairwise(rates)]
        useful = 2 ** sum(1 for _ in itertools.takewhile(lambda gain: gain >= 1.1, gains))
        each = ", ".join(f"{batch}: {gain:.2f}" for batch, gain in zip(batches[1:], gains, strict=True))
        print(f"{name:<12} {answer['useful_batch'] or 1:>6} {useful:>8}  {each}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="sizes of each model")
    parser.add_argument("--only", help="models whose name begins with this text")
    parser.add_argument("--batches", action="store_true", help="compare useful batches instead")
    parser.add_argument("--serve", action="store_true", help="time the model in LIMITS_MODEL")
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return 0
    if asked.batches:
        compare_batches()
        return 0
    # References whose sizes differ from those of the models.
    references = {
        engine: (
            ratios(f"{engine}gemm", -1, ["narrow"])["narrow"],
            ratios(f"{engine}{copies}", -1, ["fit"])["fit"],
        )
        for engine, copies in (("", "copy"), ("onnx ", "relu"))
        if asked.only is None or asked.only.startswith("onnx") == (engine != "")
    }
    for engine, (narrow, fit) in references.items():
        print(f"{engine}narrow instructions: a matrix product takes {narrow:.2f} times as long")
        print(f"{engine}data in the cache: a copy takes {fit:.2f} times as long\n")
    print(
        f"{'model':<16} {'compute':>7} {'memory':>7} {'own':>5}  {'truth':<10} {'answer':<10} shares of the answer"
    )
    named: list[bool] = []
    for name, model in MODELS.items():
        narrow, fit = references.get("onnx " if name.startswith("onnx") else "", (0.0, 0.0))
        for seed in range(asked.seeds if asked.only is None or name.startswith(asked.only) else 0):
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
                f"{name:<16} {shares['compute']:>7.2f} {shares['memory']:>7.2f} {own:>5.2f}  {truth:<10} "
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
