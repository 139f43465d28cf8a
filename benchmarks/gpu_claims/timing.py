"""Claims on timing: phases of a canary against the profiler's kernels and a plain measurement, in each mode."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from gpu import GOAL, kernel_seconds
from gpu_claims.claim import Measured, interval
from gpu_claims.step import ROOT, NotRun, Place, need, step, synchronized, torch_module
from infercanary.probe import TorchTarget

_ROUNDS, _REPEATS = 8, 10
MODES = ("eager", "compile", "max-autotune", "graph", "torchscript")


def model(place: Place) -> tuple[Any, list[int]]:
    """Return the example's ResNet-18 and a batch that is large enough to leave hardly any gaps between kernels."""
    if (folder := str(ROOT / "examples/resnet18")) not in sys.path:
        sys.path.insert(0, folder)
    from model import SHAPE, build

    batch, side = (256, SHAPE[2]) if place.on_gpu else (1, 64)
    return build().to(place.device).eval(), [batch, SHAPE[1], side, side]


def target(place: Place, mode: str) -> TorchTarget:
    """Return a target of the model in one mode; the target is not open yet."""
    torch = torch_module(place)
    made, shape = model(place)
    inputs, options = [{"shape": shape}], {"device": place.device}
    if mode in ("compile", "max-autotune"):
        if place.on_gpu:
            need("triton")
        compile_mode = "max-autotune" if mode == "max-autotune" else None
        return TorchTarget(made, inputs, mode="compile", compile_mode=compile_mode, **options)  # type: ignore[arg-type]
    if mode == "graph":
        return TorchTarget(made, inputs, mode="graph", **options)  # type: ignore[arg-type]
    if mode == "torchscript":
        path = place.folder / "model.pt"
        with torch.inference_mode():
            torch.jit.save(torch.jit.trace(made, torch.zeros(shape, device=place.device)), str(path))
        return TorchTarget(str(path), inputs, **options)  # type: ignore[arg-type]
    return TorchTarget(made, inputs, **options)  # type: ignore[arg-type]


def _plain(torch: Any, place: Place, work: Callable[[], object]) -> float:
    """Return the wall seconds of one inference without InferCanary."""
    begin = time.perf_counter()
    work()
    synchronized(torch, place)
    return time.perf_counter() - begin


def _step(mode: str) -> Callable[[Place], list[Measured]]:
    def measure(place: Place) -> list[Measured]:
        torch = torch_module(place)
        if mode == "graph" and not place.on_gpu:
            raise NotRun("a CUDA graph needs CUDA")
        if mode in ("compile", "max-autotune") and not place.on_gpu and place.scale < 0.5:
            raise NotRun("compiling takes a minute; run the step with SCALE=1")
        each = target(place, mode)
        each.open()
        try:
            for _ in range(3):
                each.clock.measure(each.run)
            ratios, launches, walls = [], [], []
            for _ in range(place.times(_ROUNDS)):
                timings = [each.clock.measure(each.run)[0] for _ in range(_REPEATS)]
                compute = statistics.median(t.phases["compute"] for t in timings)
                if place.on_gpu:
                    ratios.append(compute / kernel_seconds(each, _REPEATS))
                launches.append(statistics.median(t.phases.get("launch", 0.0) for t in timings))
                plain = statistics.median(
                    _plain(torch, place, lambda: each.run(_no_phase)) for _ in range(_REPEATS)
                )
                walls.append(statistics.median(t.wall for t in timings) / plain)
        finally:
            each.close()
        rows = []
        if ratios:
            rows.append(
                Measured(
                    f"{mode}: `compute` is the time of the profiler's kernels",
                    f"within {GOAL:.0%} of 1",
                    *interval(ratios),
                    1 - GOAL,
                    1 + GOAL,
                )
            )
        rows.append(
            Measured(
                f"{mode}: the wall time is that of a plain call",
                "within 3 % of 1",
                *interval(walls),
                0.97,
                1.03,
                note=f"launch {statistics.median(launches) * 1e6:.0f} µs",
            )
        )
        return rows

    return measure


class _NoPhase:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _no_phase(_: str) -> _NoPhase:
    return _NoPhase()


for _mode in MODES:
    step(f"timing-{_mode}", f"events, profiler and host launch of ResNet-18, {_mode}")(_step(_mode))
