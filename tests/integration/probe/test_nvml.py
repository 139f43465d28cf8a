"""The NVML sampler with the real pynvml, over a library compiled here that says what a test's script says.

The golden files hold what two scripted machines show. After a change that is meant:

    UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/integration/probe/test_nvml.py -k golden; git diff tests/golden
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cuda_stand_in import build
from forked import forks_of, library_path
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from real_servers import free_port
from watching import MODULES, Seen, fetch, until

from infercanary.contract.report import Family

FAKE = Path(__file__).parents[2] / "fake_nvml"
GOLDEN = Path(__file__).parents[2] / "golden"
CC = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")

pytestmark = [
    pytest.mark.takes(60),
    pytest.mark.skipif(CC is None, reason="the stand-in for NVML needs a C compiler: apt-get install gcc"),
]

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 1, 2, 3, 4, 9
LOST, RESET_REQUIRED, MISMATCH, DEPRECATED, UNKNOWN = 15, 16, 18, 26, 999
HANG = -1

STATE = "infercanary_nvml_state"
XIDS = "infercanary_gpu_xid_errors_total"
EVENTS = "infercanary_gpu_xid_events_total"
EVENT_SECONDS = "infercanary_gpu_clock_event_seconds_total"
PCIE_BYTES = "infercanary_gpu_pcie_bytes_total"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def build(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        assert CC is not None
        command = [CC, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags, str(FAKE / "nvml.c")]
        subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
        return folder

    return build


@pytest.fixture(scope="module")
def usual(library: Callable[..., Path]) -> Path:
    return library()


Session = Callable[[Path, Path], Iterator[Ask]]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Each call takes one sample, with these lines as the library's script, in a process that goes on."""
    needed = ("infercanary.probe.samplers.nvml", "infercanary.probe.sampling", "logging")
    with forks_of(*needed, environment=library_path) as forks:

        def begin(folder: Path, script: Path) -> Iterator[Ask]:
            code = "import runpy; runpy.run_module('nvml_session', run_name='__main__')"
            process = forks(folder).begin(
                code, str(script), str(script.parent / "sys"), FAKE_NVML=str(script)
            )

            def ask(*lines: str, **more: Any) -> dict[str, Any]:
                process.ask({"lines": lines, **more})
                answer: dict[str, Any] = json.loads(process.file.readline())
                return answer

            try:
                yield ask
            finally:
                process.kill()  # a call that hangs in C would hold up the interpreter's end

        yield begin


@pytest.fixture
def ask(usual: Path, tmp_path: Path, session: Session) -> Iterator[Ask]:
    yield from session(usual, tmp_path / "script")


def now(found: dict[str, Any]) -> str:
    """The one state that NVML is in."""
    (state,) = (state for state, value in found["families"][STATE].items() if value)
    return str(state)


# Values ----------------------------------------------------------------------------------------------------


def exposition(whole: list[dict[str, Any]]) -> str:
    """What Prometheus would read."""
    registry = CollectorRegistry()

    class Sampled:
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            for each in msgspec.convert(whole, list[Family]):
                kind = CounterMetricFamily if each.kind == "counter" else GaugeMetricFamily
                family = kind(each.name.removesuffix("_total"), each.help, labels=each.labels)
                for point in each.points:
                    assert isinstance(point.value, float)
                    family.add_metric(point.labels, point.value)
                yield family

    registry.register(Sampled())
    return generate_latest(registry).decode()


