"""The NVML sampler with the real pynvml, over a library compiled here that says what a test tells it to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import MODULES

SOURCE = Path(__file__).parents[2] / "fake_nvml" / "nvml.c"
CC = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")

pytestmark = pytest.mark.skipif(
    CC is None, reason="the stand-in for NVML needs a C compiler: apt-get install gcc"
)

UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LOST, MISMATCH, UNKNOWN = (
    1,
    3,
    4,
    9,
    15,
    18,
    999,
)
HANG = -1

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def build(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        command = [CC, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags, str(SOURCE)]
        subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
        return folder

    return build


@pytest.fixture(scope="module")
def usual(library: Callable[..., Path]) -> Path:
    return library()


def session(folder: Path, script: Path) -> Iterator[Ask]:
    """Each call takes one sample, with these lines as the library's script, in a process that goes on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nvml_session", str(script)],
        cwd=MODULES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(script)},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(*lines: str) -> dict[str, Any]:
        stdin.write(json.dumps(lines) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    try:
        yield ask
    finally:
        stdin.close()
        process.kill()  # a call that hangs in C would hold up the interpreter's end
        process.wait()
        stdout.close()


@pytest.fixture
def ask(usual: Path, tmp_path: Path) -> Iterator[Ask]:
    yield from session(usual, tmp_path / "script")


def test_values_in_base_units(ask: Ask) -> None:
    found = ask()
    assert (found["success"], found["said"]) == (1, [])
    families = found["families"]
    reasons = families.pop("infercanary_gpu_clock_event_active")
    assert families == {
        "infercanary_gpu_devices": {"": 2},
        "infercanary_gpu_up": {"0": 1, "1": 1},
        "infercanary_gpu_info": {
            "0/NVIDIA Fake A/GPU-00000000/570.86.15": 1,
            "1/NVIDIA Fake B/GPU-00000001/570.86.15": 1,
        },
        "infercanary_gpu_sm_clock_hertz": {"0": 1.410e9, "1": 1.411e9},
        "infercanary_gpu_sm_clock_max_hertz": {"0": 1.98e9, "1": 1.98e9},
        "infercanary_gpu_memory_clock_hertz": {"0": 2.619e9, "1": 2.620e9},
        "infercanary_gpu_temperature_celsius": {"0": 41, "1": 42},
        "infercanary_gpu_energy_joules_total": {"0": 123456.789, "1": 123456.789},
        "infercanary_gpu_utilization_ratio": {"0": 0.25, "1": 0.25},
        "infercanary_gpu_memory_used_bytes": {"0": 3 << 30, "1": 3 << 30},
    }
    assert {key for key, value in reasons.items() if value} == {
        "0/sw_power_cap", "0/hw_thermal", "1/sw_power_cap", "1/hw_thermal",
    }  # fmt: skip
    assert set(reasons.values()) == {0, 1}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_what_one_gpu_does_not_offer_is_missing_for_it_alone(ask: Ask, code: int) -> None:
    found = ask(
        f"nvmlDeviceGetTemperature 1 {code}",
        f"nvmlDeviceGetUtilizationRates * {code}",
        f"nvmlDeviceGetCurrentClocksEventReasons 0 {code}",
    )
    assert (found["success"], found["said"]) == (1, [])
    families = found["families"]
    assert families["infercanary_gpu_temperature_celsius"] == {"0": 41}
    assert "infercanary_gpu_utilization_ratio" not in families
    assert {key[0] for key in families["infercanary_gpu_clock_event_active"]} == {"1"}
    assert families["infercanary_gpu_up"] == {"0": 1, "1": 1}


def test_a_lost_gpu_is_a_metric_and_the_other_goes_on(ask: Ask) -> None:
    ask()
    lost = ask(f"nvmlDeviceGetHandleByIndex 1 {LOST}")
    assert lost["success"] == 1
    assert lost["said"] == ["WARNING sampler nvml: GPU 1: GPU is lost"]
    assert lost["families"]["infercanary_gpu_up"] == {"0": 1, "1": 0}
    assert lost["families"]["infercanary_gpu_temperature_celsius"] == {"0": 41}
    assert lost["families"]["infercanary_gpu_devices"] == {"": 2}
    still = ask(f"nvmlDeviceGetClockInfo 1 {LOST}")
    assert still["said"] == [], "said once, not at each sample"
    assert still["families"]["infercanary_gpu_up"] == {"0": 1, "1": 0}
    assert "1" not in still["families"]["infercanary_gpu_temperature_celsius"], "half of a lost GPU is stale"
    back = ask()
    assert back["said"] == ["WARNING sampler nvml: GPU 1: answers again"]
    assert back["families"]["infercanary_gpu_up"] == {"0": 1, "1": 1}


def test_when_all_are_lost_the_sample_fails_and_recovers(ask: Ask) -> None:
    ask()
    lost = ask(f"nvmlDeviceGetHandleByIndex * {LOST}")
    assert (lost["success"], lost["families"]) == (0, {})
    assert lost["said"] == ["WARNING sampler nvml: NVMLError_GpuIsLost: GPU is lost"]
    # Shutting down a lost GPU's driver fails too, and must not hide why.
    assert ask(f"nvmlDeviceGetHandleByIndex * {LOST}", f"nvmlShutdown * {UNKNOWN}")["success"] == 0
    assert ask()["success"] == 1


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_driver_is_said_quietly_once(ask: Ask, function: str) -> None:
    found = ask(f"{function} * {DRIVER_NOT_LOADED}")
    assert (found["success"], found["families"]) == (0, {})
    assert found["said"] == ["INFO sampler nvml: no NVIDIA driver here (Driver Not Loaded)"]
    assert ask(f"{function} * {DRIVER_NOT_LOADED}")["said"] == []
    loaded = ask()
    assert (loaded["success"], loaded["said"]) == (1, ["INFO sampler nvml: works again"])


@pytest.mark.parametrize(
    ("code", "name"), [(NO_PERMISSION, "NoPermission"), (MISMATCH, "LibRmVersionMismatch")]
)
def test_a_driver_that_refuses_is_a_warning(ask: Ask, code: int, name: str) -> None:
    found = ask(f"nvmlInit * {code}")
    assert (found["success"], found["families"]) == (0, {})
    (said,) = found["said"]
    assert said.startswith(f"WARNING sampler nvml: NVMLError_{name}: ")


def test_a_driver_that_was_reloaded(ask: Ask) -> None:
    ask()
    assert ask(f"nvmlDeviceGetCount * {UNINITIALIZED}")["success"] == 0
    assert ask()["success"] == 1


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetMemoryInfo"])
def test_a_call_that_hangs_does_not_hang_the_probe(ask: Ask, function: str) -> None:
    found = ask(f"{function} * {HANG}")
    assert (found["success"], found["families"]) == (0, {})
    assert 0.5 <= found["seconds"] < 20
    assert found["said"] == ["WARNING sampler nvml: hangs: no answer within 0.5 s"]
    for _ in range(3):
        again = ask(f"{function} * {HANG}")
        assert (again["success"], again["families"], again["said"]) == (0, {}, [])
        assert again["seconds"] == found["seconds"], "nothing was asked: the last sample's time stands"


def test_an_old_driver_knows_the_reasons_by_their_old_name(
    library: Callable[..., Path], tmp_path: Path
) -> None:
    for ask in session(library("-DOLD_DRIVER"), tmp_path / "script"):
        reasons = ask()["families"]["infercanary_gpu_clock_event_active"]
        assert {key for key, value in reasons.items() if value} == {"0/idle", "1/idle"}


def test_no_library_at_all(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for ask in session(empty, tmp_path / "script"):
        found = ask()
        if found["success"]:
            pytest.skip("this machine has an NVIDIA driver")
        assert found["said"] == ["INFO sampler nvml: no NVIDIA driver here (NVML Shared Library Not Found)"]
