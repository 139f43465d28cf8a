"""The situations: which containers there are, on which hosts, with which images, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

END = 1_768_478_370.0
"""When each of them ends: 2026-01-15 11:59:30 UTC, within a block of two hours. All numbers are drawn from seeds, so
that each is always the same."""
HOUR = 3600.0


@dataclass(frozen=True)
class Image:
    """What a container was started from."""

    name: str
    slower: float = 0.0
    """Of all its latencies, as a ratio."""
    environment: Mapping[str, str] = field(default_factory=dict)
    wrong: float = 0.0
    """Relative error of its output against the image before."""

    @property
    def digits(self) -> str:
        """64 hexadecimal digits of its own."""
        return "".join(f"{zlib.crc32(f'{self.name}{i}'.encode()):08x}" for i in range(8))


@dataclass(frozen=True)
class Server:
    """A container with a probe, over the whole situation."""

    service: str
    name: str
    starts: Sequence[tuple[float, Image]]
    """Seconds before the end at which it was started, and from which image; in order of time."""
    canary: str = "resnet18"
    latency: float = 0.05
    """Seconds."""
    gpu: bool = False
    streams: bool = False
    sweeps: bool = False
    host: str = "exporter:9797"
    namespace: str = ""
    """In Kubernetes, where the name is the pod's, and its container is called `server`."""
    cpu: str = "AMD EPYC 7763"
    brief: bool = False
    """Of its histograms it reports that of the latency alone: those are most of what is scraped."""
    troubles: frozenset[str] = frozenset()
    """Words that :mod:`.reports` knows; they begin with the last start."""


@dataclass(frozen=True)
class Situation:
    """One of them; or, without servers, what somebody looks at on a live stack."""

    name: str
    servers: Sequence[Server]
    seconds: float = HOUR
    step: float = 30.0
    """Between two scrapes, in seconds."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Variable → value, on boards on which one is chosen."""
    exporter_troubles: bool = False
    end: float = END
    """Unix seconds."""


_BASE = {
    "torch": "2.7.0",
    "python": "3.11.9",
    "numpy": "2.1.3",
    "cpu_quota": "4",
    "torch_intra_op_threads": "4",
}
_CUDA = {
    "torch_cuda": "12.8",
    "torch_cudnn": "9.7.1",
    "torch_device": "cuda:0",
    "nvidia_driver": "580.159.04",
}
_OLD = Image("registry.example.com/infercanary-example:1.4.0", environment=_BASE)
_NEW = Image(
    "registry.example.com/infercanary-example:1.5.0",
    slower=0.34,
    environment=_BASE | {"torch": "2.13.0", "env_ONEDNN_MAX_CPU_ISA": "AVX", "torch_intra_op_threads": "8"},
)
_MOVING = Image("registry.example.com/search-gateway:latest", environment=_BASE)
_OTHER = Image("registry.example.com/moderation-gateway:2026.01.2", environment=_BASE)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _fresh() -> tuple[Server, ...]:
    """A stack that was just started: no container has run yet."""
    return ()


def _one_image() -> tuple[Server, ...]:
    starts = [(HOUR - 120, _OLD)]
    return (
        Server("classify", "infercanary-classify-1", starts, sweeps=True),
        Server("moderate", "infercanary-moderate-1", [(HOUR - 150, _OTHER)], latency=0.08),
    )


def _upgraded() -> tuple[Server, ...]:
    starts = [(HOUR, _OLD), (HOUR - 900, _OLD), (1500.0, _NEW)]
    return (
        Server("classify", "infercanary-classify-1", starts, sweeps=True),
        Server(
            "classify", "infercanary-classify-2", [(at - 20, image) for at, image in starts], latency=0.051
        ),
        Server("moderate", "infercanary-moderate-1", [(HOUR, _OTHER), (2400.0, _OTHER)], latency=0.08),
        Server(
            "chat-completions",
            "infercanary-chat-1",
            [(HOUR, _OTHER)],
            canary="tiny-llm",
            latency=0.6,
            streams=True,
        ),
    )