@pytest.mark.parametrize("machine", ["idle", "loaded"])
def test_golden(ask: Ask, tmp_path: Path, machine: str) -> None:
    for index, node in enumerate((0, 1)):
        place = tmp_path / "sys" / "bus/pci/devices" / f"0000:{0x1B + index:02x}:00.0"
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    found = ask(*(FAKE / f"{machine}.script").read_text().splitlines())
    assert (found["success"], found["said"], now(found)) == (1, [], "ok")
    text = exposition(found["whole"])
    golden = GOLDEN / f"nvml_{machine}.metrics"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_what_hardly_changes_is_read_once_a_minute(ask: Ask) -> None:
    limit, ecc = "infercanary_gpu_power_limit_watts", "infercanary_gpu_ecc_errors_total"
    ask()
    changed = ("power_limit 0 350000", "ecc_corrected 1 5")
    early = ask(*changed)["families"]
    assert early[limit] == {"0": 700, "1": 700}
    late = ask(*changed, minutes=1)["families"]
    assert late[limit] == {"0": 350, "1": 700}
    assert late[ecc]["1/corrected"] == 5
    assert late[EVENTS] == {"0": 0, "1": 0}, "it listens to each GPU once"


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, DEPRECATED, INVALID_ARGUMENT, UNKNOWN])
def test_what_one_gpu_does_not_offer_is_missing_for_it_alone(ask: Ask, code: int) -> None:
    found = ask(
        f"nvmlDeviceGetTemperatureV 1 {code}",
        f"nvmlDeviceGetUtilizationRates * {code}",
        f"nvmlDeviceGetCurrPcieLinkWidth 0 {code}",
        f"nvmlDeviceGetVbiosVersion 0 {code}",
        f"nvmlDeviceGetFieldValues 1 {code}",
        f"nvmlDeviceGetCpuAffinity 1 {code}",
        f"nvmlEventSetCreate * {code}",
        "field.74 * 1000000",
    )
    assert (found["success"], found["said"], now(found)) == (1, [], "ok")
    families = found["families"]
    assert families["infercanary_gpu_temperature_celsius"]["0/gpu"] == 41
    assert "1/gpu" not in families["infercanary_gpu_temperature_celsius"]
    assert "infercanary_gpu_utilization_ratio" not in families
    assert families["infercanary_gpu_pcie_link_ratio"].keys() == {"1"}
    assert families["infercanary_gpu_up"] == {"0": 1, "1": 1}
    assert families[EVENT_SECONDS] == {"0/sw_power_cap": 0.001}
    assert found["local_cpus"] == {"0": [0, 1, 2, 3]}
    assert EVENTS not in families, "nobody listens: that is not the same as no error"


def test_what_is_all_ones_is_not_available(ask: Ask) -> None:
    """NVML_VALUE_NOT_AVAILABLE, as some drivers answer it."""
    found = ask(
        "link_lanes 0 4294967295", "energy 0 18446744073709551615", "field.74 0 18446744073709551615",
        "field.82 0 4294967295", "field.82 1 0",
    )["families"]  # fmt: skip
    assert found["infercanary_gpu_pcie_link_ratio"].keys() == {"1"}
    assert found["infercanary_gpu_energy_joules_total"] == {"1": 1.5}
    assert EVENT_SECONDS not in found
    assert found["infercanary_gpu_temperature_celsius"].keys() == {"0/gpu", "1/gpu"}
    virtual = ask("link_lanes_max 1 0")
    assert virtual["families"]["infercanary_gpu_pcie_link_ratio"].keys() == {"0"}


def test_a_field_fails_for_itself_and_a_lost_gpu_in_a_field_is_lost(ask: Ask) -> None:
    fields = ("field.74 * 1000000000", "field.270 * 2000000000")
    found = ask(*fields, f"field.74.error 1 {NO_PERMISSION}")["families"]
    assert found[EVENT_SECONDS] == {"0/sw_power_cap": 1, "0/hw_thermal": 2, "1/hw_thermal": 2}
    lost = ask(*fields, f"field.74.error 1 {LOST}")
    assert lost["families"]["infercanary_gpu_up"] == {"0": 1, "1": 0}
    assert now(lost) == "lost"


@pytest.mark.parametrize(
    ("driver", "ids"),
    [
        ("550.54.14", (75, 270, 271)),
        ("570.86.15", (75, 270, 271)),
        ("575.51.03", (251, 252, 253)),
        ("580.65.06", (251, 252, 253)),
        ("580.82.07", (269, 270, 271)),
        ("615.71", (269, 270, 271)),
        ("no-number", (75, 270, 271)),
    ],
)
def test_three_counters_have_other_numbers_in_some_drivers(
    ask: Ask, driver: str, ids: tuple[int, int, int]
) -> None:
    others = {75, 251, 252, 253, 269, 270, 271} - set(ids)
    found = ask(
        f"driver * {driver}",
        "gpus * 1",
        *(f"field.{number} 0 {seconds}000000000" for seconds, number in enumerate(ids, 1)),
        # What a driver has in the other places (power smoothing, or nothing) must not be taken for a time.
        *(f"field.{number}.error 0 {NOT_SUPPORTED}" for number in others),
    )["families"]
    assert found[EVENT_SECONDS] == {"0/sw_thermal": 1, "0/hw_thermal": 2, "0/hw_power_brake": 3}


