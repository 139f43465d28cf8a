"""`make gpu`: held, refuted and undecided claims; a run resumes after a kill, and ends with success without a GPU."""

import json
import math
import os
import re
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from gpu_claims import __main__ as runner
from gpu_claims import state as states
from gpu_claims.changes import CHANGES, Seen
from gpu_claims.claim import Measured, from_json, interval, paired_ratio, quantile, row, share
from gpu_claims.step import steps
from tests.programs import ROOT
from tests.scenarios import cases


@cases(
    [
        (0.99, 1.004, "held"),
        (1.006, 1.02, "refuted"),
        (1.0, 1.02, "not shown"),
        (-math.inf, math.inf, "not shown"),
    ],
)
def test_a_claim_is_held_only_by_its_whole_interval(low, high, verdict):
    found = Measured("p50", "≤ 1.005", 1.002, low, high, most=1.005)
    assert found.verdict == verdict
    assert found._replace(decided=False).verdict == "not shown", "a CPU or a stand-in decides no claim"
    assert from_json(json.loads(json.dumps(found.as_json()))) == found
    assert f"| {verdict} | tenant |" in row(found, "tenant")


def test_intervals():
    assert interval([1.0]) == (1.0, -math.inf, math.inf)
    middle, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert middle == 3.0
    assert high - 3.0 == pytest.approx(2.78 * math.sqrt(2.5 / 5)) == pytest.approx(3.0 - low)
    assert share(0, 10)[0] == 0
    assert share(0, 10)[2] == pytest.approx(0.278, abs=0.001)
    assert math.isnan(share(0, 0)[0])


def test_a_ratio_of_pairs_knows_a_slower_side():
    pairs = [([1.1 + i / 1e3, 1.1], [1.0 + i / 1e3, 1.0]) for i in range(20)]
    value, low, high = paired_ratio(pairs, lambda values: quantile(values, 50))
    assert 1.08 < low <= value <= high < 1.12
    same = [(b, a) if i % 2 else (a, b) for i, (a, b) in enumerate(pairs)]
    _, low, high = paired_ratio(same, lambda values: quantile(values, 50))
    assert low <= 1 <= high


def test_a_state_is_whole_or_refused(tmp_path):
    path = tmp_path / "gpu.json"
    assert states.read(path) == {"version": 1, "devices": {}}
    states.write(path, {"version": 1, "devices": {"h100": {"steps": {}}}})
    assert states.read(path)["devices"] == {"h100": {"steps": {}}}
    path.write_text('{"version": 2}')
    with pytest.raises(SystemExit, match=r"no state of `make gpu` .*STATE=gpu.json"):
        states.read(path)


def test_a_change_without_its_cause_is_not_named():
    nothing = Seen("regressed", 0.5, {"launch": 0.0, "compute": 0.0}, {}, 1.0, 0.0)
    assert [change.name for change in CHANGES if change.is_named(nothing)] == []


def started(state, *options):
    command = [
        sys.executable,
        "-m",
        "gpu_claims",
        "--state",
        str(state),
        "--device",
        "cpu",
        "--scale",
        "0.05",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": "probe:exporter:benchmarks", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    state = tmp_path / "gpu.json"
    claim = Measured("eager: the wall time is that of a plain call", "", 1.0, 0.99, 1.01, decided=False)

    def killed(each, *_):
        if done:
            raise KeyboardInterrupt
        done.append(each)
        return {"outcome": "done", "claims": [claim.as_json()]}

    def performed(each, *_):
        done.append(each)
        return {"outcome": "not run", "why": "of this test"}

    done = []
    monkeypatch.setattr(sys, "argv", ["gpu_claims", "--state", str(state), "--device", "cpu"])
    monkeypatch.setattr(runner, "launched", killed)
    with pytest.raises(KeyboardInterrupt):
        runner.main()
    kept = states.read(state)["devices"]["cpu"]["steps"]
    assert [*kept] == [first := next(iter(steps()))]
    done.clear()
    monkeypatch.setattr(runner, "launched", performed)
    assert runner.main() == 0
    now = states.read(state)["devices"]["cpu"]["steps"]
    assert now[first] == kept[first]
    assert now.keys() == steps().keys()
    assert first not in [getattr(each, "name", "") for each in done]
    page = (tmp_path / "gpu-cpu.md").read_text()
    assert "no claim about GPUs is decided" in page
    assert "| tenant | not run: of this test |" in page
    assert re.search(rf"\| eager: the wall time .* \| not shown \| {first} \|", page)


def test_a_step_that_hangs_is_ended_at_its_limit(tmp_path):
    with started(tmp_path / "gpu.json", "--step", "timing-eager", "--limit", "0.2") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "timing-eager: failed it took more than 0.2 s" in output.replace("  ", " ")


_STEP = """
import subprocess, sys, time
load = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(load.pid, flush=True)
time.sleep(600)
"""
_RUN = f"""
import sys
from gpu_claims.step import group
with group([sys.executable, "-c", {_STEP!r}]) as process:
    print(process.stdout.readline(), end="", flush=True)
    sys.stdin.read()
"""


@cases([True, False])
def test_a_load_ends_with_the_run_however_that_ends(is_killed):
    with subprocess.Popen(
        [sys.executable, "-c", _RUN], cwd=ROOT / "benchmarks", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        load = psutil.Process(int(run.stdout.readline()))
        if is_killed:
            run.kill()
        run.communicate()
    deadline = time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        while load.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_without_a_gpu_it_ends_well_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "why_not", lambda: "no libcuda.so.1 here")
    monkeypatch.setattr(runner, "launched", lambda *_: {"outcome": "done", "claims": []})
    monkeypatch.setattr(sys, "argv", ["gpu_claims", "--state", str(tmp_path / "gpu.json")])
    assert runner.main() == 0
    shown = capsys.readouterr().out
    assert "tenant: not run no CUDA device: no libcuda.so.1 here" in shown
    assert "nvml-lost: done" in shown
    assert "| tenant | not run: no CUDA device" in (tmp_path / "gpu-none.md").read_text()
