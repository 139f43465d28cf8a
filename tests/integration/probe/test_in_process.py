"""The probe in a server's process: it never raises an error into the host, and ends on request."""

import logging
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scripted import Scripted
from watching import MODULES, fetch, in_state, ran, shown, until

from infercanary.command.settings import UsageError
from infercanary.contract.report import decode
from infercanary.probe import HostClock, Probe
from infercanary.probe.timing import Timing


def probe_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("infercanary-")]


def test_runs_are_reported_and_it_stops_cleanly(started, caplog):
    target = Scripted(close="raise")
    probe = started({"a": target})
    seen = ran(probe.address, 3)
    assert probe_threads()
    assert all(thread.daemon for thread in probe_threads())
    runs = seen.report.runs
    assert [run.sequence for run in runs] == list(range(1, len(runs) + 1))
    for run in runs:
        assert (run.canary, run.outcome, run.detail) == ("a", "ok", "")
        assert 5 <= len(run.latencies) <= 50
        assert abs(run.started_at - time.time()) < 60
        assert min(*run.latencies, run.phases["compute"]) >= 0.001
    # The histogram counts the repeats of all runs, but the gauges describe only the last run.
    repeats = sum(len(run.latencies) for run in runs)
    assert seen.value("infercanary_phase_seconds", "a", "compute") == repeats
    assert seen.value("infercanary_run_median_seconds", "a") == statistics.median(runs[-1].latencies)
    assert seen.report.environment["engine"] == "scripted"
    assert seen.value("infercanary_environment_info", "engine", "scripted") == 1
    for name in ("busy", "probe_cpu"):
        assert 0 < (seen.value(f"infercanary_{name}_seconds_total") or 0) < 60

    def took(step):
        return fetch(probe.address).value("infercanary_cold_start_seconds", "a", step) or 0.0

    until(lambda: took("time_to_steady"))
    assert 0 < took("load") + took("first_run") + took("warm_up") < took("time_to_steady")

    probe.stop()
    until(lambda: not probe_threads())
    assert target.calls[-1][0] == "close"
    assert target.count("open") == target.count("close") == 1
    assert "closing failed: ValueError: close broken" in caplog.text
    # The thread of the host called only the constructor.
    assert threading.get_ident() not in {ident for name, ident in target.calls if name != "init"}
    with pytest.raises(OSError, match="refused"):
        fetch(probe.address)
    probe.stop()


def test_as_a_context_manager():
    settings: dict[str, Any] = {"interval_seconds": 0.5, "duty_cap": 0.5}
    with Probe({"a": Scripted()}, listen="127.0.0.1:0", **settings) as probe:
        until(lambda: probe.address and fetch(probe.address).runs("a", "ok"))
        # The thread ends after each run. A thread that used OpenMP keeps its pool, which slows the server.
        until(
            lambda: all(thread.name != "infercanary-a" for thread in threading.enumerate()),
            "the canary's thread still runs",
        )
    assert until(lambda: not probe_threads()) is True


def test_in_the_servers_own_pool_repeats_take_turns_with_requests(started):
    target, go_on = Scripted(), threading.Event()
    pool = ThreadPoolExecutor(1)
    serving = pool.submit(threading.get_ident).result()
    probe = started({"a": target}, executor=pool, timeout_seconds=0.5)
    ran(probe.address, 2)
    # A request waits for at most one repeat, never for a whole run.
    assert pool.submit(lambda: "answer").result(30) == "answer"
    assert {ident for name, ident in target.calls if name in ("run", "values")} == {serving}
    assert serving not in {ident for name, ident in target.calls if name in ("open", "close")}
    # A busy pool is no fault of the canary.
    pool.submit(go_on.wait, 60)
    seen = ran(probe.address, outcome="busy")
    assert (seen.state("a"), seen.runs("a", "timed_out")) == ("busy", 0)
    assert seen.value("infercanary_run_median_seconds", "a") is None
    assert "no turn in the server's pool within 0.5 s" in seen.report.runs[-1].detail
    go_on.set()
    in_state(probe.address, "a", "warming", "steady")
    pool.shutdown()
    assert "shutdown" in ran(probe.address, outcome="raised").report.runs[-1].detail


def test_a_port_that_is_taken_is_a_log_line_and_no_more(started, caplog):
    first = started({"a": Scripted()})
    second = started({"a": Scripted()}, listen=first.address.removeprefix("http://"))
    until(lambda: "cannot listen on 127.0.0.1:" in caplog.text)
    assert "Address already in use" in caplog.text
    second.stop()
    assert fetch(first.address).report.schema_version == 1