def test_counters_that_wrap_go_back_or_leap_never_look_like_a_huge_increase(ask: Ask) -> None:
    totals = []
    gigabyte = 10**9
    for ns, sent in [
        (5_000_000_000, 100 * gigabyte),
        (5_100_000_000, 101 * gigabyte),
        (2**63, 2**63),  # nonsense, once
        (5_200_000_000, 102 * gigabyte),
        (0, 0),  # nonsense again
        (5_300_000_000, 103 * gigabyte),
        (2**63, 2**63),  # and of both kinds: neither confirms the other
        (0, 0),
        (5_400_000_000, 104 * gigabyte),
        (50_000_000, gigabyte // 2),  # the driver was reloaded
        (60_000_000, 3 * gigabyte // 4),
        (900_000_000_000_000, 2**62),  # it leaps, and stays there
        (900_000_000_000_000, 2**62),
        (900_000_100_000_000, 2**62 + gigabyte),
        (500_000_000_000_000, 2**61),  # it goes back, and stays at more than it can have counted since
        (500_000_000_000_000, 2**61),
        (500_000_100_000_000, 2**61 + gigabyte),
    ]:
        found = ask("gpus * 1", f"field.74 0 {ns}", f"field.197 0 {sent}")["families"]
        totals.append(
            (round(found[EVENT_SECONDS]["0/sw_power_cap"], 3), found[PCIE_BYTES]["0/tx"] / gigabyte)
        )
    assert totals == [
        (5.0, 100), (5.1, 101), (5.1, 101), (5.2, 102), (5.2, 102), (5.3, 103), (5.3, 103), (5.3, 103), (5.4, 104),
        (5.4, 104), (5.46, 104.75), (5.46, 104.75), (5.46, 104.75), (5.56, pytest.approx(105.75)),
        (5.56, pytest.approx(105.75)), (5.56, pytest.approx(105.75)), (5.66, pytest.approx(106.75)),
    ]  # fmt: skip


# Each counter of errors, and its name in the script.
ERRORS = {
    "infercanary_gpu_pcie_replays_total": {"0": "replays"},
    "infercanary_gpu_ecc_errors_total": {"0/corrected": "ecc_corrected", "0/uncorrected": "ecc_uncorrected"},
    "infercanary_gpu_remapped_rows_total": {
        "0/corrected": "remapped_corrected",
        "0/uncorrected": "remapped_uncorrected",
    },
}


def test_errors_that_are_nonsense_for_once_are_no_new_errors(ask: Ask) -> None:
    def shown(value: int) -> set[float]:
        script = (f"{name} 0 {value}" for names in ERRORS.values() for name in names.values())
        families = ask("gpus * 1", *script, minutes=1)["families"]
        assert all(families[metric].keys() == names.keys() for metric, names in ERRORS.items())
        return {total for metric in ERRORS for total in families[metric].values()}

    answers = [3, 4, 0, 4, 2_000_000_000, 5, 0, 1, 2]  # at last the driver was reloaded
    assert [shown(answer) for answer in answers] == [{3}, {4}, {4}, {4}, {4}, {5}, {5}, {6}, {7}]


def test_errors_that_are_remembered_are_no_second_answer(ask: Ask) -> None:
    errors = {"0/corrected": 0, "0/uncorrected": 3}

    def shown(uncorrected: int, *more: str, minutes: int = 0) -> Any:
        found = ask("gpus * 1", f"ecc_uncorrected 0 {uncorrected}", *more, minutes=minutes)
        return found["families"].get("infercanary_gpu_ecc_errors_total")

    assert shown(3) == errors
    assert [shown(0, minutes=1), *(shown(0) for _ in range(3))] == [errors] * 4, "read once, shown four times"
    assert shown(3, minutes=1) == errors
    # Nor is what a GPU shows that is lost a moment later: it is asked again at each sample.
    lost = f"nvmlDeviceGetClockInfo 0 {LOST}"
    assert [shown(0, lost, minutes=1), shown(0, lost), shown(0, lost)] == [None] * 3
    assert shown(3) == errors
    # The driver was reloaded, and counts its first error.
    assert shown(1, minutes=1) == errors
    assert [shown(1, minutes=1), shown(1)] == [errors | {"0/uncorrected": 4}] * 2


def test_an_old_driver(library: Callable[..., Path], tmp_path: Path, session: Session) -> None:
    for ask in session(library("-DOLD_DRIVER"), tmp_path / "script"):
        found = ask("temperature * 43")
        assert (found["success"], found["said"]) == (1, [])
        assert found["families"]["infercanary_gpu_temperature_celsius"] == {"0/gpu": 43, "1/gpu": 43}


def test_the_cpus_near_the_gpus(ask: Ask) -> None:
    near = {"0": [0, 1], "1": [2, 3]}
    assert ask("cpus 0 3", "cpus 1 12")["local_cpus"] == near
    near["1"] = [63]
    assert ask("cpus 0 3", "cpus 1 9223372036854775808", minutes=1)["local_cpus"] == near
    assert ask("cpus * 0", minutes=1)["local_cpus"] == near, "none is not known"
    gone = ask(f"nvmlInit * {DRIVER_NOT_LOADED}", f"nvmlDeviceGetCount * {UNINITIALIZED}")
    assert gone["local_cpus"] == near, "as last known"


# MIG -------------------------------------------------------------------------------------------------------


def test_mig_devices_come_and_go(ask: Ask) -> None:
    up = "infercanary_gpu_up"
    split = ("mig 1 1", "mig_devices 1 5", f"nvmlDeviceGetMemoryInfo 1 {NO_PERMISSION}",
        f"nvmlDeviceGetUtilizationRates 1 {NOT_SUPPORTED}")  # fmt: skip
    found = ask(*split)
    assert (found["success"], found["said"]) == (1, [])
    families = found["families"]
    assert families[up] == {"0": 1, "1": 1, "1:0": 1, "1:2": 1}
    assert families["infercanary_gpu_memory_used_bytes"].keys() == {"0", "1:0", "1:2"}
    assert families["infercanary_gpu_utilization_ratio"].keys() == {"0"}, "there is none in MIG mode"
    assert families["infercanary_gpu_sm_clock_hertz"].keys() == {"0", "1"}
    assert ask("mig 1 1", "mig_devices 1 1", minutes=1)["families"][up] == {"0": 1, "1": 1, "1:0": 1}
    # One is taken away between two looks: it is down, then gone.
    gone = ask("mig 1 1", "mig_devices 1 0", f"nvmlDeviceGetMemoryInfo 1:0 {UNKNOWN}")
    assert gone["families"][up] == {"0": 1, "1": 1, "1:0": 0}
    assert gone["success"] == 1 and gone["said"][0].startswith("WARNING sampler nvml: GPU 1:0: NVML fails")
    assert ask("mig 1 1", "mig_devices 1 0")["families"][up] == {"0": 1, "1": 1}


def test_a_mig_device_of_another_container_is_passed_over(ask: Ask) -> None:
    found = ask("mig 0 1", "mig_devices 0 3", f"nvmlDeviceGetMemoryInfo 0:1 {NO_PERMISSION}")
    assert found["families"]["infercanary_gpu_up"] == {"0": 1, "1": 1, "0:0": 1}
    assert (now(found), found["said"]) == ("ok", [])


# XIDs ------------------------------------------------------------------------------------------------------


def test_xids_are_counted_by_number(ask: Ask) -> None:
    quiet = ask()["families"]
    assert quiet[EVENTS] == {"0": 0, "1": 0} and XIDS not in quiet
    assert ask("xids 1 2", "xid 1 63")["families"][XIDS] == {"1/63": 2}
    more = ask("xids 1 3", "xid 1 31", "xids 0 1", "xid 0 123456789")["families"]
    assert more[XIDS] == {"1/63": 2, "1/31": 1, "0/other": 1}
    assert more[EVENTS] == {"0": 1, "1": 3}
    storm = ("xids 0 1", "xids 1 153", "xid 1 31")
    assert ask(*storm)["families"][EVENTS]["1"] == 103, "a sample takes so many at most"
    assert ask(*storm)["families"][EVENTS]["1"] == 153


def test_the_xid_of_a_gpu_that_falls_off_the_bus_is_reported_with_its_loss(ask: Ask) -> None:
    ask("gpus * 1")
    lost = ask("gpus * 1", f"nvmlDeviceGetMemoryInfo 0 {LOST}", "xids 0 1", "xid 0 79")
    assert (lost["success"], now(lost)) == (0, "lost")
    assert lost["families"][XIDS] == {"0/79": 1}
    still = ask("gpus * 1", f"nvmlInit * {UNKNOWN}", "xids 0 1")
    assert still["families"][XIDS] == {"0/79": 1}
    back = ask("gpus * 1", "xids 0 2", "xid 0 79")
    assert back["families"][XIDS] == {"0/79": 2}, "it listens again, and goes on counting"


# Faults ----------------------------------------------------------------------------------------------------


def test_a_lost_gpu_is_a_metric_and_the_other_goes_on(ask: Ask) -> None:
    ask()
    lost = ask(f"nvmlDeviceGetMemoryInfo 1 {LOST}")
    assert lost["success"] == 1
    (said,) = lost["said"]
    assert said.startswith("WARNING sampler nvml: GPU 1: GPU is lost: it fell off the bus or needs a reset;")
    assert lost["families"]["infercanary_gpu_up"] == {"0": 1, "1": 0}
    assert now(lost) == "lost"
    assert lost["families"]["infercanary_gpu_temperature_celsius"].keys() <= {"0/gpu", "0/memory"}
    assert lost["families"]["infercanary_gpu_power_limit_watts"] == {"0": 700}, (
        "nothing that is cached, either"
    )
    for fault in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetTotalEccErrors"):
        still = ask(f"{fault} 1 {LOST}")
        assert still["said"] == [], "said once, not at each sample"
        assert still["families"]["infercanary_gpu_up"] == {"0": 1, "1": 0}
        assert "1/gpu" not in still["families"]["infercanary_gpu_temperature_celsius"], (
            "half of a lost GPU is stale"
        )
    other = ask(f"nvmlDeviceGetMemoryInfo 1 {RESET_REQUIRED}")
    assert "GPU requires restart" in other["said"][0]
    back = ask()
    assert back["families"]["infercanary_gpu_up"] == {"0": 1, "1": 1}


def test_a_gpu_that_answers_nothing_is_not_up(ask: Ask) -> None:
    """Fallen off the bus without being marked as lost: each function says `Unknown Error`."""
    functions = (
        "MemoryInfo", "FieldValues", "ClockInfo", "TemperatureV",
        "TotalEnergyConsumption", "UtilizationRates", "CurrPcieLinkGeneration", "CurrPcieLinkWidth",
        "PcieReplayCounter",
    )  # fmt: skip
    ask()
    dead = ask(*(f"nvmlDeviceGet{function} 0 {UNKNOWN}" for function in functions))
    assert dead["families"]["infercanary_gpu_up"] == {"0": 0, "1": 1}
    assert now(dead) == "failing"
    assert "may have fallen off the bus" in dead["said"][0]


def test_a_fault_that_comes_after_some_calls(ask: Ask) -> None:
    script = (f"nvmlDeviceGetClockInfo 0 {LOST} 4",)
    assert [ask(*script)["families"]["infercanary_gpu_up"]["0"] for _ in range(4)] == [1, 1, 0, 0]


def test_when_all_are_lost_the_sample_fails_and_recovers(ask: Ask) -> None:
    ask()
    lost = ask(f"nvmlDeviceGetMemoryInfo * {LOST}")
    assert (lost["success"], now(lost)) == (0, "lost")
    assert lost["families"].keys() == {STATE, EVENTS, "infercanary_gpu_up"}
    assert lost["families"]["infercanary_gpu_up"] == {"0": 0, "1": 0}
    (said,) = lost["said"]
    assert said.startswith("WARNING sampler nvml: GPU is lost: it fell off the bus")
    # Shutting down a lost GPU's driver fails too, and must not hide why.
    assert ask(f"nvmlDeviceGetHandleByIndex * {LOST}", f"nvmlShutdown * {UNKNOWN}")["success"] == 0
    back = ask()
    assert (back["success"], back["said"]) == (1, ["INFO sampler nvml: works again"])


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_driver_is_a_state_and_no_failure(ask: Ask, function: str) -> None:
    fault = f"{function} * {DRIVER_NOT_LOADED}"
    found = ask(fault)
    assert (found["success"], now(found)) == (1, "no_driver"), "a host without GPUs must not page anyone"
    assert found["families"].keys() == {STATE}
    assert found["said"] == ["INFO sampler nvml: no NVIDIA driver here (Driver Not Loaded)"]
    assert ask(fault)["said"] == []
    loaded = ask()
    assert (loaded["success"], now(loaded)) == (1, "ok")
    gone = ask(f"nvmlDeviceGetCount * {DRIVER_NOT_LOADED}")
    assert (gone["success"], now(gone), len(gone["said"])) == (1, "no_driver", 1)


@pytest.mark.parametrize(
    ("fault", "state", "hints"),
    [
        (f"nvmlInit * {NO_PERMISSION}", "no_permission", ["daemon-reload", "recreate the container"]),
        (f"nvmlInit * {UNKNOWN}", "no_permission", ["daemon-reload", "recreate the container"]),
        (f"nvmlDeviceGetHandleByIndex * {NO_PERMISSION}", "no_permission", ["recreate the container"]),
        (f"nvmlInit * {MISMATCH}", "version_mismatch", ["was upgraded", "restart the container"]),
        (
            f"nvmlDeviceGetClockInfo * {MISMATCH}",
            "version_mismatch",
            ["was upgraded", "restart the container"],
        ),
        (f"nvmlDeviceGetHandleByIndex * {UNKNOWN}", "failing", ["fallen off the bus"]),
        (f"nvmlInit * {INVALID_ARGUMENT}", "failing", ["NVML fails"]),
    ],
)
def test_a_driver_that_refuses_is_a_state_and_a_warning_with_advice(
    ask: Ask, fault: str, state: str, hints: list[str]
) -> None:
    found = ask(fault)
    assert (found["success"], now(found)) == (0, state)
    (said,) = found["said"]
    assert said.startswith("WARNING sampler nvml: ") and "\n" not in said
    assert all(hint in said for hint in hints), said
    assert ask(fault)["said"] == []
    back = ask()
    assert (back["success"], now(back)) == (1, "ok")


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetCount", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTotalEccErrors"]
)
def test_a_driver_that_was_reloaded(ask: Ask, function: str) -> None:
    ask()
    reloaded = ask(f"{function} * {UNINITIALIZED}", minutes=int("Ecc" in function))
    assert (reloaded["success"], now(reloaded)) == (0, "failing")
    assert "reloaded" in reloaded["said"][0]
    back = ask("power_limit 0 350000")
    assert (back["success"], back["families"]["infercanary_gpu_up"]) == (1, {"0": 1, "1": 1})
    assert back["families"]["infercanary_gpu_power_limit_watts"]["0"] == 350, "each GPU is looked up again"
    assert back["held"] == 1001, "one event set, initialised once: nothing is left over"