def _troubled() -> tuple[Server, ...]:
    starts = [(HOUR, _OLD), (HOUR - 900, _OLD), (1200.0, _NEW)]
    wrong = dataclasses.replace(_NEW, name="registry.example.com/infercanary-example:1.5.1", wrong=0.2)
    return (
        Server("classify", "infercanary-classify-1", starts, troubles=_set("throttled late wrong shared")),
        Server("classify", "infercanary-classify-2", [(HOUR, _OLD), (1200.0, wrong)], troubles=_set("failing")),
        Server("search", "infercanary-search-1", [(HOUR, _MOVING), (1100.0, _MOVING)], troubles=_set("down")),
        Server("search", "infercanary-search-2", [(HOUR, _MOVING)], troubles=_set("memory rejected journal")),
        Server("moderate", "infercanary-moderate-1", [(HOUR, _OTHER)], latency=0.08, troubles=_set("host gpu")),
    )  # fmt: skip


def _many() -> tuple[Server, ...]:
    """500 services on 50 hosts; every fifth one was upgraded, and every tenth became slower by it."""
    made = []
    for number in range(500):
        new = dataclasses.replace(_NEW, slower=0.05 + 0.002 * number if number % 10 == 0 else 0.0)
        last = [(300.0, new)] if number % 5 == 0 else []
        made.append(
            Server(
                f"service-{number:03}",
                f"service-{number:03}-1",
                [(800.0, _OLD), *last],
                latency=0.02 + 0.0003 * number,
                brief=True,
                host=f"host-{number // 10:02}:9797",
            )
        )
    return tuple(made)


def _spread() -> tuple[Server, ...]:
    """Services on several hosts, each of which has its own judge: in Kubernetes, and by a name that each host has. One
    takes 20 microseconds, and one became 400 times slower."""
    starts = [(1140.0, _OLD), (600.0, _NEW)]
    epyc, xeon = "AMD EPYC 7763", "Intel Xeon 8480C"
    pods = {
        "x7k2p": (1, epyc),
        "lq4vz": (2, epyc),
        "8d2mn": (2, epyc),
        "zt5wq": (3, epyc),
        "q9bfw": (4, xeon),
    }

    far = dataclasses.replace(
        _NEW, name="registry.example.com:5000/ranking/reranker:2026.01.15-a1b2c3d4e5f6", slower=400.0
    )

    def server(service: str, name: str, node: int, **others: Any) -> Server:
        return Server(service, name, host=f"node-{node}:9797", brief=True, **others)

    return (
        *(
            server("search", f"search-6c9f7d5b8-{end}", node, starts=starts, namespace="prod", cpu=cpu)
            for end, (node, cpu) in pods.items()
        ),
        *(
            server("classify", "infercanary-classify-1", node, starts=[(1140.0, _OTHER)], latency=2e-5)
            for node in (1, 2)
        ),
        server("rank", "rank-1", 2, starts=[(1140.0, _OLD), (600.0, far)]),
    )


def _with_gpu(servers: Sequence[Server]) -> tuple[Server, ...]:
    def on_gpu(image: Image) -> Image:
        return dataclasses.replace(image, environment={**image.environment, **_CUDA})

    return tuple(
        dataclasses.replace(server, gpu=True, starts=[(at, on_gpu(image)) for at, image in server.starts])
        for server in servers
    )


_CHOSEN = {"service": "classify", "instance": "exporter:9797", "canary": "resnet18"}
_ON_CPU = (
    Situation("fresh", _fresh(), seconds=600.0),
    Situation("one-image", _one_image(), chosen=_CHOSEN),
    Situation("upgraded", _upgraded(), chosen=_CHOSEN),
    Situation("troubled", _troubled(), chosen=_CHOSEN, exporter_troubles=True),
)
SITUATIONS: Mapping[str, Situation] = {
    situation.name: situation
    for situation in (
        *_ON_CPU,
        *(
            dataclasses.replace(each, name=f"{each.name}-gpu", servers=_with_gpu(each.servers))
            for each in _ON_CPU
            if each.servers
        ),
        Situation(
            "spread",
            _spread(),
            seconds=1140.0,
            step=60.0,
            chosen={"service": "search", "instance": "node-2:9797", "canary": "resnet18"},
        ),
        Situation(
            "many",
            _many(),
            seconds=480.0,
            step=120.0,
            chosen={"service": "service-490", "instance": "host-49:9797", "canary": "resnet18"},
        ),
    )
}
"""By name. A fresh stack knows of no GPU, and so is the same on a machine with one."""
