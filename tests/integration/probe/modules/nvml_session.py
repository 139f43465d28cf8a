"""Takes an NVML sample for each command, in a separate process because pynvml loads its library only once."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import msgspec

from infercanary.probe import sampling
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import nvml
from infercanary.probe.samplers.nvml import NvmlSampler, slow, visible_gpus
from infercanary.probe.sampling import Guard


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def held():
    """Return the number of objects that the stand-in created and did not release, or -1 without the stand-in."""
    import pynvml

    return getattr(pynvml.nvmlLib, "fakeHeld", lambda: -1)()


def serve(pipe, script):
    said, tally, minutes = Said(), Tally(), 0
    logging.getLogger().addHandler(said)
    logging.getLogger().setLevel("INFO")
    slow._SYSFS, slow._PROC = script.parent / "sys", script.parent / "proc"
    vars(nvml)["time"] = SimpleNamespace(monotonic=lambda: 60.0 * minutes)
    sampler = NvmlSampler()
    guard = Guard(sampler, tally)

    def sample(lines):
        # A busy machine must not look like a driver that hangs.
        sampling._DEADLINE_SECONDS = 0.5 if any(line.endswith(" -1") for line in lines) else 20.0
        guard.sample(sampling._DEADLINE_SECONDS)
        own = {family.name: family.points[0].value for family in tally.families()}
        return {
            "success": own["infercanary_sampler_success"],
            "families": {f.name: {"/".join(p.labels): p.value for p in f.points} for f in guard.families},
            "whole": msgspec.to_builtins(guard.families),
            "local_cpus": {str(gpu): sorted(cpus) for gpu, cpus in sampler.local_cpus.items()},
            "threads": threading.active_count(),
            "said": [*said.lines],
        }

    while True:
        order = pipe.recv()
        new = script.with_suffix(".new")
        new.write_text("\n".join(order["lines"]))
        new.replace(script)  # atomic, because a hanging call reads the script repeatedly
        minutes += order.get("minutes", 0)
        answer: dict[str, Any]
        if order.get("close"):
            answer = {"closed": guard.close(30)}
        elif order.get("visible"):
            answer = {"visible": visible_gpus()}
        else:
            answer = sample(order["lines"])
        pipe.send(answer | {"held": held()})
        said.lines.clear()
