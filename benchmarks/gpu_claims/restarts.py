"""Claim: of ten identical restarts, no start is called slower or faster than the starts before."""

from __future__ import annotations

import json

from gpu_claims.claim import Measured, share
from gpu_claims.step import Place, child, need, step, torch_module

_STARTS, _RUNS = 11, 16

_CODE = """
import json, statistics, sys, time
import torch
from infercanary.probe import TorchTarget
device, runs = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
width = 2048 if device != "cpu" else 256
layers = [torch.nn.Linear(width, width) for _ in range(8)]
model = torch.nn.Sequential(*layers).to(device).eval()
target = TorchTarget(model, [{"shape": [64, width]}], device=device)
target.open()
until = time.monotonic() + 3
while time.monotonic() < until:
    target.clock.measure(target.run)
found = []
for _ in range(runs):
    found.append(statistics.median(target.clock.measure(target.run)[0].wall for _ in range(15)))
    time.sleep(0.05)
print(json.dumps(found))
"""


@step("restarts", "ten identical restarts: none is called")
def restarts(place: Place) -> list[Measured]:
    """Run each start in a separate process, and compare it with all earlier starts, as `infercanary compare` does."""
    torch_module(place)
    need("numpy", "scipy")
    from infercanary.judge import compare

    count = place.times(_STARTS, least=4)
    starts = [json.loads(child(place, _CODE, str(_RUNS))) for _ in range(count)]
    called = [
        number
        for number in range(1, count)
        if compare(starts[:number], [starts[number]]).verdict in ("regressed", "improved")
    ]
    trials = count - 1
    value, _, high = share(len(called), trials)
    return [
        Measured(
            "identical restarts that are called",
            f"0 of {trials}",
            value,
            value,
            value,
            most=0.0,
            note=f"{len(called)} of {trials}, so with 95 % confidence below {high:.0%} of restarts",
        )
    ]