class BrokenClock(HostClock):
    def measure(self, run):
        return Timing(float("nan"), {}), None


# Behaviour of one method, outcome of the runs (-: the canary never opens), and reason
MISBEHAVIOUR = """
open raise - ValueError: open broken on purpose
open exit - SystemExit: 7
open usage - open: fix this
open hang - not open after 1 s
environment raise - ValueError: environment broken on purpose
run raise raised ValueError: run broken on purpose
run interrupt raised KeyboardInterrupt
run hang timed_out no result within 0.3 s (timeout_seconds)
values nan not_finite the output contains NaN or infinity
values junk raised could not convert string to float
values hang timed_out no result within 0.3 s (timeout_seconds)
clock nan raised the target's clock gave nan as seconds
"""


@pytest.mark.parametrize("row", MISBEHAVIOUR.strip().splitlines())
def test_a_canary_that_misbehaves_costs_only_itself(started, caplog, row):
    method, deed, outcome, reason = row.split(" ", 3)
    caplog.set_level(logging.INFO)
    opens = outcome != "-"
    good, bad = Scripted(), Scripted()
    bad.script = {} if opens else {method: deed}
    open_seconds = 1.0 if row.startswith("open hang") else 60.0
    probe = started({"bad": bad, "good": good}, timeout_seconds=0.3, open_timeout_seconds=open_seconds)
    if opens:
        ran(probe.address, canary="bad")
        bad.script, bad.clock = {method: deed}, BrokenClock() if method == "clock" else bad.clock
        seen = ran(probe.address, canary="bad", outcome=outcome)
        detail = next(run.detail for run in seen.report.runs if (run.canary, run.outcome) == ("bad", outcome))
        assert reason in detail
        assert "\n" not in detail
        # A failing canary reports no latency: the latency of its last good run would look healthy.
        assert outcome == "not_finite" or seen.value("infercanary_run_median_seconds", "bad") is None
    in_state(probe.address, "bad", "failing")

    # The other canary and the host continue.
    before = fetch(probe.address).runs("good", "ok")
    assert ran(probe.address, int(before) + 2, "good").state("good") in ("warming", "steady")
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    [message] = [error for error in errors if reason in error and "bad" in error]
    assert "\n" not in message
    if opens or deed == "hang":
        # After the repair, the canary recovers without help. A load that passed its deadline counts when it
        # ends.
        bad.clock, bad.script = good.clock, {}
        bad.go_on.set()
        in_state(probe.address, "bad", "warming", "steady")
        until(lambda: "works again" in caplog.text)
        assert bad.count("open") == 1


def test_environments_are_made_text_and_one_that_differs_has_both_values(started):
    class Other(Scripted):
        def environment(self):
            return {"engine": "other"}

    probe = started({"a": Scripted(environment="junk"), "b": Other(), "c": Scripted()})
    until(lambda: all(fetch(probe.address).runs(canary, "ok") for canary in "abc"))
    environment = fetch(probe.address).report.environment
    assert [environment[name] for name in ("number", "text", "5", "engine")] == [
        "3", "a??b", "None", "other, scripted",
    ]  # fmt: skip


def test_a_canary_that_opens_for_long_is_reported_as_opening_and_stop_does_not_wait_for_it(started):
    slow = Scripted(open="hang")
    probe = started({"slow": slow})
    until(lambda: slow.count("open") == 1)
    seen = fetch(probe.address)
    assert (seen.state("slow"), seen.report.runs) == ("opening", ())
    assert seen.value("infercanary_lateness_seconds") is None, (
        "a value that was not measured yet is missing, not zero"
    )
    probe.stop(30.0)
    assert not slow.go_on.is_set(), "the start waited for the model"


def test_a_canary_that_cannot_be_opened_is_tried_again_and_others_are_tagged_while_it_loads(
    started, monkeypatch
):
    from infercanary.probe import canary

    monkeypatch.setattr(canary, "_REOPEN_SECONDS", (0.1, 0.2))
    target = Scripted(open="raise")
    probe = started({"a": target, "other": Scripted(seconds=0.002)})
    until(lambda: target.count("open") >= 3)
    assert target.count("close") >= 2, "a half-open target may hold a model's memory"
    seen = ran(probe.address, canary="other")
    assert seen.state("a") == "failing", "the state must not alternate between failing and opening"
    assert "beside_canary" not in seen.report.runs[0].tags
    target.script = {"open": "hang"}
    until(lambda: any("beside_canary" in run.tags for run in fetch(probe.address).report.runs))
    target.script = {}
    target.go_on.set()
    seen = ran(probe.address)
    assert {run.outcome for run in seen.report.runs if run.canary == "other"} == {"ok"}


