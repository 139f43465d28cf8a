"""Takes one NVML sample per line on standard input and prints what came of it: pynvml loads its library once."""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from infercanary.probe import sampling
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers.nvml import NvmlSampler, visible_gpus
from infercanary.probe.sampling import Guard

said: list[str] = []
minutes = 0


class Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(f"{record.levelname} {record.getMessage()}")


def held() -> int:
    """What the stand-in created and has not released; -1 where another library was loaded, or none."""
    import pynvml

    return getattr(pynvml.nvmlLib, "fakeHeld", lambda: -1)()


def answer(order: dict[str, Any]) -> dict[str, Any]:
    global minutes
    new = Path(f"{sys.argv[1]}.new")
    new.write_text("\n".join(order["lines"]))
    new.replace(sys.argv[1])  # in one piece: a call that hangs reads it all the time
    if order.get("close"):
        return {"closed": guard.close(30), "held": held()}
    if order.get("visible"):
        return {"visible": visible_gpus(), "held": held()}
    minutes += order.get("minutes", 0)
    # A machine that is busy is no driver that hangs.
    sampling._DEADLINE_SECONDS = 0.5 if any(line.endswith(" -1") for line in order["lines"]) else 20.0
    guard.sample(sampling._DEADLINE_SECONDS)
    own = {family.name: family.points[0].value for family in tally.families()}
    return {
        "success": own["infercanary_sampler_success"],
        "families": {f.name: {"/".join(p.labels): p.value for p in f.points} for f in guard.families},
        "whole": msgspec.to_builtins(guard.families),
        "local_cpus": {gpu: sorted(cpus) for gpu, cpus in sampler.local_cpus.items()},
        "held": held(),
        "threads": threading.active_count(),
        "said": said,
    }


logging.getLogger().addHandler(Handler())
logging.getLogger().setLevel("INFO")
tally = Tally()
sampler = NvmlSampler(
    sysfs=Path(sys.argv[2]), proc=Path(sys.argv[2]).parent / "proc", monotonic=lambda: 60.0 * minutes
)
guard = Guard(sampler, tally)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
    said.clear()
