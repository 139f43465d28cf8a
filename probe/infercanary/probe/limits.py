"""Measures the present limit of each canary: a profile, timed repeats, and the ceilings of its engine.

The fastest of several repeats gives a ceiling, so that a contended repeat does not lower the ceiling.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from infercanary.command.settings import UsageError
from infercanary.contract.profile import OK, Profile
from infercanary.probe.canary import Canary
from infercanary.probe.profiling import profile_each
from infercanary.probe.roofline import CanaryLimit, Ceilings, Timed, find_limit
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.cgroup.files import text
from infercanary.probe.targets import Failure, Need, Target
from infercanary.probe.targets.engines import torch_profile
from infercanary.probe.targets.engines.onnx_binding import HostBinding
from infercanary.probe.targets.matmul import MatmulTarget
from infercanary.probe.targets.onnx import OnnxTarget
from infercanary.probe.timing import Clock, HostClock, Phase

log = logging.getLogger("infercanary.probe")

_SECONDS = 2.0  # seconds of measurement: 20 periods of a CPU quota
_MOST = 500  # timed repeats
_REPEATS = 8  # maximum number of repeats in a profile
_DOUBLINGS = 8  # maximum number of times that the batch is doubled
_LONGEST = 1.0  # longest seconds of a batch that is doubled again
_GAIN = 1.1  # minimum gain of throughput that is worth a doubled batch
_CPUS = Path("/sys/devices/system/cpu")
_CACHE = 32 << 20  # bytes, if the size of the last-level cache is unknown
_PRECISIONS = {"float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16"}
"""Dtype in the profiler's words → precision of the target ``matmul``."""
# ONNX models with one node for float32 inputs `a` and `b` of any shape. They are stored here because images often
# lack the package `onnx`.
_TYPES = b"Z\t\n\x01a\x12\x04\n\x02\x08\x01Z\t\n\x01b\x12\x04\n\x02\x08\x01b\t\n\x01c\x12\x04\n\x02\x08\x01B\x02\x10\r"
_MATMUL = b'\x08\x08:7\n\x11\n\x01a\n\x01b\x12\x01c"\x06MatMul\x12\x01g' + _TYPES
_ADD = b'\x08\x08:4\n\x0e\n\x01a\n\x01b\x12\x01c"\x03Add\x12\x01g' + _TYPES
_ONNX_CALL = 1e-6  # seconds, because the profiler counts in whole microseconds


def limit_each(canaries: Sequence[Canary]) -> list[CanaryLimit]:
    """Find the limits of canaries one after another in the calling thread, while a person waits for the result.

    Args:
        canaries: Canaries after an attempt to open them.
    """
    found = []
    for canary in canaries:
        log.info("canary %s: profiling, timing, and measuring the ceilings", canary.name)
        found.append(_limit(canary))
    return found


def _limit(canary: Canary) -> CanaryLimit:
    profile = profile_each([canary], None)[canary.name]
    timed = _time(canary) if canary.is_open else str(profile)
    if isinstance(timed, str):
        return CanaryLimit(canary=canary.name, why=timed)
    ceilings: Ceilings | str = str(profile)
    batch = None
    try:
        if isinstance(profile, Profile):
            batch = _useful_batch(canary.target, profile)
            ceilings = _ceilings(canary.target, profile, "cpu" if canary.cuda_missing else canary.device)
    except (Failure, UsageError) as error:
        ceilings = str(error)
    return msgspec.structs.replace(find_limit(canary.name, timed, profile, ceilings), useful_batch=batch)


def _useful_batch(target: Target, profile: Profile) -> int | None:
    """Return the largest doubled batch that raised the throughput; None if doubling does not help or fails."""
    own = batch = int(target.samples)
    best, seconds = math.inf, 0.0  # best seconds of a sample, and seconds of the last batch
    with suppress(Exception):  # the model rejects this size, or memory is insufficient
        while batch <= own << _DOUBLINGS and seconds < _LONGEST:
            with closing(target.copy_with_batch(batch)) as copy:
                seconds = _fastest(copy.clock, copy.run)
                if seconds * _GAIN > best * batch:
                    break
                if batch == 2 * own and _shapes(copy.profile(1)) == _shapes(profile):
                    break  # the model ignores the batch size
            batch, best = 2 * batch, seconds / batch
    return batch // 2 if batch > 2 * own else None


