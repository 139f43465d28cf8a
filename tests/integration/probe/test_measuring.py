"""Reports of runs: on time or late, with controls, with equal output, and in a busy pool."""

import signal
import statistics
import time

import pytest
from probe_process import ProbeProcess, scripted
from scripted import OnDevice, Scripted
from watching import fetch, ran, until

from infercanary.contract.report import decode
from infercanary.probe.controls import Controls
from infercanary.probe.journal import last_runs
from infercanary.probe.samplers import Sampler
from infercanary.probe.samplers.cgroup.metrics import CPUSET
from infercanary.probe.samplers.threads import GRANTED

CPU_CONTROLS = {"cpu_spin", "memory_copy", "page_io", "thread_wake"}


def ok(seen):
    return [run for run in seen.report.runs if run.outcome == "ok"]


def tagged(address, tag):
    return any(tag in run.tags for run in fetch(address).report.runs)


def test_a_known_time_in_a_known_phase_is_reported_there_and_nowhere_else(started):
    """The target measures each wait with an independent clock, CLOCK_MONOTONIC_RAW."""
    waits = {"h2d": 0.010, "compute": 0.040, "d2h": 0.020}
    independent: dict[str, list[float]] = {name: [] for name in waits}
    begun = []  # number of repeats before each run

    class Waiting(Scripted):
        def prepare(self):
            begun.append(len(independent["h2d"]))

        def run(self, phase):
            for name, seconds in waits.items():
                with phase(name):
                    begin = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
                    time.sleep(seconds)
                    independent[name].append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - begin)

    probe = started({"a": Waiting()})
    seen = ran(probe.address, 3)
    probe.stop()

    def reported(metric):
        return {point.labels[-1]: point.value for point in seen.families[metric].points}

    phases, [whole] = reported("infercanary_phase_seconds"), reported("infercanary_latency_seconds").values()
    assert begun[0] >= 17, "warm-up"
    for name in waits:  # Compare the same repeats: those after the warm-up; later runs have added a few.
        own = independent[name][begun[0] : begun[0] + sum(phases[name].counts)]
        assert len(own) == sum(phases[name].counts)
        assert phases[name].sum == pytest.approx(sum(own), rel=0.01)
    assert sum(phases[name].sum for name in waits) == pytest.approx(whole.sum, rel=0.01)


@pytest.mark.parametrize("is_refused", [False, True])
def test_controls_follow_each_run_and_the_environment_says_where_they_are_no_machine_code(
    started, monkeypatch, is_refused
):
    from infercanary.probe.targets import controls
    from infercanary.probe.targets.controls.machine_code import Refused

    def refuse():
        raise Refused("a profile forbids it")

    if is_refused:
        monkeypatch.setattr(controls, "mapped_code", refuse)
    probe = started({"a": Scripted(), "b": Scripted()}, controls=True)
    ran(probe.address)
    seen = ran(probe.address, canary="b")
    for run in ok(seen):
        assert {*run.controls} == CPU_CONTROLS
        assert all(0 < seconds < 1 for seconds in run.controls.values())
    assert seen.value("infercanary_control_seconds", "cpu", "cpu_spin")
    made_of = controls.python_and_libc() if is_refused else None
    assert seen.report.environment.get("controls_made_of") == made_of


def test_another_output_is_tagged_and_its_fingerprint_is_in_the_report(started):
    class Answering(Scripted):
        answer = (1.0, 2.0, 2.0)

        def values(self, result):
            return self.answer

    target = Answering()
    probe = started({"a": target})

    def error():
        return fetch(probe.address).value("infercanary_output_error_ratio", "a")

    until(lambda: error() == 0)
    assert not tagged(probe.address, "output_changed")
    target.answer = (1.0, 2.0, 2.3)
    until(error)
    seen = fetch(probe.address)
    last = ok(seen)[-1]
    assert last.output_error == error() == pytest.approx(0.1)
    assert "output_changed" in last.tags
    assert seen.report.outputs == {"a": (1.0, 2.0, 2.0)}, "the reference is the first steady output"
    assert (seen.value("infercanary_tagged_runs_total", "a", "output_changed") or 0) >= 1
    assert (seen.value("infercanary_eligible_ratio", "a") or 0) < 1


class Slow(Sampler):
    def __init__(self, name):
        self.name = name
        self.asked: list[float] = []

    def sample(self):
        self.asked.append(time.time())
        time.sleep(0.3)
        return []


