"""Report of a probe in a situation.

The report contains every metric that the probe declares, so a new metric needs no change here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import infercanary.probe
from docs.generate import VALUES, declared
from grafana.situations.moments import INTERVAL, REPEATS, Moment
from grafana.situations.values import value
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

_FIRST_PROFILED, _PROFILED_EVERY = 3, 60
_ERROR = "RuntimeError: expected 3 channels"
_NORMAL = ((-2, 0.02), (-1.2, 0.13), (-0.5, 0.2), (0, 0.3), (0.5, 0.2), (1.2, 0.13), (2, 0.02))
"""Normal distribution in seven parts: (standard deviations, share). Fixed parts, so that no bucket ever shrinks."""


def report(now: Moment, since: float) -> Report:
    """Return the probe's report, with the runs since a time (Unix seconds)."""
    first = max(2, math.ceil((max(since, now.started + 20) - now.started) / INTERVAL))
    runs = [_run(now, number) for number in range(first, int(now.passed / INTERVAL))]
    return Report(
        SCHEMA_VERSION,
        f"{now.server.name} {now.order}",
        now.started,
        str(int(now.started + now.passed)),
        0,
        tuple(_families(now)),
        dict(now.environment),
        tuple(runs),
        {now.server.canary: (1.0 + now.image.wrong, 2.0, 3.0)},
    )


def _run(now: Moment, number: int) -> Run:
    at = now.started + number * INTERVAL
    latency = now.latency(number)
    failing = "failing" in now.words and number % 2 == 0
    slow = 1.25 if "host" in now.words else 1.0
    controls = {
        name: 0.0004 * (slow if kind.in_step else 1.0) * (1 + 0.01 * math.sin(number + len(name)))
        for name, kind in CONTROLS.items()
        if ("gpu" in now.words or not name.startswith("gpu_"))
    }
    profiled = not failing and number % _PROFILED_EVERY == _FIRST_PROFILED
    return Run(
        sequence=number,
        canary=now.server.canary,
        scheduled_at=at,
        started_at=at,
        outcome="raised" if failing else "ok",
        detail=_ERROR if failing else "",
        latencies=() if failing else tuple(latency * (1 + 0.002 * i) for i in range(REPEATS)),
        phases={} if failing else {name: latency * share for name, share in now.phases.items()},
        controls=controls,
        tags=("cgroup_throttled",) if "throttled" in now.words else (),
        output_error=0.2 if "wrong" in now.words else 0.0,
        waited=0.2 * latency if "shared" in now.words else 0.0,
        sm_clock=1.98e9 if "gpu" in now.words else None,
        profile=_profile(now, at, latency) if profiled else None,
        measures={"host_memory": 6e8 * (1.2 if now.image.slower else 1.0)},
    )


def _profile(now: Moment, at: float, latency: float) -> Profile:
    """Return a profile of five repeats, in which the convolution takes all of the image's extra time."""
    usual = latency / (1 + now.image.slower)
    device = "cuda:0" if "gpu" in now.words else "cpu"
    times = {"aten::conv2d": latency - 0.4 * usual, "aten::linear": 0.2 * usual, "aten::relu": 0.1 * usual}
    repeats = [1 + 0.002 * i for i in range(5)]
    rows = tuple(
        ProfileRow(name, name, device, "1x64x56x56 float", 1.0, tuple(seconds * i for i in repeats))
        for name, seconds in times.items()
    )
    wall = tuple(sum(times.values()) * i + 0.1 * usual for i in repeats)
    return Profile(at, "torch", "ok", wall, (0.1 * usual,) * 5, (0.0,) * 5, rows)


def _families(now: Moment) -> Iterator[Family]:
    if "rejected" in now.words:
        yield Family("not a name", "gauge", "The exporter leaves it out.", (), ())
    for metric in _metrics():
        stem = metric.name.removeprefix("infercanary_")
        if metric.kind == "histogram":
            if metric.name == LATENCY.name or "brief" not in now.server.words:
                yield metric.family(dict(_histograms(now, metric)))
        elif metric.labels == ("component", "version"):
            yield metric.family(dict.fromkeys(now.environment.items(), 1.0))
        else:
            points = {labels: value(now, metric, stem, labels) for labels in _labels(now, metric, stem)}
            yield metric.family({labels: x for labels, x in points.items() if x is not None})


@cache
def _metrics() -> Sequence[Metric]:
    return declared((infercanary.probe,))


def _histograms(now: Moment, metric: Metric) -> Iterator[tuple[tuple[str, ...], HistogramValue]]:
    runs = max(0, int(now.passed / INTERVAL) - 2)
    for phase, share in now.phases.items() if "phase" in metric.labels else [("", 1.0)]:
        level = math.log(now.level * share)
        counts = [0] * (len(LADDER) + 1)
        for deviations, weight in _NORMAL:
            rung = 4 * (level + 0.08 * deviations - math.log(LADDER[0])) / math.log(2)
            counts[max(0, min(len(LADDER), math.ceil(rung)))] += REPEATS * int(runs * weight)
        labels = (now.server.canary, phase) if phase else (now.server.canary,)
        yield labels, HistogramValue(tuple(counts), math.exp(level) * sum(counts))


def _labels(now: Moment, metric: Metric, stem: str) -> Iterator[tuple[str, ...]]:
    canary = now.server.canary
    known: dict[str, Sequence[str]] = {
        "canary": [canary],
        "gpu": ["0"],
        "device": ["cpu", "cuda:0"] if "gpu" in now.words else ["cpu"],
        "cpus": ["0-3"],
        "xid": ["79"],
        "uuid": ["GPU-5a6f1a2b-0c1d-2e3f-4a5b-6c7d8e9fa0b1"],
        "detail": [_ERROR],
        "phase": [*now.phases],
        "batch": ["1", "4", "16"],
        "concurrency": ["1", "2"],
    }
    values = [known.get(name) or VALUES.get((stem, name)) or [f"some {name}"] for name in metric.labels]
    for labels in product(*values):
        of = dict(zip(metric.labels, labels, strict=True))
        control = of.get("control", "")
        if control and (control.startswith("gpu_") != (of["device"] != "cpu")):
            continue
        if "scope" in of:  # labels that do not apply to the scope are empty
            of |= {
                name: ""
                for name, scope in (("canary", "canary"), ("command", "beside"))
                if name in of and of["scope"] != scope
            }
        yield tuple(of.values())
