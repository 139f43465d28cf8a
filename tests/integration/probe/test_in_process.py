"""The probe in a server's own process: it never raises into the host, and it ends when it is asked to."""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted
from watching import MODULES, Seen, fetch, until

from infercanary.command.settings import UsageError
from infercanary.contract.report import encode
from infercanary.probe import Probe, TorchTarget

SOME = {"some": TorchTarget("module:factory", [{"shape": [1]}])}


def probe_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("infercanary-")]


def test_runs_are_reported_and_it_stops_cleanly(started: Any) -> None:
    target = Scripted()
    probe = started({"a": target})
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 3 and s)
    assert seen.state("a") in ("warming", "steady")
    report = seen.report
    assert [run.sequence for run in report.runs] == list(range(1, len(report.runs) + 1))
    assert len(report.runs) == seen.runs("a", "ok")
    for run in report.runs:
        assert run.canary == "a" and run.outcome == "ok" and run.detail == ""
        assert 5 <= len(run.latencies) <= 50
        assert min(run.latencies) >= 0.001
        assert run.phases["compute"] >= 0.001
        assert abs(run.started_at - time.time()) < 60
    # The histogram has the repeats of all runs, and the gauges are the last one's.
    latencies = [each for run in report.runs for each in run.latencies]
    assert seen.value("infercanary_latency_seconds", "a") == len(latencies)
    assert seen.value("infercanary_phase_seconds", "a", "compute") == len(latencies)
    assert seen.value("infercanary_run_median_seconds", "a") == statistics.median(report.runs[-1].latencies)
    for cold in ("load", "first_run", "warm_up"):
        assert seen.value("infercanary_cold_start_seconds", "a", cold) is not None
    assert report.environment["engine"] == "scripted"
    assert seen.value("infercanary_environment_info", "engine", "scripted") == 1
    assert 0 < (seen.value("infercanary_busy_seconds_total") or 0) < 60
    assert (seen.value("infercanary_probe_cpu_seconds_total") or 0) > 0

    probe.stop()
    assert until(lambda: not probe_threads()) is True
    assert target.calls[-1][0] == "close"
    assert target.count("open") == target.count("close") == 1
    # No call but the constructor came from the host's thread.
    assert threading.get_ident() not in {ident for name, ident in target.calls if name != "init"}
    with pytest.raises(OSError, match="refused"):
        fetch(probe.address)
    probe.stop()  # once more is no error


def test_between_runs_the_canary_has_no_thread(started: Any) -> None:
    """A thread that ran OpenMP keeps a pool for as long as it lives, and that slows the server's own down."""
    started({"a": Scripted()}, interval_seconds=0.5, duty_cap=0.5)
    until(lambda: any(thread.name == "infercanary-a" for thread in threading.enumerate()), "it runs")
    until(lambda: all(thread.name != "infercanary-a" for thread in threading.enumerate()), "it rests")


def test_in_the_servers_own_pool_repeats_take_turns_with_requests(started: Any) -> None:
    target = Scripted()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(threading.get_ident).result()
        probe = started({"a": target}, executor=pool)
        until(lambda: fetch(probe.address).runs("a", "ok") >= 2, "it runs there")
        # A request waits for one repeat at most, not for a run; and the pool is the server's to the end.
        assert pool.submit(lambda: "answer").result(30) == "answer"
        probe.stop()
        assert pool.submit(lambda: "answer").result(30) == "answer"
        assert {ident for name, ident in target.calls if name in ("run", "values")} == {serving}
        assert serving not in {ident for name, ident in target.calls if name in ("open", "close")}


def test_a_pool_that_was_shut_down_is_a_failed_run(started: Any) -> None:
    pool = ThreadPoolExecutor(1)
    probe = started({"a": Scripted()}, executor=pool)
    until(lambda: fetch(probe.address).runs("a", "ok") >= 1, "it runs there")
    pool.shutdown()
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "raised") >= 1 and s)
    assert "shutdown" in seen.report.runs[-1].detail


