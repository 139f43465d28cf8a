"""What a server reports of its own time in the headers of an answer.

- ``Server-Timing``, the standard: https://www.w3.org/TR/server-timing/
- ``x-queue-time``, ``x-inference-time`` and others, of Hugging Face's Text Embeddings Inference and Text Generation
  Inference; ``x-envoy-upstream-service-time``, of the proxy before a KServe server with Istio. All milliseconds.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from email.message import Message
from statistics import median

from infercanary.contract.report import Metric
from infercanary.probe.targets import Reading

SERVER = Metric(
    "infercanary_server_seconds",
    "gauge",
    "Time of one inference during the last run as the server itself measured it, by part.",
    ("canary", "part"),
    reading="Within the phase `wait`. If only `queue` grows, the cause is load; `compute_infer` or "
    "`inference` is the model.",
)

_PLAIN = {
    "x-envoy-upstream-service-time": "upstream",
    **{
        f"x-{part}-time": part
        for part in ("queue", "validation", "tokenization", "inference", "compute", "total")
    },
}
_MAX_PARTS = 8  # each is a time series
_MAX_SECONDS = 86400.0
_ENTRY = re.compile(r"\s*([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,40})\s*((?:;[^,;\"]*(?:\"[^\"]*\")?[^,;\"]*)*)")
_DURATION = re.compile(r";\s*dur\s*=\s*\"?([0-9]{1,12}(?:\.[0-9]{0,12})?)\"?\s*(?=;|$)", re.IGNORECASE)


def recent_headers() -> deque[Message]:
    """Return an empty queue for the headers of a run's answers.

    It is bounded, since nobody reads those of a sweep's targets.

    Returns:
        The last 64 answers' at most.
    """
    return deque(maxlen=64)


def header_times(headers: Message) -> dict[str, float]:
    """Read the server's own times from the headers of one answer; what is no time is left out.

    Args:
        headers: Of one answer; ``Server-Timing``, and the headers that known servers send, are in milliseconds.

    Returns:
        Part → seconds.
    """
    found: dict[str, float] = {}
    for line in headers.get_all("Server-Timing") or ():
        for name, parameters in _ENTRY.findall(str(line)[:4096]):
            if duration := _DURATION.search(parameters):
                _note(found, name, duration[1])
    for header, part in _PLAIN.items():
        if (value := headers.get(header)) is not None and re.fullmatch(
            r"[0-9]{1,12}(\.[0-9]{0,12})?", value.strip()
        ):
            _note(found, part, value)
    return found


def header_readings(kept: Iterable[Message]) -> list[Reading]:
    """Summarize the server's own times over the answers of a run.

    Args:
        kept: The headers of each answer.

    Returns:
        The median of each part that every answer reports; eight parts at most.
    """
    each = [header_times(headers) for headers in kept]
    names = [name for name in each[0] if all(name in times for times in each)] if each else []
    return [
        Reading(SERVER, median(times[name] for times in each), (name,)) for name in sorted(names)[:_MAX_PARTS]
    ]


def _note(found: dict[str, float], name: str, milliseconds: str) -> None:
    seconds = float(milliseconds) / 1e3
    if math.isfinite(seconds) and seconds <= _MAX_SECONDS:
        found.setdefault(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "unnamed", seconds)