def _shapes(profile: Profile) -> set[str]:
    return {row.shapes for row in profile.rows}


def _time(canary: Canary) -> Timed | str:
    """Time repeats; return the reason if no repeat was timed."""
    container = ContainerCpu()
    before = container.throttled()
    done = canary.round(int(10 + _SECONDS / max(canary.repeat_cost, _SECONDS / _MOST)))
    if not (done and done.timings):
        return done.detail if done else "the canary did not run"
    off_cpu = {name: fmean(repeat[name] for repeat in done.off_cpu) for name in done.off_cpu[0]}
    throttled = (container.throttled() - before) / done.inferences
    return Timed(fmean(done.latencies), done.phases, off_cpu, throttled)


def _ceilings(target: Target, profile: Profile, device: str) -> Ceilings | str:
    """Measure the ceilings of an open target, in about a second. Return a reason if a measurement is not possible.

    Raises:
        Failure: Memory is insufficient.
        UsageError: The device cannot compute the dtype natively.
    """
    if profile.state != OK:
        return f"the profile has no times of kernels ({profile.state})"
    largest = max(profile.rows, key=lambda row: row.flops, default=None)
    dtype = largest.shapes.partition(",")[0].partition(" ")[2] if largest and largest.flops else "float"
    if isinstance(target, OnnxTarget):
        return _onnx_ceilings(target)
    torch = torch_profile.import_torch()
    product = MatmulTarget(device=device, precision=_PRECISIONS.get(dtype, dtype))
    product.open()
    cache = 0 if device == "cpu" else torch.cuda.get_device_properties(device).L2_cache_size
    elements = _elements(target, cache)
    with torch.inference_mode():
        a, b, one = (torch.ones(n, device=device) for n in (elements, elements, 1))

        def call(phase: Phase) -> None:
            for _ in range(100):
                torch.add(one, one, out=one)

        row = torch_profile.profile_repeats(torch, product.clock, call, _REPEATS, device, None).rows[0]
        return Ceilings(
            dtype,
            2.0 * product.size**3 / _fastest(product.clock, product.run),
            8.0 * elements / _fastest(product.clock, lambda _: a.copy_(b)),
            median(row.seconds) / row.calls,
        )


def _onnx_ceilings(target: OnnxTarget) -> Ceilings:
    import numpy as np
    import onnxruntime as ort

    elements, size, fastest = _elements(target), 1024, []
    for model, shape in ((_MATMUL, (size, size)), (_ADD, (elements,))):
        session = ort.InferenceSession(model, target.session_options(), providers=["CPUExecutionProvider"])
        array = np.ones(shape, np.float32)
        fastest.append(_fastest(HostClock(), HostBinding(session, {"a": array, "b": array}).run))
    return Ceilings("float", 2.0 * size**3 / fastest[0], 8.0 * elements / fastest[1], _ONNX_CALL)


def _elements(target: Target, cache: int = 0) -> int:
    """Return the float32 elements of a buffer of 1.1 times the last-level caches, if memory suffices for three
    buffers.

    Args:
        target: Target that reserves the memory.
        cache: Bytes of the cache; 0 for the sum of the caches of the allowed CPUs.
    """
    folders = [_CPUS / f"cpu{cpu}/cache/index3" for cpu in os.sched_getaffinity(0)]
    sizes = {text(folder / "shared_cpu_list"): text(folder / "size") for folder in folders}
    cache = cache or sum(int(size.rstrip("K") or 0) << 10 for size in sizes.values()) or _CACHE
    target.ask_for_memory([Need("limits", 4 * cache, "buffers larger than the cache", "raise the limit")])
    return cache * 11 // 40


def _fastest(clock: Clock, run: Callable[[Phase], Any]) -> float:
    clock.measure(run)  # warm-up
    return min(clock.measure(run)[0].wall for _ in range(_REPEATS))
