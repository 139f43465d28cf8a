"""Which CPUs and GPUs several containers may use: only an exporter that sees all containers of a host can know.

A container's cpuset and GPUs come from its probe, which is untrusted: they are bounded here, and a probe that lies
about its own makes its neighbours look crowded, no more. A set of CPUs is an integer with a bit for each, so that a
thousand containers are compared within a millisecond.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from infercanary.contract.cpus import parse_cpus
from infercanary.contract.report import Family, Metric
from infercanary.contract.vocabulary import NOBODY
from infercanary.exporter.discovery.base import Key

SHARED = Metric(
    "infercanary_container_shared_cpus",
    "gauge",
    "CPUs of the container's cpuset that another monitored container may use too; without cpusets, all CPUs of the "
    "host.",
    reading="0: CPUs of its own. Otherwise a neighbour may slow it: pin with `--cpuset-cpus`.",
)

SHARED_GPU = Metric(
    "infercanary_gpu_shared",
    "gauge",
    "Other monitored containers on the same GPU or MIG instance.",
    ("gpu", "uuid"),
    reading="Series with the same `uuid` share a GPU.",
)
UNKNOWN_PROCESSES = Metric(
    "infercanary_gpu_unknown_processes",
    "gauge",
    "Processes on the GPU or MIG instance that are in no container with a probe.",
    ("gpu", "uuid"),
    reading="Above 0, somebody else computes there. 0 says little if the driver hides processes of other "
    "containers.",
)

_NAME = "infercanary_cgroup_cpuset_info"
_LABELS = ("cpus",)
_MAX_LIST = 4096
_MAX_GPUS = 128  # of a container, MIG instances with them
_MAX_PROCESSES = 1e6
_NAMES = 3
_OTHERS = "others"
_UUID = re.compile(r"(GPU|MIG)-[\w/:-]{1,90}", re.ASCII)

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


class SeenGpu(NamedTuple):
    """A GPU or MIG instance that a container may use, as its probe reports it."""

    label: str
    """NVML's index in the container."""
    uuid: str
    listed: int | None = None
    """Processes on it that NVML lists there."""
    own: int | None = None
    """Those of the container itself."""


class GpuShare(NamedTuple):
    """Who else is on one."""

    others: int
    """Other containers."""
    names: tuple[str, ...]
    """Those of the first few, in order."""
    unknown: int | None
    """Processes of nobody known; None where that is not known."""


def listed_gpus(families: Iterable[Family]) -> tuple[SeenGpu, ...] | None:
    """The GPUs that a container may use, by the accepted families of its probe.

    Of a GPU in MIG mode they are its MIG instances; one that the container sees and no canary of it runs on is none.

    Args:
        families: Of one report.

    Returns:
        GPUs in order of their labels; None where the report names none: a driver that does not answer is no other GPU.
    """
    known = {family.name: family for family in families if family.labels[:1] == ("gpu",)}
    info = known.get("infercanary_gpu_info")
    if info is None or "uuid" not in info.labels:
        return None
    place = info.labels.index("uuid")
    uuids = {point.labels[0]: point.labels[place] for point in info.points[:_MAX_GPUS]}
    split = {label.partition(":")[0] for label in uuids if ":" in label}
    canaries, listed, own = (
        {
            point.labels[0]: int(point.value)
            for point in (known[name].points if name in known else ())
            if isinstance(point.value, float) and 0 <= point.value < _MAX_PROCESSES
        }
        for name in ("infercanary_gpu_canaries", "infercanary_gpu_processes", "infercanary_gpu_own_processes")
    )
    return tuple(
        SeenGpu(label, uuid, listed.get(label), own.get(label))
        for label, uuid in sorted(uuids.items())
        if label not in split and _UUID.fullmatch(uuid) and canaries.get(label.partition(":")[0], 1)
    )


def shared_gpus(
    gpus: Mapping[Key, Iterable[SeenGpu]],
) -> dict[Key, dict[SeenGpu, GpuShare]]:
    """Who else is on each container's GPUs.

    Args:
        gpus: Key of a container → the GPUs that it may use.

    Returns:
        The same keys → its GPUs → who shares each.
    """
    users: dict[str, dict[Key, SeenGpu]] = defaultdict(dict)
    for key, its in gpus.items():
        for gpu in its:
            users[gpu.uuid][key] = gpu
    own = {uuid: _own(its.values()) for uuid, its in users.items()}
    # Of a thousand on one GPU each would have to read 999 names.
    first = {uuid: sorted(its, key=lambda key: key[::-1])[: _NAMES + 1] for uuid, its in users.items()}
    return {
        key: {
            gpu: GpuShare(
                len(users[gpu.uuid]) - 1,
                tuple(_name(other) for other in first[gpu.uuid] if other != key)[:_NAMES],
                _unknown(gpu.listed, own[gpu.uuid]),
            )
            for gpu in its
        }
        for key, its in gpus.items()
    }


def neighbours(shares: Collection[GpuShare]) -> frozenset[str]:
    """Who else is on a container's GPUs, by name.

    Args:
        shares: Of each of its GPUs.

    Returns:
        A few names, and one for the rest; nobody's where it is alone; none without a GPU.
    """
    names = {name for share in shares for name in share.names}
    if any(share.others > len(names) for share in shares):
        names.add(_OTHERS)
    return frozenset(names or ([NOBODY] if shares else []))


def in_words(names: frozenset[str]) -> str:
    """Neighbours as people read them.

    Args:
        names: As :func:`neighbours` gives them.

    Returns:
        Such as ``a, b and others``; empty without any.
    """
    known = ", ".join(sorted(names - {_OTHERS}))
    return " and ".join(filter(None, (known, _OTHERS if _OTHERS in names else "")))


def _name(key: Key) -> str:
    """What stays the same when it is started again: pods have other names then."""
    namespace, service, replica = key
    return f"{namespace}/{service}" if namespace else replica


def _own(users: Iterable[SeenGpu]) -> int | None:
    """The processes of all containers with a probe on a GPU; None where one does not know its own."""
    each = [gpu.own for gpu in users]
    known = [own for own in each if own is not None]
    return sum(known) if len(known) == len(each) else None


def _unknown(listed: int | None, own: int | None) -> int | None:
    """What NVML lists to a container beyond those: what it lists to others is their claim. A driver that hides some of
    the known ones hides others' too."""
    return listed - own if listed is not None and own is not None and listed >= own else None
