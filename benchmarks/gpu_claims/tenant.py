"""Measures the cost of a probe for a tenant.

In one server process, blocks of 2 s with a running probe and with a paused probe form pairs in random order.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gate import Gate
from goals import TENANT
from gpu_claims.claim import Measured, paired_ratio, quantile
from gpu_claims.step import Place, step, synchronized, torch_module
from gpu_claims.timing import model
from infercanary.probe import Probe, TorchTarget

BLOCK_SECONDS = 2.0
SETTLE_SECONDS = 0.2
"""Seconds before each block that do not count."""
_PAIRS = 90


@step("tenant", "ratio of a server's p50 and p99 with the probe to those without, in pairs of 2 s blocks")
def tenant(place: Place) -> list[Measured]:
    """Measure with requests back to back, and with a run each second (ten times as often as by default)."""
    torch = torch_module(place)
    network, shape = model(place)
    shape = [1, *shape[1:]]
    image = torch.zeros(shape)
    pool = ThreadPoolExecutor(1)
    gate = Gate(pool)

    def infer() -> int:
        with torch.inference_mode():
            return int(network(image.to(place.device)).argmax())

    def block(seconds: float) -> list[float]:
        found, begin = [], time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            pool.submit(infer).result()
            found.append(time.perf_counter() - now)
        return found

    target = TorchTarget(network, [{"shape": shape}], device=place.device)
    probe = Probe(
        {"canary": target}, listen="127.0.0.1:0", interval_seconds=1.0, duty_cap=0.01, executor=gate
    )
    probe.start()
    block_seconds = BLOCK_SECONDS * (1 if place.on_gpu else max(place.scale, 0.25))
    block(5 * block_seconds)  # the probe opens and warms up
    rng, pairs = random.Random(7), []
    for _ in range(place.times(_PAIRS)):
        sides: dict[bool, list[float]] = {}
        for is_on in rng.sample((True, False), 2):
            gate.open.clear()
            block(SETTLE_SECONDS)  # wait for the end of a running repeat
            if is_on:
                gate.open.set()
            sides[is_on] = block(block_seconds)
        pairs.append((sides[True], sides[False]))
    gate.open.set()
    runs = probe.report("").count(b'"outcome":"ok"')
    probe.stop()
    synchronized(torch, place)
    pool.shutdown()
    note = f"{len(pairs)} pairs, {sum(len(a) + len(b) for a, b in pairs)} requests, {runs} runs in the report"
    return [
        Measured(
            f"a tenant's p{percent} with the probe over without it",
            f"≤ {most}",
            *paired_ratio(pairs, partial(quantile, percent=percent)),
            most=most,
            note=note,
        )
        for percent, most in TENANT.items()
    ]