def test_all_threads_are_daemons(started: Any) -> None:
    started({"a": Scripted(), "b": Scripted(open="hang")})
    assert until(lambda: len(probe_threads()) >= 3)
    assert all(thread.daemon for thread in probe_threads())


def test_a_port_that_is_taken_is_a_log_line_and_no_more(
    started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = started({"a": Scripted()})
    with caplog.at_level(logging.ERROR):
        second = started({"a": Scripted()}, listen=first.address.removeprefix("http://"))
        until(lambda: caplog.records)
    (record,) = caplog.records
    assert "cannot listen on 127.0.0.1:" in record.getMessage()
    assert "Address already in use" in record.getMessage()
    second.stop()
    assert fetch(first.address).report.schema_version == 1


# What one method does, what the runs and the state then are, and what the log says.
MISBEHAVIOUR = [
    ({"open": "raise"}, None, "ValueError: open broken on purpose"),
    ({"open": "exit"}, None, "SystemExit: 7"),
    ({"open": "interrupt"}, None, "KeyboardInterrupt"),
    ({"open": "usage"}, None, "open: fix this"),
    ({"open": "hang"}, None, "not open after 0.3 s"),
    ({"environment": "raise"}, None, "ValueError: environment broken on purpose"),
    ({"run": "raise"}, "raised", "ValueError: run broken on purpose"),
    ({"run": "exit"}, "raised", "SystemExit: 7"),
    ({"run": "interrupt"}, "raised", "KeyboardInterrupt"),
    ({"run": "hang"}, "timed_out", "no result within 0.3 s (timeout_seconds)"),
    ({"values": "nan"}, "not_finite", "the output holds NaN or infinity"),
    ({"values": "raise"}, "raised", "ValueError: values broken on purpose"),
    ({"values": "junk"}, "raised", "could not convert string to float"),
    ({"values": "hang"}, "timed_out", "no result within 0.3 s (timeout_seconds)"),
    ({"clock": "nan"}, "raised", "the target's clock gave nan as seconds"),
]


class BrokenClock:
    def measure(self, run: Any) -> Any:
        from infercanary.probe.timing import Timing

        return Timing(float("nan"), {}), None


@pytest.mark.parametrize(("script", "outcome", "reason"), MISBEHAVIOUR, ids=str)
def test_a_canary_that_misbehaves_costs_only_itself(
    started: Any, caplog: pytest.LogCaptureFixture, script: dict[str, str], outcome: str | None, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    good, bad = Scripted(), Scripted()
    if outcome is None:
        bad.script = script
    settings = {"timeout_seconds": 0.3, "open_timeout_seconds": 0.3 if script.get("open") == "hang" else 60.0}
    probe = started({"bad": bad, "good": good}, **settings)
    if outcome is not None:
        until(lambda: fetch(probe.address).runs("bad", "ok") >= 1, "the canary never was well")
        if "clock" in script:
            bad.clock = BrokenClock()
        else:
            bad.script = script
        seen: Seen = until(lambda: (s := fetch(probe.address)).runs("bad", outcome) >= 1 and s)
        reasons = [run.detail for run in seen.report.runs if run.canary == "bad" and run.outcome == outcome]
        assert reason in reasons[0]
        assert "\n" not in reasons[0]
        if outcome != "not_finite":
            # A canary that fails has no latency now: its last good one would look healthy.
            assert seen.value("infercanary_run_median_seconds", "bad") is None
    until(lambda: fetch(probe.address).state("bad") == "failing")

    # The other canary goes on, and so does the host.
    before = fetch(probe.address).runs("good", "ok")
    seen = until(lambda: (s := fetch(probe.address)).runs("good", "ok") >= before + 2 and s)
    assert seen.state("good") in ("warming", "steady")
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert sum(reason in message for message in messages) == 1, "the reason is logged once, not once per run"
    assert all("\n" not in message for message in messages)

    if outcome is not None:
        # Repaired, it is well again by itself.
        bad.clock = good.clock
        bad.script = {}
        bad.go_on.set()
        ok = fetch(probe.address).runs("bad", "ok")
        until(lambda: fetch(probe.address).runs("bad", "ok") > ok)
        until(lambda: fetch(probe.address).state("bad") in ("warming", "steady"))
        until(lambda: any("answers again" in record.getMessage() for record in caplog.records))
    bad.go_on.set()


def test_a_failure_to_close_is_a_log_line(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    probe = started({"a": Scripted(close="raise")})
    until(lambda: fetch(probe.address).runs("a", "ok") >= 1)
    probe.stop()
    assert any("closing failed: ValueError: close broken" in r.getMessage() for r in caplog.records)


def test_odd_environments_are_made_text(started: Any) -> None:
    probe = started({"a": Scripted(environment="junk")})
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 1 and s)
    assert seen.report.environment["number"] == "3"
    assert seen.report.environment["text"] == "a??b"
    assert seen.report.environment["5"] == "None"


def test_canaries_that_differ_in_a_component_have_both_values(started: Any) -> None:
    class Other(Scripted):
        def environment(self) -> dict[str, str]:
            return {"engine": "other"}

    probe = started({"a": Scripted(), "b": Other()})
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("b", "ok") >= 1 and s)
    assert seen.report.environment["engine"] == "other, scripted"


def test_a_canary_that_opens_for_long_is_reported_as_opening_and_stop_does_not_wait_for_it(
    started: Any,
) -> None:
    slow = Scripted(open="hang")
    probe = started({"slow": slow})
    until(lambda: slow.count("open") == 1)
    seen = fetch(probe.address)
    assert seen.state("slow") == "opening"
    assert seen.report.runs == ()
    assert seen.value("infercanary_lateness_seconds") is None, (
        "what was not measured yet is missing, not zero"
    )
    begin = time.monotonic()
    probe.stop(30.0)
    assert time.monotonic() - begin < 20, "it waited for the model"


def test_a_load_past_its_deadline_is_taken_when_it_ends(started: Any) -> None:
    slow = Scripted(open="hang")
    probe = started({"slow": slow}, open_timeout_seconds=0.1)
    until(lambda: fetch(probe.address).state("slow") == "failing")
    slow.go_on.set()
    until(lambda: fetch(probe.address).runs("slow", "ok") >= 1)
    assert slow.count("open") == 1


def test_a_canary_that_cannot_be_opened_is_tried_again(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from infercanary.probe import canary

    monkeypatch.setattr(canary, "_REOPEN_SECONDS", (0.1, 0.2))
    target, other = Scripted(open="raise"), Scripted(seconds=0.002)
    probe = started({"a": target, "other": other})
    until(lambda: target.count("open") >= 3)
    assert target.count("close") >= 2, "half open, it may hold a model's memory"
    assert fetch(probe.address).state("a") == "failing", "it must not flap between failing and opening"
    target.script = {}
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 1 and s)
    assert all(run.outcome == "ok" for run in seen.report.runs if run.canary == "other")


def test_runs_beside_a_canary_that_loads_are_tagged(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from infercanary.probe import canary

    monkeypatch.setattr(canary, "_REOPEN_SECONDS", (0.2, 0.2))
    target = Scripted(open="raise")
    probe = started({"a": target, "other": Scripted()})
    until(lambda: fetch(probe.address).runs("other", "ok") >= 1)
    assert "beside_canary" not in fetch(probe.address).report.runs[0].tags
    target.script = {"open": "hang"}
    until(lambda: any("beside_canary" in run.tags for run in fetch(probe.address).report.runs))


def test_a_slow_canary_gets_fewer_repeats_rather_than_a_time_out(started: Any) -> None:
    probe = started({"slow": Scripted(seconds=0.06)}, timeout_seconds=0.4)
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("slow", "ok") >= 1 and s)
    assert 1 <= len(seen.report.runs[0].latencies) < 5
    assert seen.runs("slow", "timed_out") == 0


def test_ever_new_phases_are_refused(started: Any) -> None:
    """Each name is a time series: they would grow for ever."""

    class Inventive(Scripted):
        def run(self, phase: Any) -> Any:
            with phase(f"part{len(self.calls)}"):
                return super().run(phase)

    probe = started({"a": Inventive()})
    until(lambda: fetch(probe.address).state("a") == "failing")
    family = fetch(probe.address).families.get("infercanary_phase_seconds")
    assert family is None or len(family.points) <= 16


def test_the_loop_dies_alone(
    started: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of the probe's own is logged with its traceback, and the host does not notice."""
    from infercanary.probe import canary

    def defect(*_: Any) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(canary.Canary, "_account", defect)
    probe = started({"a": Scripted()})
    until(lambda: any("a defect of the probe" in record.getMessage() for record in caplog.records))
    until(lambda: not probe_threads())
    probe.stop()


def test_as_a_context_manager() -> None:
    with Probe(
        {"a": Scripted()}, listen="127.0.0.1:0", samplers=(), interval_seconds=0.1, duty_cap=1.0
    ) as probe:
        until(lambda: probe.address and fetch(probe.address).runs("a", "ok") >= 1)
    assert until(lambda: not probe_threads()) is True


def test_beside_a_canary_that_fails_it_still_samples(started: Any) -> None:
    probe = started(SOME, samplers={})
    until(lambda: fetch(probe.address).value("infercanary_process_granted_cpus"))


def test_unix_socket(started: Any, tmp_path: Path) -> None:
    import http.client
    import socket

    path = tmp_path / "probe.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # a container that was killed leaves its socket behind
    probe = started({"a": Scripted()}, listen=f"unix://{path}")
    assert path.stat().st_mode & 0o777 == 0o666

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(path))

    connection = Connection("probe")
    connection.request("GET", "/report")
    from infercanary.contract.report import decode

    assert decode(connection.getresponse().read()).schema_version == 1
    connection.close()
    probe.stop()
    until(lambda: not path.exists())


def test_a_live_socket_or_a_file_is_not_taken(
    started: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "probe.sock"
    first = started({"a": Scripted()}, listen=f"unix://{path}")
    second = Probe(SOME, listen=f"unix://{path}", samplers=())
    with pytest.raises(UsageError, match="Address already in use"):
        second.serve()
    assert path.exists()
    first.stop()
    path.write_text("not a socket")
    with pytest.raises(UsageError, match="Address already in use"):
        second.serve()
    assert path.read_text() == "not a socket"


def test_the_host_exits_as_if_there_were_no_probe(tmp_path: Path) -> None:
    """A host that never calls stop(), with a canary at work and one that hangs: its own exit code, soon."""
    script = textwrap.dedent(
        """
        import sys, threading, time
        from infercanary.probe import Probe
        from scripted import Scripted
        probe = Probe({"busy": Scripted(seconds=0.01), "hung": Scripted(run="hang")},
                      listen="127.0.0.1:0", interval_seconds=0.1, duty_cap=1.0, timeout_seconds=60)
        probe.start()
        while not probe.address: time.sleep(0.01)
        time.sleep(0.5)
        print("host ends", all(t.daemon for t in threading.enumerate() if t is not threading.main_thread()))
        sys.exit(5)
        """
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=MODULES, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "host ends True\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begin < 45


def test_a_forked_child_starts_a_probe_of_its_own() -> None:
    """As a worker of gunicorn with `--preload`: its parent's probe does nothing in it, not even when it exits."""
    script = textwrap.dedent(
        """
        import os, sys, time, urllib.request
        from infercanary.probe import Probe
        from scripted import Scripted

        def start(listen):
            probe = Probe({"a": Scripted(seconds=0.001)}, listen=listen, interval_seconds=0.1, duty_cap=1.0)
            probe.start()
            while not probe.address: time.sleep(0.01)
            return probe

        probe = start("127.0.0.1:0")
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(told, 1)
            own = start(probe.address.removeprefix("http://"))
            print(urllib.request.urlopen(own.address + "/report", timeout=20).status, flush=True)
            probe._stopping._cond.acquire()  # as if another thread of the parent had it at that moment
            sys.exit(3)
        probe.stop()
        os.write(tell, b".")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=MODULES, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "200\n3\n", done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_is_whole_under_concurrent_readers(started: Any) -> None:
    """Runs and the numbers that count them come from one moment, whoever reads at the same time."""
    probe = started({"a": Scripted(seconds=0.0), "b": Scripted(seconds=0.0)})
    until(lambda: fetch(probe.address).runs("b", "ok") >= 1)
    torn: list[str] = []
    stop = threading.Event()

    def whole() -> Any:
        while True:
            try:
                return fetch(probe.address)
            except OSError:  # refused: all ask as fast as they can, and one address has one share
                time.sleep(0.01)

    def read() -> None:
        while not stop.is_set():
            seen = whole()
            for canary in ("a", "b"):
                runs = [run for run in seen.report.runs if run.canary == canary]
                if len(runs) != seen.runs(canary, "ok"):
                    torn.append("runs")
                if sum(len(run.latencies) for run in runs) != seen.value(
                    "infercanary_latency_seconds", canary
                ):
                    torn.append("latencies")
            if seen.report.runs and seen.report.cursor.rpartition(".")[2] != str(
                seen.report.runs[-1].sequence
            ):
                torn.append("cursor")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    before = whole().runs("b", "ok")
    until(lambda: whole().runs("b", "ok") >= before + 10)
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_by_the_cursor_each_run_comes_once(started: Any) -> None:
    probe = started({"a": Scripted(), "b": Scripted()})
    got: list[int] = []
    cursor = ""

    def poll() -> bool:
        nonlocal cursor
        report = fetch(probe.address, cursor).report
        got.extend(run.sequence for run in report.runs)
        assert report.lost_runs == 0
        cursor = report.cursor
        return len(got) >= 12

    until(poll)
    assert got == list(range(1, len(got) + 1))
    # Another boot, or garbage: everything that is still here.
    for other in ("0" * 32 + ".3", "garbage", "%00%ff"):
        assert fetch(probe.address, other).report.runs[0].sequence == 1


def test_duty_stays_under_the_cap(started: Any) -> None:
    """A sleeping target of 4 ms: 5 repeats take 20 ms or more, and 0.2 s at 20 % allow 40."""
    probe = started({"a": Scripted(seconds=0.004)}, interval_seconds=0.2, duty_cap=0.2)
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 12 and s, seconds=60)
    elapsed = seen.report.runs[-1].started_at - seen.report.runs[0].started_at
    # One run may cost more than announced on a busy machine, and is paid back with the next.
    assert 0 < (seen.value("infercanary_busy_seconds_total") or 0) / elapsed <= 0.2 * 1.5
    assert (seen.value("infercanary_interval_seconds") or 0) >= 0.2
    assert seen.value("infercanary_duty_cap_ratio") == 0.2


def test_a_costly_canary_stretches_the_interval(started: Any) -> None:
    probe = started({"a": Scripted(seconds=0.02)}, interval_seconds=0.1, duty_cap=0.2)
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 2 and s)
    assert (seen.value("infercanary_interval_seconds") or 0) >= 0.5
    encode(seen.report)


_INTERRUPTED = """
import os, signal, threading, infercanary

def model():
    if threading.current_thread() is not threading.main_thread():
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(30)

try:
    infercanary.time(model)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""


def test_ctrl_c_in_a_notebook_is_no_mistake_of_the_model() -> None:
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert "interrupted" in done.stdout, done.stderr
