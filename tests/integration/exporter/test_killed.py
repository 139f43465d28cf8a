"""The store contains each run exactly once, however often the exporter and the probes are killed."""

import random
import time

import pytest

from tests.integration.exporter.processes import ExporterProcess, ProbeProcess, stored, until, urls
from tests.scenarios import cases


@cases([3, pytest.param(100, marks=pytest.mark.campaign)])
def test_every_run_is_stored_once_whoever_is_killed(kills, tmp_path):
    rng = random.Random(1)
    probes = [ProbeProcess(tmp_path / name) for name in "ab"]
    exporter = ExporterProcess(tmp_path / "exporter", urls(probes))
    processes = [*probes, exporter]
    victims = [processes[number % 3] for number in range(kills)]
    rng.shuffle(victims)
    try:
        for process in processes:
            process.start()
        for victim in victims:
            if rng.random() < 0.8:  # wait, because the process could be killed during its start
                until(exporter.works)
            time.sleep(rng.uniform(0, 1.5))
            victim.kill()
            victim.start()
        exporter.kill()
        until(lambda: all(probe.works() for probe in probes))
        rings = [probe.ring() for probe in probes]
        exporter.start()  # The new exporter has no cursor, so it requests all runs.

        until(lambda: exporter.has_collected(rings))
        exporter.stop()
    finally:
        for process in processes:
            process.kill()
    kept = stored(exporter.store)
    unknown = runs = starts = 0
    for probe, ring in zip(probes, rings, strict=True):
        journal = probe.journalled()
        starts += len(journal)
        for boot, made in journal.items():
            if boot not in kept:
                # The exporter never polled this start while it ran, so the container's image is unknown and
                # the store lacks the runs.
                unknown += 1
                assert boot != next(reversed(ring))
                continue
            numbers = kept.pop(boot)
            # no run may be lost or stored twice
            assert numbers == made[: len(numbers)] and len(numbers) >= len(ring.get(boot, ()))
            runs += len(numbers)
    assert not kept  # every stored start must belong to a probe
    assert starts - unknown > kills / 3
    assert runs > 2 * kills
    print(f"{kills} kills: {runs} runs stored once; {unknown} starts left out that no exporter saw")