def test_a_round_waits_for_its_samples_as_a_whole_and_begins_in_its_slot(started, monkeypatch):
    samplers = [Slow(f"slow{number}") for number in range(5)]
    monkeypatch.setattr("infercanary.probe.loop.make_samplers", lambda *_, **__: samplers)
    probe = started({"a": Scripted()}, interval_seconds=1.0, duty_cap=0.5)
    seen = ran(probe.address, 6)
    probe.stop()
    waited, late = [], []
    for run in ok(seen):
        # Time from the first sampler's last sample to the run. Five samplers, one after another, would take
        # longer.
        waited.append(run.started_at - max(at for at in samplers[0].asked if at <= run.started_at))
        late.append(run.started_at - run.scheduled_at)
        assert ("stalled" in run.tags) == (late[-1] > 0.25)
    assert statistics.median(waited) < 0.3
    assert statistics.median(late) < 0.25


class Shared(OnDevice):
    busy = False

    def is_busy(self):
        return self.busy


def test_a_busy_device_is_given_way_to_but_not_for_ever(started, monkeypatch):
    """Under permanent load, the canary still runs at times, but the controls are not measured."""
    asked, measure = [], Controls.measure

    def record(self, device):
        asked.append(device)
        return measure(self, device)

    monkeypatch.setattr(Controls, "measure", record)
    monkeypatch.setattr("infercanary.probe.timed_target._GIVE_WAY_SECONDS", 0.02)
    target = Shared("cuda")
    probe = started({"a": target}, controls=True)
    assert ran(probe.address).runs("a", "busy") == 0
    target.script = {"run": "raise"}
    ran(probe.address, outcome="raised")
    target.script, target.busy = {}, True
    ran(probe.address, 10, outcome="busy")
    probe.stop()
    outcomes = [run.outcome for run in decode(probe.report("")).runs]
    first = outcomes.index("busy")
    assert outcomes[first : first + 10] == [*["busy"] * 5, "ok", *["busy"] * 4]
    assert asked[2:][: len(outcomes)] == ["cuda" if outcome == "ok" else "cpu" for outcome in outcomes]


def test_a_sampler_that_is_late_at_first_still_shows_what_changed(started, monkeypatch):
    class Quick(Sampler):
        name = "threads"

        def sample(self):
            return [GRANTED.family(1)]

    class Late(Sampler):
        name = "cgroup"
        cpus = 0

        def sample(self):
            if not self.cpus:
                time.sleep(0.5)
                self.cpus = 4
            return [CPUSET.family(self.cpus)]

    late = Late()
    monkeypatch.setattr("infercanary.probe.loop.make_samplers", lambda *_, **__: [Quick(), late])
    probe = started({"a": Scripted()})
    until(lambda: fetch(probe.address).value("infercanary_cgroup_cpuset_cpus") == 4)
    late.cpus = 2
    until(lambda: tagged(probe.address, "cpuset_changed"))


def test_a_stop_of_the_process_is_a_tag_and_a_metric(tmp_path):
    journal = tmp_path / "journal"
    with ProbeProcess(tmp_path, f"{{a: {scripted()}}}", f"journal: {journal}\ncontrols: false") as probe:
        seen = probe.ran("a", 3)
        assert seen.value("infercanary_stalled_seconds_total") == 0
        last = seen.report.runs[-1].sequence
        probe.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        probe.process.send_signal(signal.SIGCONT)
        seen = probe.ran("a", last + 4)
    assert 1.2 <= (seen.value("infercanary_stalled_seconds_total") or 0) < 3.5
    after = [run for run in seen.report.runs if last < run.sequence <= last + 3]
    for runs in (after, last_runs(journal, 1000)):
        assert any("stalled" in run.tags for run in runs)


def test_runs_of_a_crashed_probe_are_offered_by_the_next(started, tmp_path):
    path = tmp_path / "journal"
    first = started({"a": Scripted()}, journal=path)
    boot = ran(first.address, 3).report.boot_id
    first.stop()
    second = started({"a": Scripted()}, journal=str(path))
    cursor = ran(second.address).report.cursor
    found = fetch(second.address, f"{boot}.1").report.runs
    assert [run.sequence for run in found if run.boot_id == boot][:2] == [2, 3]
    assert next(run.sequence for run in found if not run.boot_id) == 1
    assert all(not run.boot_id for run in fetch(second.address, cursor).report.runs)