def test_a_slow_canary_gets_fewer_repeats_rather_than_a_time_out(started):
    seen = ran(started({"a": Scripted(seconds=0.06)}, timeout_seconds=0.4).address)
    assert 1 <= len(seen.report.runs[0].latencies) < 5
    assert seen.runs("a", "timed_out") == 0


def test_ever_new_phases_are_refused(started):
    """Each name of a phase adds a time series, so the number of names has a limit."""

    class Inventive(Scripted):
        def run(self, phase):
            with phase(f"part{len(self.calls)}"):
                return super().run(phase)

    probe = started({"a": Inventive()}, samplers={})
    in_state(probe.address, "a", "failing")
    shown(probe.address, "infercanary_process_granted_cpus")
    family = fetch(probe.address).families.get("infercanary_phase_seconds")
    assert family is None or len(family.points) <= 16


def test_the_loop_dies_alone(started, caplog, monkeypatch):
    """The probe logs its own fault with the traceback, and the host continues."""
    from infercanary.probe import canary

    monkeypatch.setattr(canary.Canary, "_account", None)
    started({"a": Scripted()})
    until(lambda: "a defect of the probe" in caplog.text)
    until(lambda: not probe_threads())


def test_a_unix_socket_is_taken_where_nobody_listens_and_no_file_is(started, tmp_path):
    path = tmp_path / "probe.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # a killed container leaves its socket file behind
    probe = started({"a": Scripted()}, listen=f"unix://{path}")
    assert path.stat().st_mode & 0o777 == 0o666
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
        assert decode(client.makefile("rb").read().partition(b"\r\n\r\n")[2]).schema_version == 1
    second = Probe({"a": Scripted()}, listen=f"unix://{path}")
    with pytest.raises(UsageError, match="Address already in use"):
        second.serve()
    probe.stop()
    until(lambda: not path.exists())
    path.write_text("not a socket")
    with pytest.raises(UsageError, match="Address already in use"):
        second.serve()
    assert path.read_text() == "not a socket"


# A host that never calls stop(), with one working canary and one that hangs.
HOST = """
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
# Like a worker of gunicorn with `--preload`: in the child, the parent's probe does nothing, not even at exit.
FORKED = """
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
INTERRUPTED = """
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


@pytest.mark.parametrize(
    ("script", "printed", "code"),
    [
        pytest.param(HOST, "host ends True\n", 5, id="the host exits as if there were no probe"),
        pytest.param(FORKED, "200\n3\n", 0, id="a forked child starts a probe of its own"),
        pytest.param(INTERRUPTED, "interrupted\n", 0, id="Ctrl-C in a notebook is no mistake of the model"),
    ],
)
def test_a_process_ends_as_its_host_wants(script, printed, code):
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=MODULES, capture_output=True, text=True, timeout=90
    )
    assert (done.stdout, done.returncode) == (printed, code), done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_is_whole_under_concurrent_readers(started):
    probe = started({"a": Scripted(seconds=0.0), "b": Scripted(seconds=0.0)})
    last = ran(probe.address, canary="b").runs("b", "ok") + 10

    def read(_):
        while True:
            try:
                seen = fetch(probe.address)
            # refused: the readers ask as fast as possible, and share the limit of one address
            except OSError:
                time.sleep(0.01)
                continue
            for canary in ("a", "b"):
                runs = [run.latencies for run in seen.report.runs if run.canary == canary]
                assert len(runs) == seen.runs(canary, "ok")
                assert sum(map(len, runs)) == seen.value("infercanary_latency_seconds", canary)
            assert int(seen.report.cursor.rpartition(".")[2]) == seen.report.runs[-1].sequence
            if seen.runs("b", "ok") >= last:
                return

    with ThreadPoolExecutor(4) as readers:
        assert [*readers.map(read, range(4))] == [None] * 4


def test_a_costly_canary_stretches_the_interval_so_that_duty_stays_under_the_cap(started):
    """Five repeats take at least 0.1 s, so a duty cap of 20 % allows one run every 0.5 s."""
    seen = ran(started({"a": Scripted(seconds=0.02)}, interval_seconds=0.1, duty_cap=0.2).address, 6)
    elapsed = seen.report.runs[-1].started_at - seen.report.runs[0].started_at
    # On a busy machine, a run may take longer than expected; later pauses compensate for this.
    assert 0 < (seen.value("infercanary_busy_seconds_total") or 0) / elapsed <= 0.2 * 1.5
    assert (seen.value("infercanary_interval_seconds") or 0) >= 0.5
    assert seen.value("infercanary_duty_cap_ratio") == 0.2
