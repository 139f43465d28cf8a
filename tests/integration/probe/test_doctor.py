"""The doctor in separate processes: on this machine, and with stand-ins for NVML, CUDA and CUPTI."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_stand_in import build, build_cupti, build_nvml, needs_cc
from fresh import printed

from infercanary.doctor.ability import Machine, checks
from infercanary.doctor.asking import ask

pytestmark = [needs_cc, pytest.mark.takes(8)]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return build_nvml(build_cupti(build(tmp_path_factory.mktemp("libraries"))))


@pytest.fixture
def gpu(libraries, tmp_path, monkeypatch):
    """Build stand-ins with two idle GPUs; a test may add lines to their script."""
    script = tmp_path / "nvml.script"
    script.write_text("gpus * 1\nprocesses 0 0\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("FAKE_NVML", str(script))
    return script


def asked(*sections, seconds=None):
    table = [each for each in checks() if each.section in sections]
    if seconds is not None:
        table = [each._replace(seconds=seconds) for each in table]
    return {each.name: each for each in ask(table, Machine())}


GPU_SECTIONS = ("driver", "NVML", "GPU", "CUDA", "CUPTI")


def test_without_a_gpu_each_of_its_sections_says_so_in_one_line():
    command = [sys.executable, "-m", "infercanary", "doctor", "--json"]
    sections = [f"--only={section}" for section in ("host", "container", *GPU_SECTIONS)]
    done = subprocess.run([*command, *sections], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)["checks"]
    states = [(check["section"], check["state"]) for check in found if check["section"] in GPU_SECTIONS]
    if states[0] != ("driver", "absent"):
        pytest.skip("this machine has a GPU: see tests/gpu")
    assert states == [(section, "absent") for section in GPU_SECTIONS]
    shown = {check["name"]: check["found"] for check in found}
    assert "ns" in shown["clock source"]
    assert "CPUs are allowed" in shown["cores"]
    assert "the check failed" not in done.stdout


def test_it_works_where_nothing_but_the_probe_is_installed():
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'onnxruntime', 'tensorrt', 'aiohttp', 'scipy'): sys.modules[name] = None\n"
        "sys.argv = ['infercanary', 'doctor', '--help']\n"
        "import infercanary.doctor.ability as a\n"
        "print(len(a.checks()), 'checks')\n"
        "from infercanary.command.cli import main\nmain()\n"
    )
    said = printed(code)
    assert "checks" in said and "--json" in said


own = pytest.mark.skipif(
    Path("/proc/driver/nvidia").exists(),
    reason="this machine has a GPU, whose driver would answer too: see tests/gpu",
)


@own
def test_a_healthy_gpu_is_ok_in_every_line(gpu):
    found = asked(*GPU_SECTIONS)
    wrong = {name: each for name, each in found.items() if each.state != "OK"}
    # The stand-ins lack device files, a kernel module, MIG devices and other processes.
    assert wrong.keys() <= {"device files"}, wrong
    assert "all of 5 kernels" in found["times of kernels"].found
    assert "a pair of events without work takes" in found["events"].found
    assert found["graph capture"].found.startswith("a captured kernel wrote correct results")
    assert found["stream priority"].found == "3 (the probe's, the lowest) to -5"


TROUBLES = """
nvmlDeviceGetUtilizationRates | limited | GPU 1: Not Supported
nvmlDeviceGetTotalEnergyConsumption | refused | lost its device files
persistence mode | limited | off on GPU 1
MIG | limited | devices 1:0, 1:2
MPS and compute mode | limited | compute mode exclusive, without MPS
graph capture | refused |
times of kernels | refused | CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)
times of kernels | refused | SYS_ADMIN
"""


@own
def test_each_trouble_has_its_line(gpu, monkeypatch):
    with gpu.open("a") as script:
        script.write(
            "gpus * 2\nnvmlDeviceGetUtilizationRates 1 3\nnvmlDeviceGetTotalEnergyConsumption * 4\npersistence 1 0\n"
            "mig 1 1\nmig_devices 1 5\ncompute_mode 0 3\nrestricted * 1\nprocesses 0 2\nmps_processes 1 1\n"
        )
    monkeypatch.setenv("FAKE_CUDA", "version 11040\ncuStreamEndCapture 1 900")
    monkeypatch.setenv("FAKE_CUPTI", "35")
    found = asked(*GPU_SECTIONS)
    for line in TROUBLES.strip().splitlines():
        name, state, words = f"{line} ".split(" | ")
        check = found[name]
        assert check.state == state and words.strip() in check.found + check.why + check.fix, check
    tenants = found["tenants now"].found
    assert tenants.startswith("3: GPU 0: PID ")
    assert tenants.count("GPU 1: PID ") == 1


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        ("nvmlInit * 999", "refused", "lost its device files"),
        ("nvmlInit * 18", "refused", "upgraded while the container ran"),
        ("nvmlInit * 9", "absent", "no NVIDIA driver"),
        ("gpus * 0", "refused", "shows no GPU"),
    ],
)
def test_nvml_that_does_not_start_says_why_and_leaves_the_rest_out(gpu, line, state, words):
    gpu.write_text(line)
    found = asked("NVML", "GPU")
    assert found.keys() == {"nvmlInit", "GPUs"}
    assert all(each.state == state and words in each.why for each in found.values())


def test_a_hanging_driver_does_not_hang_it(gpu, monkeypatch):
    with gpu.open("a") as script:
        script.write("nvmlDeviceGetName * -1\nnvmlDeviceGetClockInfo * -1\n")
    found = [*asked("NVML", seconds=2).values()]
    first, second = (number for number, check in enumerate(found) if "no answer within 2 s" in check.why)
    assert (found[first].state, found[first].seconds) == ("refused", None)
    assert {check.state for check in found[:first]} == {"OK"}
    assert found[second + 1 :]
    assert all(check.why.startswith("skipped: 2 checks") for check in found[second + 1 :])
    monkeypatch.setenv("FAKE_CUDA", "cuDevicePrimaryCtxRetain 1 -1")
    cuda = asked("CUDA", seconds=2)
    assert cuda.keys() == {"context"}
    assert "no answer" in cuda["context"].why


def test_a_full_gpu_is_left_alone(gpu):
    with gpu.open("a") as script:
        script.write(f"bus * 65\nmemory_size * {80 << 30}\nmemory_used * {(80 << 30) - (300 << 20)}\n")
    found = asked("CUDA", "CUPTI")
    assert "not tried: a context takes up to 768 MiB" in found["context"].why
    assert found.keys() == {"context", "times of kernels"}
    assert "not tried" in found["times of kernels"].why


@own
def test_a_crash_of_a_library_is_named_by_its_signal(gpu, monkeypatch):
    (gpu.parent / "sitecustomize.py").write_text(
        "import os, pynvml, signal\n"
        "pynvml.nvmlDeviceGetName = lambda handle: os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(gpu.parent))
    found = asked("NVML")
    assert "the process of the check ended (SIGSEGV)" in found["nvmlDeviceGetName"].why
    assert found["nvmlDeviceGetUUID"].state == "OK", "the check runs in another process"