def test_close_lets_go_of_everything(ask: Ask) -> None:
    assert ask()["held"] == 1001
    assert ask(close=True) == {"closed": True, "held": 0}


@pytest.mark.parametrize(
    "function", ["nvmlInit", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues", "nvmlEventSetWait"]
)
def test_a_call_that_hangs_does_not_hang_the_probe_and_comes_back(ask: Ask, function: str) -> None:
    found = ask(f"{function} * {HANG}")
    assert (found["success"], now(found)) == (0, "hanging")
    assert found["families"].keys() == {STATE}
    assert found["said"] == ["WARNING sampler nvml: hangs: no answer within 0.5 s"]
    for _ in range(3):
        again = ask(f"{function} * {HANG}")
        assert (again["success"], now(again), again["said"]) == (0, "hanging", [])
        assert again["threads"] == found["threads"]
    back = until(lambda: (found := ask())["success"] and found, "it does not come back")
    assert now(back) == "ok"
    assert back["said"] == ["INFO sampler nvml: works again"]


def test_no_library_at_all(tmp_path: Path, session: Session) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for ask in session(empty, tmp_path / "script"):
        found = ask()
        if now(found) != "no_driver":
            pytest.skip("this machine has an NVIDIA driver")
        assert found["success"] == 1
        assert found["said"] == ["INFO sampler nvml: no NVIDIA driver here (NVML Shared Library Not Found)"]
        assert ask(visible=True)["visible"] == []


def test_the_names_of_the_visible_gpus(ask: Ask) -> None:
    assert ask(visible=True) == {"visible": ["Fake-0", "Fake-1"], "held": 0}
    for fault in (
        f"nvmlInit * {DRIVER_NOT_LOADED}",
        f"nvmlDeviceGetName 1 {LOST}",
        f"nvmlDeviceGetCount * {HANG}",
    ):
        assert ask(fault, visible=True)["visible"] == []


# In the probe ----------------------------------------------------------------------------------------------


INTERVAL = 0.8
ON_TIME = f"""
import threading
from infercanary.probe import loop as probe, schedule
from scripted import Scripted
from watching import until

# Each slot at its very time: how late a run then is, is what was added to it.
schedule.JITTER = 0.0
running = probe.Probe({{"a": Scripted()}}, listen="127.0.0.1:0", interval_seconds={INTERVAL}, duty_cap=1.0)
running.start()
print(until(lambda: running.address), flush=True)
threading.Event().wait()
"""
# What NVML does in turn, and the state that it is then in.
TROUBLES = {
    "hang": ([f"nvmlDeviceGetFieldValues * {HANG}"], "hanging"),
    "lost": ([f"nvmlDeviceGetMemoryInfo 1 {LOST}"], "lost"),
    "permission": ([f"nvmlInit * {NO_PERMISSION}\nnvmlDeviceGetCount * {NO_PERMISSION}"], "no_permission"),
    # Nonsense for once; back, as after a reload; a leap.
    "counters": ([f"field.74 * {ns}" for ns in (2**63, 50_000_000, 900_000_000_000_000)], "ok"),
}


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(name, marks=() if name == "hang" else pytest.mark.campaign) for name in TROUBLES],
)
def test_no_trouble_of_nvml_makes_a_run_later_than_its_jitter(
    usual: Path, tmp_path: Path, trouble: str
) -> None:
    """Later than the same probe's runs were before, that is. A busy machine is let try three times."""
    seen = []
    for _ in range(3):
        seen.append(delays(usual, tmp_path / "script", *TROUBLES[trouble]))
        if max(seen[-1]) < 0.2 * INTERVAL:
            return
    raise AssertionError(f"a run came later than usual, by more than its jitter: {seen}")


