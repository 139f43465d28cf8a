"""Reports of probes for 40 replicas on five hosts, and judges in this process."""

from typing import NamedTuple

import numpy as np

from infercanary.contract.report import Run
from infercanary.exporter.judging.worker import Judging
from infercanary.judge.model import Generation, ServiceKey

SERVICES = {"faster": 0.93, "slower": 1.08, "same": 1.0, "much-slower": 1.5, "alone": None}
"""Latency of the second image as a ratio; None for a service without a second image."""
HOSTS = tuple(f"host-{n}" for n in range(5))
REPLICAS = 8
T = 1_790_000_000.0
BEFORE, AFTER, EVERY = 40, 24, 10.0


class Part(NamedTuple):
    host: str
    start: Generation
    runs: list[Run]


def fleet():
    """Return the reports of 40 replicas of 5 services on 5 hosts. At times, a host slows all its replicas equally."""
    rng = np.random.default_rng(21)
    hours = {host: 0.01 * np.sin(np.arange(BEFORE + AFTER + 60) / 9 + rng.uniform(0, 6)) for host in HOSTS}
    parts = []
    for number, (service, factor) in enumerate(SERVICES.items()):
        for replica in range(REPLICAS):
            host = HOSTS[(number + replica) % len(HOSTS)]
            images = [("sha256:1", 1.0, BEFORE)] + ([("sha256:2", factor, AFTER)] if factor else [])
            begun = 0
            for image, scale, count in images:
                start = Generation(
                    service=service,
                    container=f"{service}-{replica}",
                    boot_id=f"{service}-{replica}-{image}",
                    started_at=T + EVERY * begun + replica,
                    image_id=image,
                    environment={"cpu_model": "X"},
                )
                level = 0.02 * scale * np.exp(rng.normal(0, 0.003))
                at = np.arange(begun, begun + count)
                seconds = level * np.exp(hours[host][at] + rng.normal(0, 0.004, count))
                runs = [
                    Run(sequence=i, canary="c", scheduled_at=0.0, started_at=start.started_at + EVERY * i + 1,
                        outcome="ok", latencies=(float(x),) * 5, controls={"cpu_spin": float(0.001 * np.exp(h))})
                    for i, (x, h) in enumerate(zip(seconds, hours[host][at], strict=True))
                ]  # fmt: skip
                parts += [Part(host, start, runs[i : i + 7]) for i in range(0, count, 7)]
                begun += count
    return parts


def in_time(parts):
    return sorted(parts, key=lambda part: part.runs[0].started_at)


def submit(judging, part):
    judging.host = part.host
    judging.submit(part.start, part.runs)


def judge(stack, location, host=""):
    judging = Judging(location, host=host)
    judging.watched = frozenset(ServiceKey("", name) for name in SERVICES)

    def close():
        if judging._store is not None:
            judging._store.close()

    stack.callback(close)
    return judging
