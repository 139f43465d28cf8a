"""Takes one NVML sample per line on standard input and prints what came of it: pynvml loads its library once."""

from __future__ import annotations

import json
import logging
import sys

from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import Guard
from infercanary.probe.samplers.nvml import NvmlSampler

said: list[str] = []


class Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(f"{record.levelname} {record.getMessage()}")


logging.getLogger().addHandler(Handler())
logging.getLogger().setLevel("INFO")
tally = Tally()
guard = Guard(NvmlSampler(), tally, deadline=0.5)
for line in sys.stdin:
    with open(sys.argv[1], "w") as script:
        script.write("\n".join(json.loads(line)))
    guard.sample()
    own = {family.name: family.points[0].value for family in tally.families()}
    answer = {
        "success": own["infercanary_sampler_success"],
        "seconds": own["infercanary_sampler_duration_seconds"],
        "families": {f.name: {"/".join(p.labels): p.value for p in f.points} for f in guard.families},
        "said": said,
    }
    print(json.dumps(answer), flush=True)
    said.clear()