def delays(library: Path, script: Path, faults: list[str], expected: str) -> list[float]:
    """By how much each run of a probe came later than one before the faults (s); what it shows meanwhile is checked."""
    put(script, "field.74 * 5000000000")
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TIME],
        cwd=MODULES, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(script)},
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        try:
            address = process.stdout.readline().strip()
            quiet = reached(address, "ok", 4)
            assert quiet.value(EVENT_SECONDS, "1", "sw_power_cap") == 5.0
            runs = len(quiet.report.runs)
            for fault in faults:
                put(script, fault)
                during = reached(address, expected, runs := runs + 2)
            if expected == "ok":
                capped = during.value(EVENT_SECONDS, "1", "sw_power_cap")
                assert capped == pytest.approx(5.05), "no huge increase"
            else:
                assert during.value("infercanary_gpu_up", "1") != 1, "stale numbers beside green health"
            assert during.value("infercanary_sampler_success", "nvml") == (expected in ("ok", "lost"))
            put(script, "")
            after = reached(address, "ok", runs + 1)
            assert after.value("infercanary_gpu_up", "1") == 1
        finally:
            process.kill()
            process.wait()
    # A missed slot has no number: all runs after it are a whole interval late.
    late = [run.started_at - INTERVAL * run.sequence for run in after.report.runs]
    usual = statistics.median(late[: len(quiet.report.runs)])
    return [each - usual for each in late]


