"""What a probe reports in a situation: every metric that the probe declares, so that a new one is in it by being there.

What a healthy probe on a CPU or a GPU says, and what each trouble changes. GPUs say what a real H100 said.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import infercanary.probe
from docs.generate import VALUES, declared
from grafana.situations.worlds import END, Image, Server
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

INTERVAL = 10.0
REPEATS = 10
_H100 = Path(__file__).parents[2] / "tests/golden/nvml_h100_80gb_hbm3_loaded.metrics"
_PREFIX = "infercanary_"
_ON_GPU = {"h2d": 0.1, "compute": 0.75, "d2h": 0.03, "launch": 0.1, "queue": 0.02}
_STREAMED = {"connect": 0.002, "send": 0.003, "first_token": 0.2, "tokens": 0.795}
_POINTS = [(batch, concurrency) for batch in ("1", "4", "16") for concurrency in ("1", "2")]


@dataclass(frozen=True)
class Moment:
    """A server at a time."""

    server: Server
    at: float
    started: float
    image: Image
    order: int
    """Which of its starts it is, from 0."""

    @property
    def passed(self) -> float:
        """Seconds since it was started."""
        return self.at - self.started

    @property
    def troubles(self) -> frozenset[str]:
        """Those that it has by now."""
        return (
            self.server.troubles
            if self.order == len(self.server.starts) - 1 and self.passed > 120
            else frozenset()
        )

    @property
    def phases(self) -> Mapping[str, float]:
        """Phase → share of the latency."""
        if self.server.streams:
            return _STREAMED
        return _ON_GPU if self.server.gpu else {"compute": 1.0}

    def latency(self, number: int) -> float:
        """How long a run takes.

        Args:
            number: Which run of this start, from 0.

        Returns:
            Seconds.
        """
        host = 1.25 if "host" in self.troubles else 1.0
        start = math.exp(random.Random(f"{self.server.name} {self.order}").gauss(0, 0.004))  # noqa: S311
        noise = math.exp(random.Random(f"{self.server.name} {self.order} {number}").gauss(0, 0.01))  # noqa: S311
        return self.server.latency * (1 + self.image.slower) * start * noise * host


def moment(server: Server, at: float) -> Moment | None:
    """How a server is at a time.

    Args:
        server: Which.
        at: Unix seconds.

    Returns:
        None before its first start.
    """
    begun = [(END - before, image) for before, image in server.starts if END - before <= at]
    return Moment(server, at, *begun[-1], order=len(begun) - 1) if begun else None


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
    return dict(now.image.environment) | {f"model:{now.server.canary}": "8c1f", "cpuset_cpus": "0-3"}


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
        measures={"host_memory": 6e8 * (1.2 if now.image.slower else 1.0)},
    )


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
                {labels: _on_gpu(now, stem, labels, x) for labels, x in gpu[metric.name].items()}
            )
        elif not stem.startswith(_absent(now)):
            points = {labels: _value(now, metric, stem, labels) for labels in _labels(now, metric, stem)}
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


_Rule = Callable[[Moment, tuple[str, ...]], "float | None"]


def _is(which: Callable[[Moment], str]) -> _Rule:
    """Of a set of states: 1 for the one that holds."""
    return lambda now, labels: float(labels[-1] == which(now))


def _growing(each_second: float, trouble: str = "", then: float = 0.0) -> _Rule:
    """A counter, and by how much it grows while there is that trouble."""

    def value(now: Moment, _labels: tuple[str, ...]) -> float:
        return now.passed * each_second + (then * (now.passed - 120) if trouble in now.troubles else 0.0)

    return value


def _usual(value: float, trouble: str = "", then: float = 0.0) -> _Rule:
    def found(now: Moment, labels: tuple[str, ...]) -> float:
        wave = 1 + 0.02 * math.sin(now.at / 300 + zlib.crc32("".join(labels).encode()) % 7)
        return then if trouble and trouble in now.troubles else value * wave if value != 1 else 1.0

    return found


def _of_latency(share: float) -> _Rule:
    return lambda now, _labels: share * now.latency(int(now.passed / INTERVAL))


def _outcome(now: Moment) -> Mapping[str, float]:
    runs = now.passed / INTERVAL
    failed = max(0.0, (now.passed - 120) / INTERVAL / 2) if "failing" in now.troubles else 0.0
    return {"ok": float(int(runs - failed)), "raised": float(int(failed))}


def _tagged(now: Moment, labels: tuple[str, ...]) -> float:
    tags = {"warming": 2.0, "preempted": 0.03 * now.passed / INTERVAL}
    for trouble, tag in (
        ("throttled", "cgroup_throttled"),
        ("shared", "preempted"),
        ("late", "late"),
        ("memory", "memory_limit"),
    ):
        if trouble in now.troubles:
            tags[tag] = 0.6 * (now.passed - 120) / INTERVAL
    return float(int(tags.get(labels[1], 0.0)))


def _load(labels: tuple[str, ...], of_batch: float, of_concurrency: float) -> float:
    """How much more a sweep's point takes than one inference."""
    return float(float(labels[1]) ** of_batch * float(labels[2]) ** of_concurrency)


