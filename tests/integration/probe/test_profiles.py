"""Profiles of real engines, whose parts add up to the whole; also the command `infercanary profile`."""

import json
import re
import statistics
import sys
from pathlib import Path

import pytest
from probe_process import ProbeProcess, run_probe

from infercanary.contract.profile import is_sound
from infercanary.probe import TorchTarget
from infercanary.probe.journal import read
from infercanary.probe.measures import resident
from infercanary.probe.memory import give_back
from infercanary.probe.targets.onnx import OnnxTarget

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[3] / "examples" / "resnet18"
MOST_OFF = 0.02
"""Largest accepted difference of operators plus `outside` from the wall time, as a share."""
LEAST_IN_OPERATORS = 0.85
"""Smallest accepted share of operators in the wall time of ResNet-18."""


def resnet18():
    sys.path.insert(0, str(EXAMPLE))
    try:
        from model import build
    finally:
        sys.path.remove(str(EXAMPLE))
    return build()


def check(profile):
    """Check that the parts of a repeat add up to its wall time, and that operators take most of it."""
    assert is_sound(profile)
    assert profile.state == "ok"
    assert profile.repeats == 5
    whole, operators = [], []
    for repeat, wall in enumerate(profile.wall):
        seconds = sum(row.seconds[repeat] for row in profile.rows) + profile.rest[repeat]
        whole.append((seconds + profile.outside[repeat]) / wall)
        operators.append(seconds / wall)
    assert abs(statistics.median(whole) - 1) <= MOST_OFF, whole
    assert statistics.median(operators) >= LEAST_IN_OPERATORS, operators


def test_torchs_parts_are_the_whole_and_its_trace_is_one_for_perfetto(tmp_path):
    target = TorchTarget(resnet18(), [{"shape": [1, 3, 224, 224]}])
    target.open()
    target.clock.measure(target.run)
    profile = target.profile(5, tmp_path / "trace.json")
    check(profile)
    assert profile.rows[0].kind == "aten::conv2d"
    assert "float" in profile.rows[0].shapes
    assert sum(row.calls for row in profile.rows if row.kind == "aten::conv2d") == 20
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(
        event.get("name") == "aten::conv2d" and event["dur"] > 0 for event in events if event.get("ph") == "X"
    )


def test_onnx_runtimes_parts_are_the_whole_and_the_timed_session_stays_as_it_was(tmp_path):
    pytest.importorskip("onnxruntime")
    from onnx_profiler import resnet18 as exported

    target = OnnxTarget(str(exported(tmp_path)))
    target.open()
    target.clock.measure(target.run)
    session = target.session
    profile = target.profile(5, tmp_path / "trace.json")
    check(profile)
    assert target.session is session
    assert (profile.engine, profile.rows[0].kind, profile.rows[0].device) == ("onnxruntime", "Conv", "cpu")
    assert any(event["name"] == "model_run" for event in json.loads((tmp_path / "trace.json").read_text()))
    target.clock.measure(target.run)
    target.close()


@pytest.mark.parametrize("profiles", [150, pytest.param(1000, marks=pytest.mark.campaign)])
def test_no_memory_stays_with_each_profile(profiles):
    """Profilers often leak memory. A leak of 20 KiB for each profile fails the test; a canary has 24 profiles a day."""
    target = TorchTarget(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), [{"shape": [1, 64]}])
    target.open()
    taken = []
    for number in (profiles // 10, profiles - profiles // 10):
        for _ in range(number):
            target.profile(1)
        give_back()
        taken.append(resident() / 2**20)
    assert taken[1] - taken[0] < 0.02 * 0.9 * profiles, taken


TINY = """
import torch
torch.set_num_threads(64)

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)

    def forward(self, x):
        return torch.relu(self.layer(x))

def model():
    return Tiny()
"""


CANARIES = "{tiny: {target: torch, options: {model: 'tiny:model', inputs: [{shape: [64, 256]}]}}}"


def profile_command(folder, *arguments):
    (folder / "tiny.py").write_text(TINY)
    return run_probe(folder, CANARIES, *arguments, modules=folder)


def test_the_command_prints_a_table_and_writes_the_trace(tmp_path):
    code, out, _ = profile_command(tmp_path, "--profile", "--trace", "trace.json")
    assert code == 0
    assert out.startswith("canary tiny: 5 repeats profiled by torch, ")
    assert re.search(r"^ *aten::linear +aten::addmm ", out, re.MULTILINE), out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_once_has_the_largest_operators(tmp_path):
    code, out, said = profile_command(tmp_path, "--once")
    assert code == 0, said
    line = " ".join(out.partition("\n  operators ")[2].partition("\n  throughput ")[0].split())
    assert "aten::linear " in line
    assert "outside operators " in line
    shares = [float(share) for share in re.findall(r"([\d.]+) %", line)]
    assert len(shares) >= 2
    assert sum(shares) <= 101
    assert "External init callback" not in said, "torch's profiler warns about the thread"
    seconds = r"[\d.]+ [µm]?s"
    for pattern in (
        r"InferCanary: one run, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n\ncanary tiny: (steady|warming)\n\n",
        rf"  latency +median {seconds}, min {seconds}, IQR {seconds}, \d+\s+repeats\n  phases +compute {seconds}",
        rf"  cpu_spin\S* +cpu +{seconds}$",
        rf"  torch +{re.escape(torch.__version__)}\n  CUDA ",
        r"  intra-op threads +64$",
    ):
        assert re.search(f"^{pattern}", out, re.MULTILINE), out
    assert max(map(len, out.splitlines())) <= 80


def test_a_probe_beside_a_server_profiles_by_itself_and_its_journal_has_it(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    journal = tmp_path / "journal"

    def profiles():
        runs = [entry.run for entry in read(journal) if entry.run is not None]
        return [run.profile for run in runs if run.profile is not None]

    with ProbeProcess(tmp_path, CANARIES, f"journal: {journal}", modules=tmp_path) as probe:
        seen = probe.until(lambda _: profiles(), "no profile in the journal")
        assert probe.end() == 0
    [profile] = profiles()
    assert is_sound(profile)
    assert {row.kind for row in profile.rows} >= {"aten::linear", "aten::relu"}
    assert [run.profile for run in seen.report.runs if run.profile is not None] in ([], [profile])


def test_a_mistake_is_one_line(tmp_path):
    code, out, err = profile_command(tmp_path, "--trace", "none/trace.json")
    assert (code, out) == (2, "")
    assert "--trace: no folder `none`; create the folder" in err
    assert err.count("\n") == 1
