"""Claims on controls: they are repeatable, a power cap slows them, and a neighbour on the GPU causes a tag.

The load comes from processes of this benchmark.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gpu_claims.claim import Measured, interval, share
from gpu_claims.step import Busy, NotRun, Place, run_median, step, torch_module
from infercanary.contract.report import Run, decode
from infercanary.contract.vocabulary import CONTROLS
from infercanary.probe import Probe, TorchTarget
from infercanary.probe.targets.controls import Seconds, available_controls

_ROUNDS, _REPEATS = 10, 40
_INTERVAL_SECONDS = 1.6
"""NVML's utilization covers up to the last second, which must not include the probe's own work."""


@contextmanager
def opened(place: Place) -> Iterator[Mapping[str, Seconds]]:
    controls, _ = available_controls(place.device)
    if not controls:
        raise NotRun(f"no controls are available for {place.device}")
    with ExitStack() as stack:
        works = {name: stack.enter_context(control()) for name, control in controls.items()}
        for work in works.values():
            for _ in range(20):
                work()
        yield works


def seconds(work: Seconds, repeats: int = _REPEATS) -> float:
    return statistics.median(work() for _ in range(repeats))


def of_kind(controls: Mapping[str, Any], bottleneck: str) -> str:
    """Return the name of the control that is limited by ``bottleneck``."""
    return next(name for name in controls if CONTROLS[name].bottleneck == bottleneck)


@step("controls-repeat", "each control repeats within 1 %")
def repeat(place: Place) -> list[Measured]:
    """Measure the scatter between rounds of 40 repeats, for each control of the device."""
    rows = []
    with opened(place) as controls:
        for name, control in controls.items():
            if CONTROLS[name].bottleneck == "scheduling":
                continue
            rounds = [seconds(control) for _ in range(place.times(2 * _ROUNDS))]
            middle = statistics.median(rounds)
            away = [abs(each / middle - 1) for each in rounds]
            rows.append(
                Measured(
                    f"{name} repeats",
                    "≤ 1 % from its median",
                    *interval(away),
                    most=0.01,
                    note=f"{len(rounds)} rounds, the farthest {max(away):.2%}",
                )
            )
    return rows


@step(
    "controls-memory-hog",
    "beside a process that copies memory, controls do not change, and runs are tagged",
)
def memory_hog(place: Place) -> list[Measured]:
    """Claim: controls do not change beside a process that copies memory.

    Without MPS, a GPU runs one process at a time. A control's repeat is shorter than a time slice, and its
    wait is excluded.
    """
    torch_module(place)
    with Busy(place, "memory", 1 if place.on_gpu else 2) as load:
        ratios = _under(place, load)
        rows = _tagged(place, load)
    name = of_kind(ratios, "memory")
    shared = "a GPU that processes share in turns"
    stays = Measured(f"{name} on {shared}", "within 5 % of 1", *interval(ratios[name]), 0.95, 1.05)
    return [stays, *rows]


def _under(place: Place, load: Busy) -> dict[str, list[float]]:
    """Return the ratios of loaded to unloaded time by control. Both times are measured in turns, so that drift
    cancels.
    """
    ratios: dict[str, list[float]] = {}
    with opened(place) as controls:
        for _ in range(place.times(5)):
            before = {name: seconds(control, 15) for name, control in controls.items()}
            with load.at_work():
                during = {name: seconds(control, 15) for name, control in controls.items()}
            for name in controls:
                ratios.setdefault(name, []).append(during[name] / before[name])
    return ratios


def _tagged(place: Place, load: Busy) -> list[Measured]:
    """Return the shares of a real probe's runs with the tag ``gpu_busy``, beside the load and without load."""
    probe = Probe(
        {"canary": TorchTarget(lambda x: x * 2, [{"shape": [1024]}], device=place.device)},
        listen="127.0.0.1:0",
        interval_seconds=_INTERVAL_SECONDS,
    )
    count = place.times(7)
    probe.start()
    try:
        _further(probe, 1)
        without = _further(probe, count)
        with load.at_work():
            _further(probe, 1)  # not counted: the run's NVML sample may include the second before the load
            beside = _further(probe, count)
    finally:
        probe.stop()
    name = "runs that say `gpu_busy`, {}".format
    return [
        Measured(name("beside another process"), "over half", *_said(beside), least=0.5),
        Measured(name("without one"), "under half", *_said(without), most=0.5),
    ]


