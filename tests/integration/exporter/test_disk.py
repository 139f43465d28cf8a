"""The disk is full at each single write: the stored content, and the recovery."""

import subprocess
import sys

import full_disk
import msgspec
import pytest
from disk import FakeDisk, needs_cc
from full_disk import REPORTS, Trial

pytestmark = [needs_cc, pytest.mark.store]


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.campaign)])
def test_a_disk_that_is_full_at_any_write_costs_nothing_that_the_rings_hold(tmp_path, step):
    disk = FakeDisk(tmp_path / "disk", tmp_path)
    command = [sys.executable, full_disk.__file__, str(disk.folder), str(step)]
    done = subprocess.run(
        command,
        env=disk.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    trials = {
        int(call): msgspec.convert(found, Trial)
        for call, found in map(msgspec.json.decode, done.stdout.splitlines())
    }
    everything = [*range(REPORTS * full_disk.RUNS)]
    assert len(trials) > trials[0].calls / step
    for call, found in trials.items():
        assert found.kept == found.found_again == everything, call
        assert found.counted == len(everything), call
        assert found.left == everything[: len(found.left)] and len(found.left) % full_disk.RUNS == 0, call
        assert found.ups[-1] == 1.0, call
        assert found.verdict == trials[0].verdict, call
        # It is said, of a report that was not stored and of a verdict that was not.
        assert 0 <= len(found.left) // full_disk.RUNS - found.ups[:-1].count(1.0) <= 1, call
        assert (0.0 in found.ups) is (call > 0), call
    print(f"{len(trials) - 1} of {trials[0].calls} calls without room")
