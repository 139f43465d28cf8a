"""Each reader (journals and reports) converts tags of 0.1.0 to their current names."""

import msgspec

from infercanary.contract import journal, report
from infercanary.contract.report import Report
from infercanary.contract.vocabulary import TAGS
from infercanary.judge.model import kept
from tests.programs import GOLDEN
from tests.scenarios import cases

LINES = (GOLDEN / "journal_0.1.0.jsonl").read_bytes().splitlines()
# Current names of the tags of 0.1.0, in their old order. The journal has a run with each tag.
NOW = {
    "warming": "warming", "failing": "failing", "busy": "failing", "beside_opening": "beside_canary",
    "beside_sweep": "beside_canary", "late": "stalled", "stalled": "stalled", "preempted": "cpu_wait_outside",
    "crowded_inside": "cpu_wait_inside", "cgroup_throttled": "cgroup_throttled", "cpuset_changed": "cpuset_changed",
    "memory_limit": "memory_limit", "oom_kill": "memory_limit", "io_pressure": "io_pressure", "gc": "gc",
    "gpu_power_cap": "gpu_clock_limited (sw_power_cap)", "gpu_sync_boost": "gpu_clock_limited (sync_boost)",
    "gpu_sw_thermal": "gpu_clock_limited (sw_thermal)", "gpu_hw_thermal": "gpu_clock_limited (hw_thermal)",
    "gpu_power_brake": "gpu_clock_limited (hw_power_brake)", "gpu_clock_low": "gpu_clock_limited (low_clock)",
    "gpu_busy": "gpu_busy", "gpu_xid": "", "output_changed": "output_changed",
}  # fmt: skip


def of_journal(line):
    run = journal.decode(line).run
    return None if run is None else kept(run)


def of_report(line):
    run = msgspec.json.decode(line, type=journal.JournalEntry).run
    if run is None:
        return None
    [read] = report.decode(report.encode(Report(1, "boot", 0.0, "", 0, (), {}, (run,)))).runs
    return kept(read)


@cases([of_journal, of_report])
def test_runs_of_0_1_0_have_todays_tags(door):
    samples = [sample for line in LINES if (sample := door(line)) is not None]
    *single, every, late, unknown, none = [sample.labelled_tags for sample in samples]
    assert single == [(now,) if now else () for now in NOW.values()]
    # If a run has several reasons, the first reason stays.
    limited = "gpu_clock_limited (sw_power_cap)"
    assert every == tuple(limited if tag == "gpu_clock_limited" else tag for tag in TAGS)
    assert (late, unknown, none) == (("stalled",), ("of_a_later_version",), ())
    not_judged = [old for old, sample in zip(NOW, samples, strict=False) if not sample.is_settled]
    assert not_judged == ["warming", "failing", "busy", "beside_opening", "beside_sweep"]
