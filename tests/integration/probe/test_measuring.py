"""What a run is reported as: on time or late, beside controls, with the same output, in a busy pool."""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted
from watching import MODULES, Seen, fetch, until

from infercanary.contract.report import Family, Run, decode
from infercanary.notebook.function import FunctionTarget
from infercanary.probe import HostClock, Phase
from infercanary.probe.samplers import Sampler

CPU_CONTROLS = {"cpu_spin", "memory_copy", "page_io", "thread_wake"}


def ok(seen: Seen, canary: str = "a") -> list[Run]:
    return [run for run in seen.report.runs if run.canary == canary and run.outcome == "ok"]


def test_a_known_time_in_a_known_phase_is_reported_there_and_nowhere_else(started: Any) -> None:
    """Against an independent clock: the target's own, by CLOCK_MONOTONIC_RAW around each wait."""
    waits = {"h2d": 0.010, "compute": 0.040, "d2h": 0.020}
    independent: dict[str, list[float]] = {name: [] for name in waits}
    begun: list[int] = []  # how many repeats there were before each run

    class Waiting(Scripted):
        def prepare(self) -> None:
            begun.append(len(independent["h2d"]))

        def run(self, phase: Phase) -> Any:
            for name, seconds in waits.items():
                with phase(name):
                    begin = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
                    time.sleep(seconds)
                    independent[name].append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - begin)

    probe = started({"a": Waiting()})
    seen: Seen = until(lambda: len(ok(s := fetch(probe.address))) >= 3 and s, seconds=60)
    probe.stop()
    total: dict[str, float] = {}
    for name in waits:
        (point,) = (p for p in seen.families["infercanary_phase_seconds"].points if p.labels == ("a", name))
        count, total_seconds = sum(point.value.counts), point.value.sum  # type: ignore[union-attr]
        before = len(independent[name]) - count
        # Of the same repeats: those after warm-up, of which later runs have added some.
        assert before >= (warm_up := begun[0]) >= 17
        assert total_seconds == pytest.approx(sum(independent[name][warm_up : warm_up + count]), rel=0.01)
        total[name] = total_seconds
    (wall,) = (p.value.sum for p in seen.families["infercanary_latency_seconds"].points)  # type: ignore[union-attr]
    assert sum(total.values()) == pytest.approx(wall, rel=0.01)


def test_a_batch_is_timed_per_inference() -> None:
    clock = HostClock()
    clock.batch = 10

    def run(phase: Phase) -> None:
        with phase("compute"):
            for _ in range(clock.batch):
                time.sleep(0.002)

    timing = min((clock.measure(run)[0] for _ in range(5)), key=lambda each: each.wall)
    assert 0.002 <= timing.phases["compute"] <= timing.wall < 0.02


