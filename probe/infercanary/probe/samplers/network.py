"""Network: counts the TCP segments that the container receives. The count measures the container's requests without
reports from the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from infercanary.contract.report import Family, Metric
from infercanary.probe.samplers import Sampler, Unavailable, register

RECEIVED = Metric(
    "infercanary_tcp_received_segments_total",
    "counter",
    "TCP segments that the container received; missing for a container in the host's network.",
    reading="`rate(…[5m])` follows the server's requests. A rise since an upgrade is more load, not the "
    "image.",
)

_SNMP, _INTERFACES = Path("/proc/self/net/snmp"), Path("/sys/class/net")


@register
class NetworkSampler(Sampler):
    """Reads the counters of this process's network namespace."""

    name = "network"

    def sample(self) -> Iterable[Family]:
        # Only the host's namespace has hardware interfaces; a container has one end of a virtual pair.
        names = list(_INTERFACES.glob("*"))
        if not names or any((name / "device").exists() for name in names):
            raise Unavailable("the container shares the host's network, so its requests cannot be counted")
        lines = [line.split() for line in _SNMP.read_text().splitlines() if line.startswith("Tcp:")]
        counters = dict(zip(*lines, strict=True))
        yield RECEIVED.family(int(counters["InSegs"]))