def put(script: Path, lines: str) -> None:
    new = script.with_suffix(".new")
    new.write_text(f"{lines}\n")
    new.replace(script)  # in one piece: it is read all the time


def reached(address: str, state: str, runs: int) -> Seen:
    """The report once NVML is in that state, and so many runs are there."""

    def seen() -> Seen | None:
        now = fetch(address)
        return now if now.value(STATE, state) == 1 and len(now.report.runs) >= runs else None

    found: Seen = until(seen, f"NVML is not {state}, or there are no runs")
    return found


GHOST = """
import json, sys, time
from infercanary.probe import Probe, TorchTarget
from watching import fetch, until

target = TorchTarget(lambda x: x + 1, [{"shape": [2]}], device="cuda", cpu_fallback=sys.argv[1] == "fallback")
probe = Probe({"a": target}, listen="127.0.0.1:0", interval_seconds=0.1, duty_cap=1.0)
probe.start()
until(lambda: probe.address)
state = "failing" if sys.argv[1] == "refused" else "steady"
until(lambda: fetch(probe.address).families.get("infercanary_gpu_up"))
seen = until(lambda: (s := fetch(probe.address)).state("a") == state and s.report.runs and s)
print(json.dumps({
    "missing": seen.value("infercanary_cuda_missing", "a", "cpu_only_build"),
    "gpus": len(seen.families["infercanary_gpu_up"].points),
    "outcome": seen.report.runs[-1].outcome,
    "detail": seen.report.runs[-1].detail,
    "device": seen.report.environment.get("torch_device"),
}))
probe.stop()
"""


