"""Times that a server measured itself, from the headers of its answers.

- ``Server-Timing``, the standard: https://www.w3.org/TR/server-timing/
- ``x-queue-time``, ``x-inference-time`` and others, from Hugging Face's Text Embeddings Inference and Text Generation
  Inference; ``x-envoy-upstream-service-time``, from the proxy in front of a KServe server with Istio. All are in
  milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import median

from infercanary.contract.report import Metric
from infercanary.probe.targets import Reading

SERVER = Metric(
    "infercanary_server_seconds",
    "gauge",
    "Time of one inference during the last run, measured by the server itself, by part.",
    ("canary", "part"),
    reading="These times are parts of the phase `wait`. If only `queue` grows, the cause is load; if `compute_infer` "
    "or `inference` grows, the cause is the model.",
)

_PLAIN = re.compile(
    r"x-(queue|validation|tokenization|inference|compute|total)-time|x-envoy-(upstream)-service-time"
)
_MAX_PARTS = 8  # each part is a time series
_MAX_SECONDS = 86400.0
_MAX_LENGTH = 4096
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{0,12})?)"
_ENTRY = re.compile(r"\s*([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,40})\s*((?:;[^,;\"]*(?:\"[^\"]*\")?[^,;\"]*)*)")
_DURATION = re.compile(rf";\s*dur\s*=\s*\"?{_NUMBER}\"?\s*(?=;|$)", re.IGNORECASE)


def header_times(headers: Mapping[str, str]) -> dict[str, float]:
    """Return the server's own times in the headers of one answer; invalid times are left out.

    Returns:
        Part → seconds.
    """
    reported = []
    for name, parameters in _ENTRY.findall(headers.get("server-timing", "")[:_MAX_LENGTH]):
        if duration := _DURATION.search(parameters):
            reported.append((name, duration[1]))
    for header, value in headers.items():
        if (part := _PLAIN.fullmatch(header)) and re.fullmatch(_NUMBER, value):
            reported.append((part[1] or part[2], value))
    times: dict[str, float] = {}
    for name, milliseconds in reported:
        if (seconds := float(milliseconds) / 1e3) <= _MAX_SECONDS:
            times.setdefault(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "unnamed", seconds)
    return times


def header_readings(answers: Iterable[Mapping[str, str]]) -> list[Reading]:
    """Return the medians of the server's own times over a run.

    Args:
        answers: Headers of each answer.

    Returns:
        Median of each part that every answer reports; eight parts at most.
    """
    times = [header_times(headers) for headers in answers]
    names = sorted(set.intersection(*map(set, times))) if times else []
    return [Reading(SERVER, median(answer[name] for answer in times), (name,)) for name in names[:_MAX_PARTS]]
