"""Profiles on a real GPU: kernels by device time, compared with torch's own table. ``make gpu`` tests changed
kernels.
"""

import os
import shutil
import statistics
import subprocess
import sys

import pytest

from infercanary.contract.profile import is_sound
from infercanary.judge.operators import old_names
from tests.gpu.targets import opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("torch_cuda")


def convolutions(mode="eager"):
    layers = [torch.nn.Conv2d(3, 64, 7), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU()]
    return opened(torch.nn.Sequential(*layers).cuda().eval(), (8, 3, 224, 224), runs=1, mode=mode)


def profiled(target):
    profile = target.profile(5)
    if profile.state == "no_cupti":
        pytest.skip("CUPTI is not permitted here: no kernel was timed")
    assert is_sound(profile)
    return profile


def test_kernels_take_what_torchs_own_table_says():
    target = convolutions()
    timed = [row for row in profiled(target).rows if row.kind == "aten::conv2d"]
    ours = sum(statistics.median(row.seconds) for row in timed)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as table:
        for _ in range(5):
            target.clock.measure(target.run)
    [conv] = [row for row in table.key_averages() if row.key == "aten::conv2d"]
    theirs = conv.device_time_total / 1e6 / 5 / getattr(target.clock, "batch", 1)
    assert ours == pytest.approx(theirs, rel=0.1)
    assert all(row.device.startswith("cuda") for row in timed)


def test_eager_in_place_of_a_graph_has_the_same_kernels_by_their_operators():
    graph, eager = profiled(convolutions("graph")), profiled(convolutions())
    on_device = [[row for row in p.rows if row.device.startswith("cuda")] for p in (graph, eager)]
    calls = [sum(row.calls for row in rows) for rows in on_device]
    seconds = [sum(statistics.median(row.seconds) for row in rows) for rows in on_device]
    assert calls[0] == pytest.approx(calls[1], abs=1)
    assert calls[0] >= 4
    assert seconds[0] == pytest.approx(seconds[1], rel=0.2)
    assert "aten::conv2d" in old_names(graph, eager)


REFUSING = """
#define REFUSED 35 /* CUPTI_ERROR_INSUFFICIENT_PRIVILEGES */
int cuptiActivityEnable(int kind) { return REFUSED; }
int cuptiActivityRegisterCallbacks(void *requested, void *completed) { return REFUSED; }
int cuptiSubscribe(void **subscriber, void *callback, void *data) { return REFUSED; }
"""


def test_where_cupti_refuses_operators_are_shown_and_the_state_says_so(tmp_path):
    """The CUPTI library's own functions refuse, like a driver that lets only administrators profile."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the library that refuses CUPTI")
    (tmp_path / "refusing.c").write_text(REFUSING)
    library = tmp_path / "refusing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "refusing.c"], check=True)
    script = (
        "import torch\nfrom infercanary.probe import TorchTarget\n"
        "target = TorchTarget(torch.nn.Linear(256, 256).cuda(), [{'shape': [8, 256]}], device='cuda')\n"
        "target.open()\nprofile = target.profile(3)\n"
        "print(profile.state, *{row.device for row in profile.rows}, profile.rows[0].kind)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["no_cupti", "cpu", "aten::linear"]
