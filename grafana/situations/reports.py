"""What a probe reports in a situation: every metric that the probe declares, so that a new one is in it by being there.

What a healthy probe on a CPU or a GPU says, and what each trouble changes. GPUs say what a real H100 said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import infercanary.probe
from docs.generate import VALUES, declared
from grafana.situations.moments import INTERVAL, REPEATS, Moment
from grafana.situations.values import on_gpu, value
from grafana.situations.worlds import Image, Server
from infercanary.contract.profile import Profile, ProfileRow
from infercanary.contract.report import (
    LADDER,
    LATENCY,
    SCHEMA_VERSION,
    Family,
    HistogramValue,
    Metric,
    Report,
    Run,
)
from infercanary.contract.vocabulary import CONTROLS

_H100 = Path(__file__).parents[2] / "tests/golden/nvml_h100_80gb_hbm3_loaded.metrics"
_PREFIX = "infercanary_"
_FIRST_PROFILED, _PROFILED_EVERY = 3, 60
_POINTS = [(batch, concurrency) for batch in ("1", "4", "16") for concurrency in ("1", "2")]


def report(now: Moment, since: float) -> Report:
    """What its probe answers, with the runs since a time.

    Args:
        now: The server at the time of the answer.
        since: Unix seconds.

    Returns:
        A whole report.
    """
    first = max(0, math.ceil((max(since, now.started + 20) - now.started) / INTERVAL))
    runs = [_run(now, number) for number in range(max(first, 2), int(now.passed / INTERVAL))]
    return Report(
        SCHEMA_VERSION,
        f"{now.server.name} {now.order}",
        now.started,
        str(int(now.at)),
        0,
        tuple(_families(now)),
        _environment(now),
        tuple(runs),
        {now.server.canary: (1.0 + now.image.wrong, 2.0, 3.0)},
    )


def _environment(now: Moment) -> dict[str, str]:
    return dict(now.image.environment) | {
        f"model:{now.server.canary}": "8c1f",
        "cpuset_cpus": "0-3",
        "cpu_model": now.server.cpu,
    }


def _run(now: Moment, number: int) -> Run:
    at = now.started + number * INTERVAL
    latency = now.latency(number)
    failing = "failing" in now.troubles and number % 2 == 0
    slow = 1.25 if "host" in now.troubles else 1.0
    controls = {
        name: 0.0004 * (slow if kind.in_step else 1.0) * (1 + 0.01 * math.sin(number + len(name)))
        for name, kind in CONTROLS.items()
        if kind.made_of is None and (now.server.gpu or not name.startswith("gpu_"))
    }
    return Run(
        sequence=number,
        canary=now.server.canary,
        scheduled_at=at,
        started_at=at,
        outcome="raised" if failing else "ok",
        detail="RuntimeError: expected 3 channels" if failing else "",
        latencies=() if failing else tuple(latency * (1 + 0.002 * i) for i in range(REPEATS)),
        phases={} if failing else {name: latency * share for name, share in now.phases.items()},
        controls=controls,
        tags=("cgroup_throttled",) if "throttled" in now.troubles else (),
        output_error=0.2 if "wrong" in now.troubles else 0.0,
        waited=0.2 * latency if "shared" in now.troubles else 0.0,
        sm_clock=1.98e9 if now.server.gpu else None,
        profile=None
        if failing or number % _PROFILED_EVERY != _FIRST_PROFILED
        else _profile(now, at, latency),
        measures={"host_memory": 6e8 * (1.2 if now.image.slower else 1.0)},
    )


def _profile(now: Moment, at: float, latency: float) -> Profile:
    """Five repeats, in which what an image is slower by is the convolution's."""
    usual = latency / (1 + now.image.slower)
    device = "cuda:0" if now.server.gpu else "cpu"
    times = {"aten::conv2d": latency - 0.4 * usual, "aten::linear": 0.2 * usual, "aten::relu": 0.1 * usual}
    shapes = "1x64x56x56 float, 64x64x3x3 float"
    rows = tuple(
        ProfileRow(name, name, device, shapes, 1.0, tuple(seconds * (1 + 0.002 * i) for i in range(5)))
        for name, seconds in times.items()
    )
    wall = tuple(sum(row.seconds[i] for row in rows) + 0.1 * usual for i in range(5))
    return Profile(at, "torch", "ok", wall, (0.1 * usual,) * 5, (0.0,) * 5, rows)


