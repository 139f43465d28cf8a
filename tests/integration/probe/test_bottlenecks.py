"""The probe names the cause of a slower process on a CPU: memory, compute, io or scheduling."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from typing import NamedTuple

import pytest
from fresh import running
from probe_process import PROBE, ProbeProcess

from infercanary.compare.comparison import compare_runs
from infercanary.compare.read import read
from infercanary.contract.vocabulary import Bottleneck
from infercanary.judge.policy import FILES

CPUS = sorted(os.sched_getaffinity(0))
RUNS = 2 * FILES.pool.fewest_runs
"""With fewer runs, the interval of a control is so wide that memory could explain any shift."""
TORCH = "convolutions"
LEAST_SLOWER = 1 + 2 * FILES.decide.smallest_effect
"""Smallest slowdown of a copy at which memory must be named."""

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.campaign,
    pytest.mark.skipif(len(CPUS) < 2, reason="a neighbour needs a separate CPU"),
]


class Trouble(NamedTuple):
    canary: str
    is_named: Bottleneck
    beside: str = ""
    """Code of a process beside the canary."""
    on_its_cpu: bool = False
    """True if this process has the canary's CPU; otherwise there is one process on each other CPU."""
    cpus: int = 1
    """Number of the canary's CPUs, and of its threads without the trouble."""
    environment: Mapping[str, str] = {}
    options: Mapping[str, object] = {}
    """Options of the canary's target."""


TROUBLES = {
    "memory_bandwidth_taken": Trouble(
        "copy", "memory",
        "import numpy as np; a = np.ones(1 << 23); b = np.ones(1 << 23); print(flush=True)\n"
        "while True: np.copyto(b, a)",
    ),
    "lower_instruction_set": Trouble(
        TORCH, "compute", environment={"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    ),
    "page_cache_dropped": Trouble("read", "io", options={"forgotten": True}),
    "one_thread_too_many": Trouble(TORCH, "scheduling", cpus=2, environment={"OMP_NUM_THREADS": "3"}),
    "busy_sibling": Trouble("spin", "scheduling", "print(flush=True)\nwhile True: pass", on_its_cpu=True),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bottlenecks")
    with (made / "weights").open("wb") as file:
        file.write(os.urandom(8 << 20))
        file.flush()
        os.fsync(file)
    return made


@pytest.mark.parametrize("trial", range(1, 11))
@pytest.mark.parametrize(
    "made", [pytest.param(made, id=f"{made}-is-{of.is_named}") for made, of in TROUBLES.items()]
)
def test_it_is_named(made, trial, folder):
    trouble = TROUBLES[made]
    before = healthy(folder, trouble.canary, trouble.cpus)
    with ExitStack() as stack:
        for cpu in () if not trouble.beside else CPUS[:1] if trouble.on_its_cpu else CPUS[1:]:
            stack.enter_context(beside(trouble.beside, cpu))
        after = probed(folder, f"{made}-{trial}", trouble)
    found = compare_runs(
        trouble.canary, *(read([str(path)]).canaries[trouble.canary] for path in (before, after))
    )
    print(f"{made}: {found.sentence}; {found.causes and found.causes.bottlenecks}")
    named = next(iter(found.causes.bottlenecks), None) if found.causes is not None else None
    is_slower = found.shift is not None and found.shift > FILES.decide.smallest_effect
    if not is_slower or named != trouble.is_named:
        skip_without_a_cause(trouble, folder, named)
    assert is_slower and named == trouble.is_named, found.sentence


def skip_without_a_cause(trouble, folder, named):
    """Skip if the trouble has no effect on this machine: other load uses the bandwidth, or a cache has the
    disk's content.
    """
    if trouble.canary == "read" and (share := waiting_for_disk(folder / "weights")) < 0.75:
        pytest.skip(f"no cause to name: {share:.0%} of a read from this disk is wait")
    if trouble.canary == "copy" and named == "unknown":
        pytest.skip("the bandwidth here varies as much as the trouble: the judge reports no cause")
    if trouble.canary == "copy" and (ratio := copies_beside(trouble.beside)) < LEAST_SLOWER:
        pytest.skip(
            f"no cause to name: beside copies on the other CPUs, a copy takes only {ratio:.3f} times as long"
        )


def waiting_for_disk(path):
    """Return the fraction of time that a read waits for the disk, measured without InferCanary's code.

    If the host caches the content of a virtual disk in memory, the data arrive almost as fast as the kernel
    copies them.
    """
    shares = []
    for _ in range(15):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began, computed = time.perf_counter(), time.thread_time()
            file.read()
            shares.append(1 - (time.thread_time() - computed) / (time.perf_counter() - began))
    return statistics.median(shares)


COPIES = """
import numpy as np, time
a, b, times = np.ones(1 << 20), np.ones(1 << 20), []
for _ in range(1000):
    begin = time.perf_counter()
    np.copyto(b, a)
    times.append(time.perf_counter() - begin)
print(sorted(times)[500])
"""


def copies_beside(code):
    """Return the slowdown of a copy beside these processes, as a ratio measured without InferCanary's code."""
    command = ["taskset", "--cpu-list", str(CPUS[0]), sys.executable, "-c", COPIES]

    def median():
        return min(float(subprocess.check_output(command)) for _ in range(3))

    alone = median()
    with ExitStack() as stack:
        for cpu in CPUS[1:]:
            stack.enter_context(beside(code, cpu))
        return median() / alone


@cache
def healthy(folder, canary, cpus):
    return probed(folder, f"healthy-{canary}-{cpus}", Trouble(canary, "compute", cpus=cpus))


def probed(folder, name, trouble):
    journal = folder / f"{name}.jsonl"
    settings = json.dumps({trouble.canary: settings_of(trouble, folder)})
    command = ["taskset", "--cpu-list", ",".join(map(str, CPUS[: trouble.cpus])), *PROBE]
    environment = {"OMP_NUM_THREADS": str(trouble.cpus), **trouble.environment}
    with ProbeProcess(
        folder / name, settings, f"journal: {journal}", command=command, environment=environment
    ) as probe:
        deadline = time.monotonic() + 90
        while settled(journal, trouble.canary) < RUNS:
            assert probe.process.poll() is None and time.monotonic() < deadline, probe.output()
            time.sleep(0.1)
    return journal


def settings_of(trouble, folder):
    if trouble.canary == TORCH:
        model = {
            "model": "bottlenecked:convolutions",
            "inputs": [{"shape": [1, 64, 56, 56]}],
            "device": "cpu",
        }
        return {"target": "torch", "options": model}
    path = {"path": str(folder / "weights")} if trouble.canary == "read" else {}
    return {"target": f"bottlenecked:{trouble.canary.title()}", "options": {**path, **trouble.options}}


def settled(journal, canary):
    if not journal.exists():
        return 0
    found = read([str(journal)]).canaries.get(canary)
    return found.runs if found is not None else 0


def beside(code, cpu):
    return running("taskset", "--cpu-list", str(cpu), sys.executable, "-c", code)
