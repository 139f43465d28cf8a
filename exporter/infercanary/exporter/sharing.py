"""Which CPUs several containers may use: only an exporter that sees all containers of a host can know.

A container's cpuset comes from its probe, which is untrusted: it is bounded here, and a probe that lies about its own
makes its neighbours look crowded, no more. A set of CPUs is an integer with a bit for each, so that a thousand
containers are compared within a millisecond.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from infercanary.contract.cpus import parse_cpus
from infercanary.contract.report import Family, Metric

SHARED = Metric(
    "infercanary_container_shared_cpus",
    "gauge",
    "CPUs of the container's cpuset that another monitored container of the host may use too. All of the host's where "
    "two have no cpuset: they may then meet anywhere, which is not to say that they do.",
    reading="0 for a container with CPUs of its own. Otherwise a neighbour's load may be felt: see "
    "`infercanary_canary_run_queue_seconds_total`, and pin with `--cpuset-cpus`. Only containers with a probe "
    "are compared.",
)

_NAME = "infercanary_cgroup_cpuset_info"
_LABELS = ("cpus",)
_MAX_LIST = 4096

K = TypeVar("K", bound=Hashable)


def listed_cpus(families: Iterable[Family]) -> str:
    """The list of CPUs, such as ``0-3,8``, that a probe gives among its accepted ``families``; empty without one.

    Args:
        families: Of one report.
    """
    for family in families:
        if family.name == _NAME and family.labels == _LABELS and len(family.points) == 1:
            return family.points[0].labels[0]
    return ""


def cpu_bits(text: str) -> int:
    """The CPUs of a kernel list as bits; 0 where it names none, is malformed, or claims what no machine has.

    Args:
        text: Such as ``0-3,8``; unchecked.
    """
    if len(text) > _MAX_LIST:
        return 0
    try:
        return parse_cpus(text)
    except ValueError:
        return 0


def shared_cpus(cpusets: Mapping[K, int]) -> dict[K, int]:
    """How many CPUs of each set are in another set too.

    Args:
        cpusets: Any key → a bit for each CPU.

    Returns:
        Key → CPUs; 0 where the set is alone.
    """
    once = twice = 0
    for bits in cpusets.values():
        twice |= once & bits
        once |= bits
    return {key: (bits & twice).bit_count() for key, bits in cpusets.items()}
