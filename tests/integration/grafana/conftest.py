"""A real Prometheus with an hour in which everything happens: two services of two containers, an upgrade of one of
them, a GPU, and trouble of each kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pytest

from grafana.situations import backfill
from grafana.situations.worlds import END, Situation
from infercanary.contract.report import LADDER

ROOT = Path(__file__).parents[3]
START, UPGRADE, STEP = END - 3600, END - 1800, 30.0
EXPORTERS_OWN = re.compile("infercanary_(build|event_loop|discover|config|judge_|store|stored_|unjudged_)")

OPEN = {
    "canary": ["resnet18"],
    "gpu": ["0"],
    "device": ["cuda"],
    "xid": ["79"],
    "call": ["nvmlDeviceGetFieldValues"],
    "measure": ["latency", "host_memory", "throughput", "cold_start_load"],
    "baseline_image": [f"web:1 ({'a' * 12})"],
    "candidate_image": [f"web:latest ({'b' * 12})"],
}
HOLDS = {"state": "failing", "verdict": "regressed", "cause": "image", "mode": "default"}
"""Of state sets, the state that holds."""

Labels = Mapping[str, str]


def _metrics() -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Name, kind, and label → values, from the page that is made from the declarations."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for name, facts in re.findall(r"^### `(infercanary_\w+)`\n\n(.+)$", page, flags=re.MULTILINE):
        kind, _, *labels = facts.split(" · ")
        values = {}
        for label in labels:
            first, *known = re.findall(r"`([^`]*)`", label)
            values[first] = known or OPEN.get(first, [f"some {first}"])
        yield name, kind, values


def _value(name: str, labels: Labels, at: float) -> float | None:
    """A gauge."""
    for label, state in HOLDS.items():
        if label in labels and not name.endswith("_info"):
            return float(labels[label] == state)
    if name.endswith("_timestamp_seconds"):
        return UPGRADE
    if name == "infercanary_up":
        return float(labels["container"] != "search-2")
    if re.search("_(success|discovery_up|store_up|successful|gpu_up)$", name):
        return 0.0
    if name.endswith("_ratio"):
        return 0.05
    return 0.02 + (at > UPGRADE) * 0.002 if name.endswith("_seconds") else 1.0


def _environment(component: str, at: float) -> dict[str, str]:
    version = "2.13.0" if component == "torch" and at > UPGRADE else "2.7.0"
    return {"component": component, "version": version}


def _container(service: str, container: str, at: float) -> dict[str, str]:
    new = service == "search" and at > UPGRADE
    name, digits = ("web:latest", "b" * 64) if new else ("web:1", "a" * 64)
    ids = {"image_id": f"sha256:{digits}", "image_digest": f"web@sha256:{digits}"}
    return {"image": name, **ids, "container_id": f"{container}{digits}"[:12]}


def _line(name: str, labels: Labels, value: float, at: float) -> str:
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value!r} {at}"


def _lines(name: str, kind: str, values: Mapping[str, list[str]]) -> Iterator[str]:
    """The hour's samples of a metric."""
    family = name.removesuffix("_total") if kind == "counter" else name
    yield f"# TYPE {family} {kind}"
    owners = [{"service": s, "container": f"{s}-{n}"} for s, n in product(("search", "chat"), (1, 2))]
    if EXPORTERS_OWN.match(name) or "container" in values:
        owners = [{}]
    for owner, chosen in product(owners, product(*values.values())):
        own: Labels = {"job": "infercanary", "instance": "exporter:9797", **owner}
        labels = {**own, **dict(zip(values, chosen, strict=True))}
        series: dict[tuple[str, str], list[str]] = {}
        for step in range(int((END - START) / STEP)):
            at = START + step * STEP
            for end, extra, value in _samples(name, kind, labels, at):
                key = (end, json.dumps(extra))
                series.setdefault(key, []).append(_line(f"{name}{end}", {**labels, **extra}, value, at))
        for found in series.values():
            yield from found


def _samples(name: str, kind: str, labels: Labels, at: float) -> Iterator[tuple[str, Labels, float]]:
    passed = at - START
    if kind == "counter":
        yield "", {}, passed / 10
    elif kind == "histogram":
        latency = 0.02 if at <= UPGRADE else 0.03
        for bound in LADDER:
            yield "_bucket", {"le": repr(bound)}, passed * (bound >= 0.02) * (0.5 if bound < latency else 1)
        yield "_bucket", {"le": "+Inf"}, passed
        yield "_sum", {}, passed * 0.02
        yield "_count", {}, passed
    elif name == "infercanary_environment_info":
        place = labels["container"][-1]
        yield "", _environment("torch", at), 1.0
        yield "", {"component": "cpuset", "version": place}, 1.0
        if labels["service"] == "search" and at > UPGRADE:
            yield "", {"component": "env_OMP_PROC_BIND", "version": "close"}, 1.0
    elif name == "infercanary_container_info":
        yield "", _container(labels["service"], labels["container"], at), 1.0
    else:
        value = _value(name, labels, at)
        if value is not None:
            yield "", {}, value


def _others() -> Iterator[str]:
    """What is not InferCanary's own."""
    own = {"job": "infercanary", "instance": "exporter:9797"}
    firing = {"alertname": "InferCanaryImageRegressed", "alertstate": "firing", "severity": "warning"}
    for name, kind, labels in (
        ("ALERTS", "gauge", {**own, **firing, "service": "search", "canary": "resnet18"}),
        ("ALERTS_FOR_STATE", "gauge", {**own, **firing, "service": "search", "canary": "resnet18"}),
        ("process_cpu_seconds_total", "counter", own),
        ("process_resident_memory_bytes", "gauge", own),
        ("scrape_duration_seconds", "gauge", own),
        ("up", "gauge", own),
    ):
        yield f"# TYPE {name.removesuffix('_total')} {kind}"
        for step in range(int((END - START) / STEP)):
            yield _line(name, labels, float(step), START + step * STEP)


class Hour(NamedTuple):
    """The Prometheus, and when it all was."""

    url: str
    start: float = START
    upgrade: float = UPGRADE
    end: float = END
    step: float = STEP


def _write(_: Situation, file: BinaryIO) -> None:
    for name, kind, values in _metrics():
        file.writelines(f"{line}\n".encode() for line in _lines(name, kind, values))
    file.writelines(f"{line}\n".encode() for line in _others())
    file.write(b"# EOF\n")


@pytest.fixture(scope="session")
def hour() -> Iterator[Hour]:
    """A real Prometheus with the hour in it, and what the rules make of it, on a free port of loopback."""
    if missing := backfill.missing():
        pytest.skip(missing)
    with backfill.prometheus(Situation("hour", (), END - START, STEP), _write) as asked:
        yield Hour(asked.url)