def _said(runs: Sequence[Run]) -> tuple[float, float, float]:
    return share(sum("gpu_busy" in run.tags for run in runs), len(runs))


def _further(probe: Probe, count: int) -> Sequence[Run]:
    cursor = decode(probe.report("")).cursor
    until = time.monotonic() + 60 + count * 2 * _INTERVAL_SECONDS
    while time.monotonic() < until:
        runs = [run for run in decode(probe.report(cursor)).runs if run.outcome == "ok"]
        if len(runs) >= count:
            return runs[:count]
        time.sleep(0.1)
    raise RuntimeError(
        f"the probe finished fewer than {count} runs in {60 + count * 2 * _INTERVAL_SECONDS:g} s"
    )


@step("controls-neighbour", "controls beside a neighbour; a changed image changes only the canary")
def neighbour(place: Place) -> list[Measured]:
    """Measure the shifts of a canary and of a control: beside a neighbour, and after the canary's work doubled."""
    torch = torch_module(place)
    width = 4096 if place.on_gpu else 512
    matrix = torch.randn(width, width, device=place.device)
    once = TorchTarget(lambda x: x @ matrix, [{"shape": [width, width]}], device=place.device)
    twice = TorchTarget(lambda x: x @ matrix @ matrix, [{"shape": [width, width]}], device=place.device)
    by_neighbour, by_image, of_control = [], [], []
    for target in (once, twice):
        target.open()
    with Busy(place, "compute", 1 if place.on_gpu else 4) as load, opened(place) as controls:
        control = controls[of_kind(controls, "compute")]
        for _ in range(place.times(6)):
            alone, before = run_median(once), seconds(control, 15)
            by_image.append(run_median(twice) / alone / (seconds(control, 15) / before))
            with load.at_work():
                by_neighbour.append(run_median(once) / alone)
                of_control.append(seconds(control, 15) / before)
    for target in (once, twice):
        target.close()
    compared = [control / canary for control, canary in zip(of_control, by_neighbour, strict=True)]
    return [
        Measured(
            "a canary beside a neighbour that computes",
            "≥ 1.5 times",
            *interval(by_neighbour),
            least=1.5,
            note="it waits for its turns",
        ),
        Measured(
            "the control of arithmetic beside it, over the canary",
            "less: < 0.9 times",
            *interval(compared),
            most=0.9,
            note=f"the control {statistics.median(of_control):.2f} times: it is shorter than a turn",
        ),
        Measured(
            "a changed image moves the canary and not the control",
            "≥ 1.5 times",
            *interval(by_image),
            least=1.5,
        ),
    ]


@step("controls-power-cap", "a power cap under the benchmark's own load is recognised", needs_gpu=True)
def power_cap(place: Place) -> list[Measured]:
    """Measure NVML's seconds of `sw_power_cap` and the SM clock during matrix products in half precision."""
    from infercanary.probe.gpu.cuda_driver import pci_bus_id
    from infercanary.probe.samplers.nvml import NvmlSampler
    from infercanary.probe.tags import gpus_at, values

    torch_module(place)
    sampler, clocks, capped = NvmlSampler(), [], 0.0
    with Busy(place, "compute", 2) as load, opened(place) as controls:
        control = controls[of_kind(controls, "compute")]
        alone = [seconds(control) for _ in range(3)]
        (label,) = gpus_at(pci_bus_id(0), values(sampler.sample())) or ("0",)

        def held_back() -> tuple[float, float]:
            found = values(sampler.sample())
            reasons = found["infercanary_gpu_clock_event_seconds_total"]
            total = sum(
                value for (gpu, why), value in reasons.items() if gpu == label and why == "sw_power_cap"
            )
            return total, found["infercanary_gpu_sm_clock_hertz"][(label,)]

        begin, top = held_back()
        with load.at_work():
            time.sleep(3)
            loaded = []
            for _ in range(place.times(6)):
                loaded.append(seconds(control, 10) / statistics.median(alone))
                clocks.append(held_back()[1] / top)
                time.sleep(2)
            capped = held_back()[0] - begin
    sampler.close()
    if capped <= 0:
        raise NotRun(
            f"the load did not reach the power limit (clock: {statistics.fmean(clocks):.2f} times its first value)"
        )
    return [
        Measured(
            "load caps the power, and the sampler counts the seconds",
            "> 0 s",
            capped,
            capped,
            capped,
            least=1e-6,
            unit=" s",
        ),
        Measured("the control of arithmetic slows with it", "≥ 1.05 times", *interval(loaded), least=1.05),
    ]
