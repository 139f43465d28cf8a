"""The clock of the host steps forward and back while real probes and exporters run (processes with libfaketime)."""

import random
from functools import partial

import pytest
from set_clock import Clock, needs_faketime

from tests.integration.exporter.processes import KEY, ExporterProcess, ProbeProcess, stored, until, urls

DAY = 86_400
STEPS = (60, -60, 3_600, -3_600, DAY, -2 * DAY, 400 * DAY, -399 * DAY, -10 * 365 * DAY, 9 * 365 * DAY)


@pytest.mark.campaign
@pytest.mark.store
@needs_faketime
@pytest.mark.parametrize("back", STEPS, ids=lambda seconds: f"{seconds:+d}s")
def test_verdicts_and_cursors_stay_sound(tmp_path, back):
    """The clock steps often during an upgrade of one of two replicas, and by ``back`` seconds just before the
    upgrade.
    """
    rng = random.Random(back)
    clock = Clock(tmp_path / "offset")
    environment = clock.environment
    probes = [ProbeProcess(tmp_path / name, environment, seconds=0.02) for name in "ab"]
    upgraded = probes[0]
    exporter = ExporterProcess(tmp_path / "exporter", urls(probes), environment)

    def have(runs):
        return all(sum(map(len, probe.journalled().values())) >= runs for probe in probes)

    def state():
        verdicts = exporter.values("infercanary_verdict").items()
        shown = [labels for labels, value in verdicts if value and 'measure="latency"' in labels]
        return next(
            (name for name in ("regressed", "improved") if any(f'"{name}"' in one for one in shown)), ""
        )

    try:
        for process in (*probes, exporter):
            process.start()
        for goal in (12, 24, 36):
            until(partial(have, goal))
            clock.move(rng.choice((-1, 1)) * rng.choice((30, 1_800)))
        until(partial(have, 48))
        clock.move(back)
        upgraded.kill()
        upgraded.takes(0.04)
        upgraded.start()
        until(lambda: state())
        assert state() == "regressed", exporter.values("infercanary_verdict_info")
        clock.move(-back // 2)
        exporter.kill()
        exporter.start()
        until(lambda: state())
        assert state() == "regressed", exporter.values("infercanary_verdict_info")
        rings = [probe.ring() for probe in probes]
        until(lambda: exporter.has_collected(rings))
        exporter.stop()
    finally:
        for process in (*probes, exporter):
            process.kill()
    kept = stored(exporter.store)
    made = {boot: numbers for probe in probes for boot, numbers in probe.journalled().items()}
    assert kept.keys() == made.keys()
    assert len(kept) == 3
    for boot, numbers in kept.items():
        assert numbers == made[boot][: len(numbers)]
    for ring in rings:
        assert all(len(kept[boot]) >= len(numbers) for boot, numbers in ring.items())
    print(f"{back:+d} s: {sum(map(len, kept.values()))} runs of {KEY.name}, each once; regressed")