@pytest.mark.parametrize("mode", ["refused", "fallback"])
def test_a_cpu_only_wheel_on_a_machine_with_gpus(usual: Path, tmp_path: Path, mode: str) -> None:
    """NVML shows GPUs, torch has no CUDA: refused, with both facts in one line, or run on the CPU if so asked."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    done = subprocess.run(
        [sys.executable, "-c", GHOST, mode],
        cwd=MODULES, capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(usual), "FAKE_NVML": str(tmp_path / "script")},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["missing"], found["gpus"]) == (1, 2)
    if mode == "refused":
        assert found["outcome"] == "raised"
        assert "was asked for and NVML sees Fake-0, Fake-1, but torch" in found["detail"]
        assert "is a CPU-only build; install a CUDA build of torch, or set `device: cpu`" in found["detail"]
    else:
        assert (found["outcome"], found["device"]) == ("ok", "cpu")
        said = "canary a: runs on the CPU instead of CUDA: cpu_only_build"
        assert done.stderr.count(said) == 1, "it pages, so the log says it, once"


ENERGY = """
import json
from infercanary.probe import Probe
from scripted import Scripted
from watching import fetch, until

class OnDevice(Scripted):
    device = "cuda:0"

probe = Probe({"long": OnDevice(0.6), "short": OnDevice(0.01)}, listen="127.0.0.1:0", interval_seconds=0.5,
              duty_cap=1.0, controls=False)
