"""The situations: containers, hosts, images, and troubles."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

END = 1_768_478_370.0
"""End of every situation: 2026-01-15 11:59:30 UTC, inside a Prometheus block of two hours. All noise has a fixed
seed.
"""
_BASE = {
    "torch": "2.7.0",
    "python": "3.11.9",
    "numpy": "2.1.3",
    "cpu_quota": "4",
    "torch_intra_op_threads": "4",
}
_CHANGED = {**_BASE, "torch": "2.13.0", "env_ONEDNN_MAX_CPU_ISA": "AVX", "torch_intra_op_threads": "8"}


class Image(NamedTuple):
    name: str
    slower: float = 0.0
    """Relative increase of all latencies with this image."""
    environment: Mapping[str, str] = _CHANGED
    wrong: float = 0.0
    """Relative error of the output, compared with the previous image."""

    @property
    def digits(self) -> str:
        """64 hexadecimal digits."""
        return "".join(f"{zlib.crc32(f'{self.name}{i}'.encode()):08x}" for i in range(8))


class Server(NamedTuple):
    """A container with a probe, for the whole situation."""

    service: str
    name: str
    starts: Sequence[tuple[float, Image]]
    """(seconds before the end, image) of each start, in order of time."""
    words: str = ""
    """Abilities (`gpu`, `streams`, `sweeps`) and troubles, as in :mod:`.values`. With `brief`, the server reports
    only the latency histogram, because histograms are most of a scrape.
    """
    canary: str = "resnet18"
    latency: float = 0.05
    """Seconds."""
    host: str = "exporter:9797"
    namespace: str = ""
    """Kubernetes namespace. If set, ``name`` is the pod's name, and the container is called `server`."""
    cpu: str = "AMD EPYC 7763"


class Situation(NamedTuple):
    """Servers over a period. Without servers: a stack that has just started, or a live stack."""

    name: str
    servers: Sequence[Server]
    seconds: float = 3600.0
    step: float = 30.0
    """Seconds between two scrapes."""
    chosen: Mapping[str, str] = {}
    """Values by variable, for dashboards with a single-choice variable."""
    shown: float = 0.0
    """Length of the shown time range, seconds; 0 for all."""
    docker_silent: bool = False
    down: str = ""
    """Host whose exporter is down for the last ten minutes."""
    end: float = END
    """Unix seconds."""

    @property
    def start(self) -> float:
        """Start of the dashboard's time range, Unix seconds."""
        return self.end - (self.shown or self.seconds)


_EXAMPLE = "registry.example.com/infercanary-example"
IMAGES = {
    "old": Image(f"{_EXAMPLE}:1.4.0", 0.0, _BASE),
    "new": Image(f"{_EXAMPLE}:1.5.0", 0.34),
    "fine": Image(f"{_EXAMPLE}:1.5.0"),
    "wrong": Image(f"{_EXAMPLE}:1.5.1", 0.34, wrong=0.2),
    "moving": Image("registry.example.com/search-gateway:latest", 0.0, _BASE),
    "other": Image("registry.example.com/moderation-gateway:2026.01.2", 0.0, _BASE),
    "far": Image("registry.example.com:5000/ranking/reranker:2026.01.15-a1b2c3d4e5f6", 400.0),
}
_SERVERS = """
one-image     classify infercanary-classify-1 3480=old                   words=sweeps
one-image     moderate infercanary-moderate-1 3450=other                 latency=0.08

upgraded      classify infercanary-classify-1 3600=old,2700=old,1500=new words=sweeps
upgraded      classify infercanary-classify-2 3580=old,2680=old,1480=new latency=0.051
upgraded      moderate infercanary-moderate-1 3600=other,2400=other      latency=0.08
upgraded      chat-completions infercanary-chat-1 3600=other             latency=0.6 canary=tiny-llm words=streams

troubled      classify infercanary-classify-1 3600=old,2700=old,1200=new words=throttled,late,wrong,shared
troubled      classify infercanary-classify-2 3600=old,1200=wrong        words=failing
troubled      search   infercanary-search-1   3600=moving,1100=moving    words=down
troubled      search   infercanary-search-2   3600=moving                words=memory,rejected,journal
troubled      moderate infercanary-moderate-1 3600=other                 latency=0.08 words=host,hot

spread        search   search-6c9f7d5b8-x7k2p 1140=old,600=new           host=node-1:9797 namespace=prod
spread        search   search-6c9f7d5b8-lq4vz 1140=old,600=new           host=node-2:9797 namespace=prod
spread        search   search-6c9f7d5b8-8d2mn 1140=old,600=new           host=node-2:9797 namespace=prod
spread        search   search-6c9f7d5b8-zt5wq 1140=old,600=new           host=node-3:9797 namespace=prod
spread        search   search-6c9f7d5b8-q9bfw 1140=old,600=new           host=node-4:9797 namespace=prod cpu=Xeon_8480C
spread        classify infercanary-classify-1 1140=other                 host=node-1:9797 latency=2e-5
spread        classify infercanary-classify-1 1140=other                 host=node-2:9797 latency=2e-5
spread        rank     rank-1                 1140=old,600=far           host=node-2:9797

namespaces    search   search-6c9f7d5b8-x7k2p 1140=old,600=new           host=node-1:9797 namespace=prod
namespaces    search   search-6c9f7d5b8-lq4vz 1140=old,600=new           host=node-2:9797 namespace=prod
namespaces    search   search-5d8c6b4f7-8d2mn 1140=old,780=fine          host=node-1:9797 namespace=staging
namespaces    search   search-5d8c6b4f7-zt5wq 1140=old,780=fine          host=node-2:9797 namespace=staging

late          classify infercanary-classify-1 7500=old,5400=new
late          classify infercanary-classify-2 7500=old,5400=new          latency=0.051

exporter-down classify infercanary-classify-1 1140=old,600=new           host=node-1:9797
exporter-down classify infercanary-classify-2 1140=old,600=new           host=node-2:9797
exporter-down classify infercanary-classify-3 1140=old,600=new           host=node-3:9797
exporter-down moderate infercanary-moderate-1 1140=other                 host=node-3:9797
"""
"""Columns: situation, service, name, (seconds before the end)=(image) of each start, and other fields of
:class:`Server` (`_` is a space). In `spread`, services run on several hosts, each with its own judge; one service
takes 20 µs, and one became 400 times slower.
"""


