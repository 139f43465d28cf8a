"""Builders of starts, runs, reports and collectors for tests of the exporter, without network and containers."""

import msgspec

from infercanary.contract.report import SCHEMA_VERSION, Metric, Report, Run, encode
from infercanary.contract.vocabulary import COLD_START_METRIC
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.probe_state import PolledProbe
from infercanary.judge.model import Generation, ServiceKey
from infercanary.judge.policy import LIVE

S = ServiceKey("", "s")
COLD_START = Metric(COLD_START_METRIC, "gauge", "Cold start.", ("canary", "step"))


def generation(boot="b1", image="sha256:1", container="a", **fields):
    known = {"service": "s", "started_at": 0.0, "image_id": image}
    return Generation(container=container, boot_id=boot, **known | fields)


def runs(count, first=0, seconds=0.02, *, at=0.0, **fields):
    """Return runs of the canary ``c``, one every ten seconds from ``at`` on."""
    run = msgspec.structs.replace(Run(0, "c", 0.0, 0.0, "ok"), **fields)
    return [
        msgspec.structs.replace(
            run,
            sequence=first + n,
            scheduled_at=10.0 * n,
            started_at=at + 10.0 * n,
            latencies=(seconds * (1 + 0.001 * (n % 3)),) * 5,
        )
        for n in range(count)
    ]


def run(number, canary="a", of="", **fields):
    """Return a run; ``of`` is the start whose journal contains the run."""
    return msgspec.structs.replace(Run(number, canary, 0.0, 0.0, "ok", (0.01,), boot_id=of), **fields)


def report(boot="boot", several=(), families=(), *, environment=None, **fields):
    whole = Report(SCHEMA_VERSION, boot, 0.0, "", 0, (*families,), dict(environment or {}), (*several,))
    return encode(msgspec.structs.replace(whole, **fields))


def probe(name="c", **fields):
    return PolledProbe(Container(**{"service": "s", "name": name, "id": "0" * 64, **fields}))


def collecting(judging=None):
    return Collector(ExporterConfig(), Exposition(), judging or Judging(None), ())


def have(found, expected):
    """Check these fields of containers: ``url_missing`` and ``notes`` in part, and ids as numbers."""
    for container, fields in zip(found, expected, strict=True):
        for name, value in fields.items():
            has = getattr(container, name)
            if name in ("url_missing", "notes"):
                has = "".join(has)
                assert value in has and bool(value) == bool(has), has
            else:
                assert value == (int(has or "0", 16) if name in ("id", "watched_id") else has), name


def value(judging, name):
    [family] = [family for family in judging.families() if family.name == f"infercanary_{name}"]
    numbers = [point.value for point in family.points if isinstance(point.value, float)]
    return numbers[0] if numbers else None


class Judged:
    def __init__(self, store=None, policy=LIVE, **limits):
        self.judging = Judging(store, policy, **limits)

    def take(self, start, several):
        self.judging.submit(start, [*several])
        return self

    def finding(self, canary="c"):
        self.judging.turn()
        return self.judging.findings[S][canary]

    def state(self):
        return self.finding().result.state

    def value(self, name):
        return value(self.judging, name)

    def again(self, store, policy=LIVE):
        self.close()
        return Judged(store, policy)

    def close(self):
        if self.judging._store is not None:
            self.judging._store.close()
