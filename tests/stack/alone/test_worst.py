"""The exporter with Compose's limits and the largest planned number of probes.

Each probe sends the largest permitted report, or causes the most work for the judge.
"""

import os
import re
import time

import pytest
from harness import eventually, get, run
from onlooker import Watch
from probed import UNHARMED, exporter, state

from infercanary.exporter.limits import Totals
from tests.scenarios import cases

NAME = "infercanary-worst"
MEMORY = 512 << 20
FITTING = Totals.within(MEMORY).probes
BEYOND = 8
SECONDS = float(os.environ.get("WORST_SECONDS", "300"))
PEAK = r"sed -n 's/^VmHWM:\s*\([0-9]*\) kB/\1/p' /proc/[0-9]*/status | sort -n | tail -1"


@pytest.mark.campaign
@cases(
    [pytest.param("worst", FITTING / 2, id="worst"), pytest.param("regressed", FITTING / 4, id="regressed")],
)
def test_as_many_as_fit_stay_within_the_memory_that_is_planned(probes, least, tmp_path):
    with exporter(NAME, tmp_path, probes, FITTING + BEYOND) as address:
        eventually("the exporter", 60, lambda: get(f"http://{address}/-/healthy"))
        watch = Watch(f"http://{address}", FITTING, every=5.0)
        try:
            time.sleep(SECONDS)
        finally:
            watch.end()
        assert state(NAME) == UNHARMED
        peak = int(run("docker", "exec", NAME, "sh", "-c", PEAK)) << 10
    taken = len(re.findall(r"^infercanary_runs_collected_total{.*} [1-9]", watch.text, re.M))
    print(f"{FITTING} probes, {taken} taken: {peak >> 20} MiB, scrape p99 {watch.p99:.3f} s")
    assert watch.value("infercanary_refused_containers") == BEYOND
    assert watch.value("infercanary_budget_exceeded_total") > FITTING
    assert taken > least  # All probes exceed their share of the intake, so the exporter polls them later.
    assert [fault for fault in watch.faults if "scrape failed" in fault] == []
    assert peak < MEMORY
