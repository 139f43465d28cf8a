"""A/B experiments without Docker: real probes as processes of this host, hostile answers, and the reaper."""

import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest
import yaml

from infercanary.ab.answer import ExperimentJudge
from infercanary.ab.document import STEPS
from infercanary.ab.experiment import Experiment
from infercanary.ab.probe_settings import PACE
from infercanary.ab.process import Host
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import ArmSummary, Plan, StartFailed, TurnReader
from infercanary.command import cli as cli
from infercanary.command.interruption import Interrupted, Interruption
from infercanary.command.settings import UsageError
from infercanary.contract.measures import HOST_MEMORY, throughput_of
from tests.programs import ROOT
from tests.scenarios import cases

pytestmark = pytest.mark.takes(40)

FAST = {**PACE, "INFERCANARY_INTERVAL_SECONDS": "0.1"}  # shorter than the half second of an experiment
SETTINGS = {"canaries": {"work": {"target": "work:Work"}}}
WORK = ROOT / "tests/stack/alone/ab"


@pytest.fixture
def reaper():
    with Reaper() as made:
        yield made


@pytest.fixture
def host(reaper, monkeypatch):
    """Return a function that makes a side: a probe on this host with these variables."""
    monkeypatch.chdir(WORK)

    def host(**variables):
        return Host(side(SETTINGS, **variables), reaper)

    return host


def side(settings, **variables):
    return Side(python=sys.executable, probe=settings, variables={**FAST, **variables})


def take(arm, interruption=None, seconds=60):
    deadline = time.monotonic() + 100
    return TurnReader(arm, Plan(1, 8, 100, seconds), deadline, interruption or Interruption()).take()


def experiment(a, b, restarts):
    plan, judge = Plan(restarts, 8, 300, 60), ExperimentJudge(restarts)
    return Experiment({"A": a, "B": b}, plan, judge.decisions, Interruption())


def test_a_slower_side_is_reported_without_docker_and_nothing_runs_on(tmp_path, monkeypatch, capsys):
    """A file describes the experiment. The new side does four times the work, so other load cannot hide the change."""
    before = {
        *psutil.Process().children(recursive=True)
    }  # processes of fixtures that this test process shares
    config, path = tmp_path / "probe.yaml", tmp_path / "experiment.yaml"
    config.write_text(yaml.safe_dump(SETTINGS))
    both = {"python": sys.executable, "config": str(config), "env": FAST}
    work = {side: {"env": {"WORK_BYTES": size}} for side, size in (("a", "4e6"), ("b", "16e6"))}
    path.write_text(yaml.safe_dump({"both": both, **work}))
    monkeypatch.chdir(WORK)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    options = ("--restarts", "6", "--runs", "8", "--json")
    monkeypatch.setattr(sys, "argv", ["infercanary", "ab", "--experiment", str(path), *options])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 1, err
    result = json.loads(out)
    assert result["ended"] == "clear"
    # On a quiet machine two pairs are enough.
    assert len(result["pairs"]) >= 2
    assert "".join(re.findall(r"start \d+ of up to \d+: ([AB])\b", err)).startswith("ABBA")
    assert result["verdict"] == "regressed"
    assert result["shift"] > 0.5
    assert result["a"]["name"] == f"host ({sys.executable})"
    assert result["a"]["cold_start"].keys() == {*STEPS} - {"pull"}
    assert [result[side]["settings"] for side in "ab"] == [
        {"env.WORK_BYTES": "4e6"},
        {"env.WORK_BYTES": "16e6"},
    ]
    assert "; B: WORK_BYTES=16e6" in result["sentence"]
    assert "work_bytes" in {change["component"] for change in result["causes"]["changes"]}
    left = {*psutil.Process().children(recursive=True)} - before
    assert all("reaper" in " ".join(child.cmdline()) for child in left), left
    assert "start 1 of up to 12: A\n" in err


def test_a_start_waits_for_its_sweep(reaper, monkeypatch):
    monkeypatch.chdir(WORK)
    settings = {"canaries": {"work": {"target": "work:Batched", "sweep": {"batches": [1, 8], "seconds": 1}}}}
    turn = take(Host(side(settings, WORK_BYTES="1e5"), reaper))
    values = [run.measures for run in turn.starts["work"].samples]
    # The second run uses the memory of the controls.
    assert [HOST_MEMORY in measures for measures in values[:2]] == [False, True]
    for batch in (1, 8):
        assert any(throughput_of(batch, 1) in measures for measures in values), values


def test_a_side_that_dies_ends_it_in_one_line(host):
    with pytest.raises(UsageError) as error:
        experiment(host(), host(WORK_FAILS="exit"), restarts=3).run()
    why = "the probe ended with exit code 7: no licence for this host"
    assert str(error.value) == f"B, host ({sys.executable}): failed to start twice in a row: {why}"


def test_settings_that_are_wrong_are_reported(host, reaper):
    wrong = Host(side({"canaries": {"work": {"target": "work:Play"}}}), reaper)
    with pytest.raises(
        StartFailed,
        match=r"exit code 2: infercanary: /dev/stdin: canaries\.work\.target: module `work` .* has no `Play`",
    ):
        take(wrong)


def test_an_interruption_ends_what_runs(host):
    before = {*psutil.Process().children()}
    interruption = Interruption()
    with interruption.handled():
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Interrupted):
            take(host(WORK_LOADS_SECONDS="60"), interruption)
    assert interruption.number == signal.SIGTERM
    assert not [c for c in {*psutil.Process().children()} - before if "infercanary" in c.cmdline()]


class Served:
    summary = ArmSummary(name="served")

    def __init__(self, url):
        self.urls = [url]
        self.ends = 0

    def start(self):
        return self.urls

    def ended(self):
        return ""

    def last_words(self):
        return "\x1b[2Jhello"

    def end(self):
        self.ends += 1


@cases(
    [
        (b"x" * (5 << 20), "too large"),
        (b"{" * 100_000, "malformed"),
        (b'{"schema_version": 99}', "schema"),
        (b"", "malformed"),
    ],
    ids=["huge", "nested", "newer", "empty"],
)
def test_an_invalid_report_is_refused_within_the_time_limit(body, why):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        side = Served(f"http://127.0.0.1:{server.server_address[1]}")
        begin = time.monotonic()
        with pytest.raises(StartFailed, match=rf"no report \({why}: .*\?\[2Jhello"):
            take(side, seconds=1)
        server.shutdown()
    assert side.ends == 1
    assert time.monotonic() - begin < 20


def test_the_reaper_ends_processes_of_an_experiment_that_was_killed():
    code = """
    import subprocess, sys, time
    from infercanary.ab.reaper import Reaper
    with Reaper() as reaper:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        reaper.send(f"watch {child.pid}")
        print(child.pid, reaper._child.pid, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    child, watcher = map(psutil.Process, map(int, parent.stdout.readline().split()))
    try:
        parent.kill()
        parent.communicate(timeout=10)
        psutil.wait_procs([child], timeout=20)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            watcher.kill()