def _families(now: Moment) -> Iterator[Family]:
    if "rejected" in now.troubles:
        yield Family("not a name", "gauge", "The exporter leaves it out.", (), ())
    gpu = _h100() if now.server.gpu else {}
    for metric in _metrics():
        stem = metric.name.removeprefix(_PREFIX)
        if metric.kind == "histogram":
            if metric.name == LATENCY.name or not now.server.brief:
                yield metric.family(dict(_histograms(now, metric)))
        elif metric.labels == ("component", "version"):
            yield metric.family(dict.fromkeys(_environment(now).items(), 1.0))
        elif metric.name in gpu:
            yield metric.family(
                {labels: on_gpu(now, stem, labels, x) for labels, x in gpu[metric.name].items()}
            )
        elif not stem.startswith(_absent(now)):
            points = {labels: value(now, metric, stem, labels) for labels in _labels(now, metric, stem)}
            yield metric.family({labels: x for labels, x in points.items() if x is not None})


@cache
def _metrics() -> Sequence[Metric]:
    return declared((infercanary.probe,))


@cache
def _h100() -> Mapping[str, Mapping[tuple[str, ...], float]]:
    labels = {metric.name: metric.labels for metric in _metrics()}
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(_H100.read_text(encoding="utf-8")):
        for sample in family.samples:
            if sample.name in labels:
                # What would name a real GPU was left out.
                values = tuple(sample.labels[name].replace("…", "GPU-5ba1e7") for name in labels[sample.name])
                found.setdefault(sample.name, {})[values] = sample.value
    return found


def _absent(now: Moment) -> tuple[str, ...]:
    """First words of what such a probe does not report."""
    absent = ["matmul_", "server_seconds", "beside_"]
    absent += [] if now.server.streams else ["first_token", "between_tokens", "output_tokens"]
    absent += [] if now.server.sweeps else ["sweep_"]
    absent += (
        []
        if now.server.gpu
        else ["gpu_", "nvml_call", "nvml_field", "run_energy", "canary_off_node", "process_off_node"]
    )
    absent += [] if "failing" in now.troubles else ["canary_failure_info"]
    absent += [] if "gpu" in now.troubles and not now.server.gpu else ["cuda_missing"]
    return tuple(absent)


def _histograms(now: Moment, metric: Metric) -> Iterator[tuple[tuple[str, ...], HistogramValue]]:
    runs = max(0, int(now.passed / INTERVAL) - 2)
    shares = now.phases if "phase" in metric.labels else {"": 1.0}
    repeats = 1 if "intended" in metric.name else REPEATS
    for phase, share in shares.items():
        counts, total = _observed(now.server, now.order, now.image, share, runs, now.troubles)
        labels = (now.server.canary, phase) if phase else (now.server.canary,)
        yield labels, HistogramValue(tuple(repeats * count for count in counts), repeats * total)


def _observed(
    server: Server, order: int, image: Image, share: float, runs: int, troubles: frozenset[str]
) -> tuple[list[int], float]:
    """How many of the runs lie on each rung, and the sum of all."""
    level = math.log(server.latency * (1 + image.slower) * share * (1.25 if "host" in troubles else 1.0))
    counts = [0] * (len(LADDER) + 1)
    # As a normal distribution of 8 % has it, in nine parts: a histogram must never shrink, and this one does not.
    for part, weight in ((-2, 0.02), (-1.2, 0.13), (-0.5, 0.2), (0, 0.3), (0.5, 0.2), (1.2, 0.13), (2, 0.02)):
        rung = 4 * (level + 0.08 * part - math.log(LADDER[0])) / math.log(2)
        counts[max(0, min(len(LADDER), math.ceil(rung)))] += int(runs * weight)
    return counts, math.exp(level) * sum(counts)


def _labels(now: Moment, metric: Metric, stem: str) -> Iterator[tuple[str, ...]]:
    if stem.startswith("sweep_") and "batch" in metric.labels:
        yield from ((now.server.canary, *point) for point in _POINTS)
        return
    known: dict[str, Sequence[str]] = {
        "canary": [now.server.canary],
        "gpu": ["0"],
        "device": ["cpu", "cuda:0"] if now.server.gpu else ["cpu"],
        "cpus": ["0-3"],
        "xid": ["79"],
        "call": ["nvmlDeviceGetFieldValues"],
        "prompt": ["salted", "plain"],
        "detail": ["RuntimeError: expected 3 channels"],
        "phase": [*now.phases],
    }
    values = [known.get(name) or VALUES.get((stem, name)) or [f"some {name}"] for name in metric.labels]
    for labels in product(*values):
        if "control" not in metric.labels or _has_control(*labels[:2]):
            yield labels


def _has_control(device: str, control: str) -> bool:
    return control.startswith("gpu_") == (device != "cpu") and not control.endswith("_python")
