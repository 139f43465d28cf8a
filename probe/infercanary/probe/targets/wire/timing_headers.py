"""Times in milliseconds that a server measured itself and reports in the headers of its answers.

``x-queue-time``, ``x-inference-time`` and others come from Hugging Face's Text Embeddings Inference and Text Generation
Inference; ``x-envoy-upstream-service-time`` comes from the proxy in front of a KServe server with Istio.
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

_HEADER = re.compile(
    r"x-(queue|validation|tokenization|inference|compute|total)-time|x-envoy-(upstream)-service-time"
)
_MILLISECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?")


def header_times(headers: Mapping[str, str]) -> dict[str, float]:
    """Return the server's own times from the headers of one answer. Invalid times are left out.

    Returns:
        Part → seconds.
    """
    return {
        part[1] or part[2]: float(value) / 1e3
        for header, value in headers.items()
        if (part := _HEADER.fullmatch(header)) and _MILLISECONDS.fullmatch(value)
    }


def header_readings(answers: Iterable[Mapping[str, str]]) -> list[Reading]:
    """Return the medians of the server's own times over a run.

    Args:
        answers: Headers of each answer.

    Returns:
        Median of each part that every answer reports.
    """
    times = [header_times(headers) for headers in answers]
    names = sorted(set.intersection(*map(set, times))) if times else []
    return [Reading(SERVER, median(answer[name] for answer in times), (name,)) for name in names]