def _servers(situation: str, word: str = "") -> list[Server]:
    made = []
    for line in re.findall(rf"^{situation} +(.+)", _SERVERS, re.MULTILINE):
        service, name, starts, *others = line.split()
        fields = dict(each.replace("_", " ").split("=") for each in others)
        times = [start.split("=") for start in starts.split(",")]
        words = f"{fields.pop('words', '')},{word}"
        latency = float(fields.pop("latency", 0.05))
        images = [(float(at), IMAGES[image]) for at, image in times]
        made.append(Server(service, name, images, words, latency=latency, **fields))
    return made


def _many(number: int) -> Server:
    """Return one of 500 services on 50 hosts.

    Every fifth service was upgraded, and every tenth became slower after its upgrade.
    """
    new = IMAGES["new"]._replace(slower=0.05 + 0.002 * number if number % 10 == 0 else 0.0)
    starts = [(800.0, IMAGES["old"]), (300.0, new)][: 1 + (number % 5 == 0)]
    host = f"host-{number // 10:02}:9797"
    name = f"service-{number:03}"
    return Server(name, f"{name}-1", starts, "brief", latency=0.02 + 0.0003 * number, host=host)


_ONE = {"service": "classify", "instance": "exporter:9797", "canary": "resnet18"}
_PROD = {"namespace": "prod", "service": "search", "instance": "node-2:9797", "canary": "resnet18"}
_NODE = _ONE | {"instance": "node-3:9797"}
_LAST = _ONE | {"service": "service-490", "instance": "host-49:9797"}
_ALL = (
    Situation("fresh", [], 600.0),
    Situation("one-image", _servers("one-image"), chosen=_ONE),
    Situation("upgraded", _servers("upgraded"), chosen=_ONE),
    Situation("troubled", _servers("troubled"), chosen=_ONE, docker_silent=True),
    Situation("upgraded-gpu", _servers("upgraded", "gpu"), chosen=_ONE),
    Situation("troubled-gpu", _servers("troubled", "gpu"), chosen=_ONE, docker_silent=True),
    Situation("spread", _servers("spread", "brief"), 1140.0, 60.0, _PROD),
    Situation("namespaces", _servers("namespaces", "brief"), 1140.0, 60.0, _PROD),
    Situation("late", _servers("late", "brief"), 7500.0, 60.0, _ONE, shown=1800.0),
    Situation("exporter-down", _servers("exporter-down", "brief"), 1140.0, 60.0, _NODE, down="node-3:9797"),
    Situation("many", [*map(_many, range(500))], 480.0, 120.0, _LAST),
)
SITUATIONS: Mapping[str, Situation] = {situation.name: situation for situation in _ALL}