_RULES: Mapping[str, _Rule] = {
    "runs_total": lambda now, labels: _outcome(now).get(labels[1], 0.0),
    "run_failures_total": lambda now, labels: _outcome(now)["raised"] * (labels[1] == "raised"),
    "tagged_runs_total": _tagged,
    "canary_state": _is(lambda now: "failing" if "failing" in now.troubles else "steady"),
    "nvml_state": _is(lambda now: "ok" if now.server.gpu else "no_driver"),
    "cuda_missing": _is(lambda _: "cpu_only_build"),
    "run_(median|phase_median)_seconds": lambda now, labels: now.phases.get(labels[-1], 1.0)
    * now.latency(int(now.passed / INTERVAL)),
    "run_minimum_seconds": _of_latency(0.98),
    "run_iqr_seconds": _of_latency(0.01),
    "recent_p90_seconds": _of_latency(1.04),
    "bottleneck_ratio": lambda now, labels: {"compute": 0.9, "scheduling": 0.1}.get(labels[1], 0.0),
    "eligible_ratio": _usual(0.97, "throttled", 0.3),
    "output_error_ratio": lambda now, _: 0.2 if "wrong" in now.troubles else 0.0,
    "load_seconds": lambda now, _: 0.4 * (1 + 2 * now.image.slower),
    "first_run_seconds": _usual(0.3),
    "time_to_steady_seconds": _usual(6.0),
    "warm_up_seconds": _usual(2.0),
    "run_samples_per_second": lambda now, _: 8 / now.latency(int(now.passed / INTERVAL)),
    "run_memory_peak_bytes": _usual(6e8),
    "run_energy_joules": _usual(12.0),
    "control_up|sampler_success": lambda now, labels: float(not ("journal" in now.troubles and labels[0] == "network")),
    "control_seconds": _usual(0.0004, "host", 0.0005),
    "control_flops_per_second": _usual(2e10),
    "control_bytes_per_second": _usual(2e10),
    "(canary_|process_|probe_)cpu_seconds_total": _growing(0.01),
    "process_cpu_seconds_total": _growing(0.8),
    "cgroup_cpu_seconds_total": _growing(1.6),
    "cgroup_cpu_quota_cores": _usual(4.0),
    "cgroup_cpu_periods_total": _growing(10.0),
    "cgroup_cpu_throttled_periods_total": _growing(0.0, "throttled", 4.0),
    "cgroup_cpu_throttled_seconds_total": _growing(0.0, "throttled", 0.6),
    "cgroup_memory(_peak|_working_set|)_bytes": _usual(6.4e8, "memory", 9.9e8),
    "cgroup_memory_limit_bytes": lambda _now, _: 1e9,
    "cgroup_memory_limit_hits_total": _growing(0.0, "memory", 0.1),
    "cgroup_oom_kills_total": _growing(0.0, "memory", 0.01),
    "cgroup_pressure_waiting_seconds_total": _growing(0.002, "shared", 0.3),
    "cgroup_pressure_stalled_seconds_total": _growing(0.0005),
    "cgroup_pids_limit": lambda _now, _: 4096.0,
    "process_resident_memory_bytes": _usual(5.6e8),
    "memory_room_bytes": _usual(3e8, "memory", 1e7),
    "(canary|process)_run_queue_seconds_total": _growing(0.002, "shared", 0.4),
    "(canary|process)_migrations_total": _growing(0.2),
    "(canary|process)_context_switches_total": _growing(1.0),
    "canary_waiting_ratio": _usual(0.004, "shared", 0.3),
    "(process_|canary_)(allowed|granted)_cpus": lambda _now, _: 4.0,
    "process_threads": lambda now, _: 24.0,
    "thread_oversubscription_ratio": _usual(0.5, "throttled", 4.0),
    "thread_pool_size": lambda _now, _: 4.0,
    "canary_off_node|process_off_node_.*|process_pinned_threads": lambda _now, _: 0.0,
    "gc_collections_total": lambda now, labels: now.passed / {"0": 2, "1": 20, "2": 200}[labels[0]],
    "gc_pause_seconds_total": _growing(0.0004),
    "interval_seconds": lambda _now, _: INTERVAL,
    "duty_ratio": _usual(0.006),
    "duty_cap_ratio": lambda _now, _: 0.01,
    "busy_seconds_total": _growing(0.006),
    "lateness_seconds": _usual(0.002, "late", 0.8),
    "missed_slots_total": _growing(0.0, "late", 0.05),
    "journal_errors_total": _growing(0.0, "journal", 0.02),
    "probe_start_timestamp_seconds": lambda now, _: now.started,
    "sweep_interval_seconds": lambda _now, _: 1800.0,
    "sweep_timestamp_seconds": lambda now, _: now.started + 300 if now.passed > 300 else None,
    "sweep_latency_seconds": lambda now, labels: now.server.latency * _load(labels, 0.6, 0.8),
    "sweep_samples_per_second": lambda now, labels: _load(labels, 0.4, 0.2) / now.server.latency,
    "sweep_peak_memory_bytes": lambda _now, labels: 1e8 * float(labels[1]),
    "gpu_(xid|ecc).*_total": _growing(0.0, "gpu", 0.001),
    "first_token_seconds": _of_latency(0.2),
    "between_tokens_seconds": _of_latency(0.01),
    "output_tokens": lambda _now, _: 64.0,
    ".*_info": lambda _now, _: 1.0,
    "tcp_received_segments_total": _growing(20.0),
}  # fmt: skip
"""Metric without the prefix, a regular expression → its value; the first that fits, else what :func:`_value` says."""


def _value(now: Moment, metric: Metric, stem: str, labels: tuple[str, ...]) -> float | None:
    if (rule := _rule(stem)) is not None:
        return rule(now, labels)
    if metric.kind == "counter":
        return 0.0
    if stem.endswith("_ratio"):
        return 0.05
    return 0.002 if stem.endswith("_seconds") else 1.0


@cache
def _rule(stem: str) -> _Rule | None:
    return next((rule for pattern, rule in _RULES.items() if re.fullmatch(pattern, stem)), None)


def _on_gpu(now: Moment, stem: str, labels: tuple[str, ...], value: float) -> float:
    """What the H100 said, as time goes on."""
    bad = "gpu" in now.troubles
    rates = {"gpu_energy_joules_total": 320.0, "gpu_pcie_bytes_total": 2e9}
    if stem.endswith("_total"):
        if bad and ("xid" in stem or labels[-1] in ("sw_thermal", "uncorrected")):
            return value + 0.3 * (now.passed - 120)
        return value + rates.get(stem, 0.0) * now.passed
    if bad and stem == "gpu_sm_clock_hertz":
        return 0.6 * value
    return value