probe.start()
until(lambda: probe.address)
seen = until(lambda: (s := fetch(probe.address)).runs("long", "ok") >= 2 and s, seconds=90)
runs = {"long": [], "short": []}
for run in seen.report.runs:
    runs[run.canary].append(run.measures | {"wall": sum(run.latencies) / len(run.latencies)})
shown = seen.value("infercanary_run_energy_joules", "long"), seen.value("infercanary_run_energy_joules", "short")
print(json.dumps([runs, shown]))
probe.stop()
"""


@pytest.mark.campaign  # it waits for runs of seconds
@pytest.mark.takes(90)
def test_the_energy_of_a_run_that_is_long_enough(usual: Path, tmp_path: Path) -> None:
    """400 W for 0.6 s, by a counter that moves each 100 ms. The other GPU takes more."""
    cuda = build(tmp_path)
    script = tmp_path / "script"
    script.write_text("bus 0 65\npower 0 400\npower 1 700\nutilization 0 87\n")
    done = subprocess.run(
        [sys.executable, "-c", ENERGY], cwd=MODULES, capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": f"{usual}:{cuda}", "FAKE_NVML": str(script)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs, shown = json.loads(done.stdout)
    known = [run for run in runs["long"] if "energy" in run]
    assert known, "a machine that is busy may delay samples, not all of them"
    for run in known:
        assert run["energy"] == pytest.approx(400.0 * run["wall"], rel=0.06) and run["wall"] >= 0.6
        assert run["device_use"] == 0.87
    assert runs["short"]
    assert all(run.keys() == {"throughput", "host_memory", "wall"} for run in runs["short"])
    assert shown == [runs["long"][-1].get("energy"), None]


# Who shares a GPU ------------------------------------------------------------------------------------------


ON_A_GPU = """
import sys, threading
from infercanary.probe import Probe
from scripted import Scripted
from watching import until

target = Scripted()
target.device = sys.argv[1]
probe = Probe({"a": target}, listen="127.0.0.1:0", interval_seconds=0.2, duty_cap=1.0, controls=False)
probe.start()
print(until(lambda: probe.address), flush=True)
threading.Event().wait()
"""


@pytest.mark.takes(60)
def test_containers_on_one_gpu_by_its_uuid(usual: Path, tmp_path: Path) -> None:
    """Two on one, one that sees it and computes on the CPU, and one whose GPU 0 is another."""
    cuda = build(tmp_path)
    one, other = tmp_path / "script", tmp_path / "other"
    one.write_text("gpus * 1\nbus 0 65\nprocesses 0 5\n")
    other.write_text("gpus * 1\nbus 0 65\nuuid 0 GPU-9\n")
    found = {
        "first": ("cuda:0", one),
        "second": ("cuda:0", one),
        "idle": ("cpu", one),
        "far": ("cuda:0", other),
    }
    with ExitStack() as stack:
        listed = []
        for name, (device, script) in found.items():
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ON_A_GPU, device], cwd=MODULES, stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "LD_LIBRARY_PATH": f"{usual}:{cuda}", "FAKE_NVML": str(script)},
                )
            )  # fmt: skip
            stack.callback(process.kill)
            assert process.stdout is not None
            listed.append({"url": process.stdout.readline().strip(), "service": "s", "container": name})
        settings, port = tmp_path / "exporter.yaml", free_port()
        settings.write_text(
            json.dumps(
                {
                    "listen": f"127.0.0.1:{port}",
                    "poll_seconds": 0.1,
                    "discovery": "none",
                    "probes": listed,
                }
            )
        )
        exporter = stack.enter_context(
            subprocess.Popen([sys.executable, "-m", "infercanary", "exporter", "--config", str(settings)])
        )
        stack.callback(exporter.kill)

        def shown() -> dict[str, dict[str, float]] | None:
            """Container → uuid → how many others."""
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                    text = response.read().decode()
            except OSError:  # it is not up yet
                return None
            seen: dict[str, dict[str, float]] = {}
            for labels, value in re.findall(r"^infercanary_gpu_shared\{(.*)\} (\S+)$", text, re.MULTILINE):
                each = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                seen.setdefault(each["container"], {})[each["uuid"]] = float(value)
            return seen

        wanted = {"first": {"GPU-0": 1.0}, "second": {"GPU-0": 1.0}, "far": {"GPU-9": 0.0}}
        until(lambda: shown() == wanted, "it shows something else")