def test_controls_follow_each_run(started: Any) -> None:
    probe = started({"a": Scripted(), "b": Scripted()}, controls=True)
    seen: Seen = until(lambda: ok(s := fetch(probe.address)) and ok(s, "b") and s)
    for run in (ok(seen)[0], ok(seen, "b")[0]):
        assert {*run.controls} == CPU_CONTROLS
        assert all(0 < seconds < 1 for seconds in run.controls.values())
    for name in ok(seen)[0].controls:
        assert 0 < (seen.value("infercanary_control_seconds", "cpu", name) or 0) < 1
    probe.stop()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("infercanary")])


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_environment_says_what_controls_are_made_of_unless_it_is_machine_code(
    started: Any, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    from infercanary.probe.targets import controls
    from infercanary.probe.targets.controls.machine_code import Refused

    def refuse() -> None:
        raise Refused("a profile forbids it")

    if is_refused:
        monkeypatch.setattr(controls, "mapped_code", refuse)
    probe = started({"a": Scripted()}, controls=True)
    seen: Seen = until(lambda: len(ok(s := fetch(probe.address))) >= 1 and s)
    assert {*ok(seen)[0].controls} == CPU_CONTROLS, "the names are the same"
    assert seen.report.environment.get("controls_made_of") == (
        controls.python_and_libc() if is_refused else None
    )


def test_a_control_that_fails_costs_only_itself(
    started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from infercanary.probe import controls

    real = controls.available_controls  # type: ignore[attr-defined]

    @contextmanager
    def broken() -> Iterator[Callable[[], float]]:
        raise ValueError("broken on purpose")
        yield time.perf_counter

    made = {"broken": broken, **real("cpu")[0]}
    monkeypatch.setattr(controls, "available_controls", lambda device: (made if device == "cpu" else {}, ""))
    with caplog.at_level(logging.WARNING):
        probe = started({"a": Scripted()}, controls=True)
        seen: Seen = until(lambda: len(ok(s := fetch(probe.address))) >= 3 and s)
    assert seen.value("infercanary_control_seconds", "cpu", "broken") is None
    assert set(ok(seen)[-1].controls) == made.keys() - {"broken"}
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["control broken on cpu: ValueError: broken on purpose"]


def test_another_output_is_tagged_and_its_fingerprint_is_in_the_report(started: Any) -> None:
    class Answering(Scripted):
        answer = (1.0, 2.0, 2.0)

        def values(self, result: Any) -> Sequence[float]:
            return self.answer

    target = Answering()
    probe = started({"a": target})
    seen: Seen = until(lambda: (s := fetch(probe.address)).report.outputs and s)
    assert seen.report.outputs == {"a": (1.0, 2.0, 2.0)}
    seen = until(lambda: (s := fetch(probe.address)).value("infercanary_output_error_ratio", "a") == 0 and s)
    assert not any("output_changed" in run.tags for run in seen.report.runs)
    target.answer = (1.0, 2.0, 2.3)
    seen = until(lambda: (s := fetch(probe.address)).value("infercanary_output_error_ratio", "a") and s)
    assert seen.value("infercanary_output_error_ratio", "a") == pytest.approx(0.1)
    last = ok(seen)[-1]
    assert last.output_error == pytest.approx(0.1) and "output_changed" in last.tags
    assert (seen.value("infercanary_tagged_runs_total", "a", "output_changed") or 0) >= 1
    assert seen.report.outputs == {"a": (1.0, 2.0, 2.0)}, "the reference is the first steady one"
    share = seen.value("infercanary_eligible_ratio", "a")
    assert share is not None and share < 1


class Silent(Scripted):
    def values(self, result: Any) -> Sequence[float]:
        return ()


@pytest.mark.parametrize(
    "target",
    [
        Silent(),
        FunctionTarget(lambda: "text", [], "cpu"),
        FunctionTarget(lambda: [{"label": None}, object()], [], "cpu"),
    ],
    ids=["of a stranger", "text", "objects"],
)
def test_an_output_that_holds_no_numbers_has_no_error_and_is_named_once(
    started: Any, target: Any, caplog: pytest.LogCaptureFixture
) -> None:
    probe = started({"a": target})
    seen: Seen = until(
        lambda: (
            len(ok(s := fetch(probe.address))) >= 4
            and s.value("infercanary_canary_state", "a", "steady")
            and s
        )
    )
    assert seen.value("infercanary_output_error_ratio", "a") is None
    assert {run.output_error for run in ok(seen)} == {None}
    assert seen.report.outputs == {"a": ()}
    assert [r.getMessage() for r in caplog.records if "output not checked" in r.getMessage()] == [
        "canary a: output not checked: no numbers were read from it"
    ]


def test_a_pool_that_is_busy_is_busy_not_broken(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        probe = started({"a": Scripted()}, executor=pool, timeout_seconds=0.5)
        until(lambda: fetch(probe.address).runs("a", "ok") >= 1)
        pool.submit(go_on.wait, 60)
        seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "busy") >= 1 and s)
        assert seen.state("a") == "busy"
        assert seen.runs("a", "timed_out") == 0
        assert seen.value("infercanary_run_median_seconds", "a") is None
        assert "no turn in the server's pool within 0.5 s" in seen.report.runs[-1].detail
        go_on.set()
        until(lambda: fetch(probe.address).state("a") in ("warming", "steady"))
        probe.stop()


class Slow(Sampler):
    """A sampler that takes its time, which is less than the probe has between two rounds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[float] = []

    def sample(self) -> list[Family]:
        self.asked.append(time.time())
        time.sleep(0.3)
        return []


def test_a_round_waits_for_its_samples_as_a_whole_and_begins_in_its_slot(started: Any) -> None:
    samplers = [Slow(f"slow{number}") for number in range(5)]
    probe = started({"a": Scripted()}, samplers=samplers, interval_seconds=1.0, duty_cap=0.5)
    seen: Seen = until(lambda: fetch(probe.address).runs("a", "ok") >= 8 and fetch(probe.address))
    probe.stop()
    waited, late = [], []
    for run in ok(seen):
        # What the first sampler was asked last before the run: five that are waited for in turn would be 0.5 s.
        waited.append(run.started_at - max(at for at in samplers[0].asked if at <= run.started_at))
        late.append(run.started_at - run.scheduled_at)
        assert ("stalled" in run.tags) == (late[-1] > 0.25)
    assert statistics.median(waited) < 0.3
    assert statistics.median(late) < 0.25


def test_a_busy_device_is_given_way_to_but_not_for_ever(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infercanary.probe.timed_target._GIVE_WAY_SECONDS", 0.02)

    class Shared(Scripted):
        busy = False

        def is_busy(self) -> bool:
            return self.busy

    target = Shared()
    probe = started({"a": target})
    until(lambda: fetch(probe.address).runs("a", "ok") >= 1)
    assert fetch(probe.address).runs("a", "busy") == 0
    target.busy = True
    until(lambda: fetch(probe.address).runs("a", "busy") >= 5)
    ran = fetch(probe.address).runs("a", "ok")
    until(
        lambda: fetch(probe.address).runs("a", "ok") >= ran + 2,
        "under a load that never pauses it runs now and then",
    )
    runs = [run.outcome for run in fetch(probe.address).report.runs]
    first = runs.index("busy")
    assert runs[first : first + 12] == [*["busy"] * 5, "ok", *["busy"] * 5, "ok"]


def test_a_device_that_is_busy_or_fails_is_not_given_controls_either(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infercanary.probe.controls import Controls

    class Shared(Scripted):
        device = "cuda"
        busy = fails = False

        def is_busy(self) -> bool:
            return self.busy

        def run(self, phase: Phase) -> Any:
            if self.fails:
                raise RuntimeError("no")
            return super().run(phase)

    asked: list[str] = []
    measure = Controls.measure
    monkeypatch.setattr(
        Controls,
        "measure",
        lambda self, device: asked.append(device) or measure(self, device),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr("infercanary.probe.timed_target._GIVE_WAY_SECONDS", 0.02)
    target = Shared()
    probe = started({"a": target}, controls=True)
    until(lambda: fetch(probe.address).runs("a", "ok") >= 2)
    target.fails = True
    until(lambda: fetch(probe.address).runs("a", "raised") >= 2)
    target.fails, target.busy = False, True
    until(lambda: fetch(probe.address).runs("a", "busy") >= 2)
    probe.stop()
    outcomes = [run.outcome for run in decode(probe.report("")).runs]
    assert asked[: len(outcomes)] == ["cuda" if outcome == "ok" else "cpu" for outcome in outcomes]


def test_a_sampler_that_is_late_at_first_still_shows_what_changed(started: Any) -> None:
    from infercanary.probe.samplers.cgroup.metrics import CPUSET
    from infercanary.probe.samplers.threads import GRANTED

    class Quick(Sampler):
        name = "threads"

        def sample(self) -> Iterable[Family]:
            return [GRANTED.family(1)]

    class Late(Sampler):
        name = "cgroup"
        cpus = 0

        def sample(self) -> Iterable[Family]:
            if not self.cpus:
                time.sleep(0.5)  # a quota held it back
                self.cpus = 4
            return [CPUSET.family(self.cpus)]

    late = Late()
    probe = started({"a": Scripted()}, samplers=[Quick(), late])
    until(lambda: fetch(probe.address).value("infercanary_cgroup_cpuset_cpus") == 4)
    late.cpus = 2
    until(lambda: any("cpuset_changed" in run.tags for run in fetch(probe.address).report.runs))


def test_cold_start_times(started: Any) -> None:
    probe = started({"a": Scripted()})
    steps = "load", "first_run", "warm_up", "time_to_steady"

    def took(seen: Seen) -> list[float]:
        return [seen.value("infercanary_cold_start_seconds", "a", step) or 0.0 for step in steps]

    *opening, steady = until(lambda: (found := took(fetch(probe.address)))[-1] and found)
    assert 0 < sum(opening) < steady


def test_a_stop_of_the_process_is_a_tag_and_a_metric(tmp_path: Path) -> None:
    """SIGSTOP for 2 s, in a process of its own; the journal has the run's tag after all is over."""
    import os
    import signal

    script = textwrap.dedent(
        f"""
        from infercanary.probe import Probe
        from scripted import Scripted
        import time
        probe = Probe({{"a": Scripted()}}, listen="127.0.0.1:0", interval_seconds=0.5, duty_cap=1.0, controls=False,
                      journal={str(tmp_path / "journal")!r})
        probe.start()
        while not probe.address: time.sleep(0.01)
        print(probe.address, flush=True)
        time.sleep(60)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script], cwd=MODULES, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        until(lambda: len(ok(fetch(address))) >= 3)
        assert fetch(address).value("infercanary_stalled_seconds_total") == 0
        last = fetch(address).report.runs[-1].sequence
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(child.pid, signal.SIGCONT)
        seen: Seen = until(lambda: (s := fetch(address)).report.runs[-1].sequence >= last + 4 and s)
        assert 1.7 <= (seen.value("infercanary_stalled_seconds_total") or 0) < 4.0
        after = [run for run in seen.report.runs if run.sequence > last]
        assert any("stalled" in run.tags for run in after[:3])
    finally:
        child.kill()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()

    # It was killed. The next probe of this container offers what was not collected.
    from infercanary.probe.journal import last_runs

    left = last_runs(tmp_path / "journal", 1000)
    assert len(left) >= last + 4 and any("stalled" in run.tags for run in left)


def test_runs_of_a_crashed_probe_are_offered_by_the_next(started: Any, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = started({"a": Scripted()}, journal=path)
    seen: Seen = until(lambda: len(ok(s := fetch(first.address))) >= 3 and s)
    first.stop()
    boot = seen.report.boot_id
    second = started({"a": Scripted()}, journal=path)
    until(lambda: any(not run.boot_id for run in fetch(second.address).report.runs))
    found = fetch(second.address, f"{boot}.1").report.runs
    assert [run.sequence for run in found if run.boot_id == boot][:2] == [2, 3]
    own = [run for run in found if not run.boot_id]
    assert own and own[0].sequence == 1
    cursor = fetch(second.address).report.cursor
    assert all(not run.boot_id for run in fetch(second.address, cursor).report.runs)
