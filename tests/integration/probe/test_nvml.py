"""The NVML sampler with the real pynvml, and a compiled library that answers by a test's script.

The golden files have the metrics of two scripted machines. After an intended change:

UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/integration/probe/test_nvml.py -k golden; git diff
tests/golden
"""

import json
import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from cuda_stand_in import build, build_nvml, needs_cc
from forked import begin
from nvml_session import serve
from probe_process import ProbeProcess, scripted
from watching import until

from infercanary.contract.report import Family
from infercanary.exporter.expose import Exposition, write
from tests.integration.exporter.processes import Process

FAKE = Path(__file__).parents[2] / "fake_nvml"
GOLDEN = Path(__file__).parents[2] / "golden"

pytestmark = [pytest.mark.takes(40), needs_cc]

CODES = {
    "HANG": -1, "UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4,
    "DRIVER_NOT_LOADED": 9, "LOST": 15, "RESET_REQUIRED": 16, "MISMATCH": 18, "UNKNOWN": 999,
    "NOT_AVAILABLE": 2**32 - 1, "NOT_AVAILABLE_64": 2**64 - 1,
}  # fmt: skip
"""Return codes of NVML by their names in a script."""

STATES = ("ok", "no_driver", "no_permission", "version_mismatch", "lost", "failing", "hanging")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@contextmanager
def session(folder, script):
    """Yield a function that takes one sample in a separate process; these lines are the script of the library."""
    process, pipe = begin(serve, folder, script, FAKE_NVML=str(script))

    def ask(lines="", **more):
        named = re.sub(r"\b[A-Z_]{4,}(64)?\b", lambda word: str(CODES.get(word[0], word[0])), lines)
        pipe.send({"lines": re.split("; *|\n", named), **more})
        return pipe.recv()

    try:
        yield ask
    finally:
        process.kill()  # a call that hangs in C would delay the interpreter's end
        process.join()


@pytest.fixture
def ask(usual, tmp_path):
    with session(usual, tmp_path / "script") as ask:
        yield ask


@pytest.mark.parametrize("machine", ["idle", "loaded"])
def test_golden(ask, tmp_path, machine):
    for index in (0, 1):
        place = tmp_path / "sys" / "bus/pci/devices" / f"0000:{0x1B + index:02x}:00.0"
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{index}\n")
    found = ask((FAKE / f"{machine}.script").read_text())
    check(found, "ok 1")
    shown = Exposition()
    families = msgspec.convert(found["whole"], list[Family])
    assert shown.replace(("", ""), [write(family, {}) for family in families if family.points]) == 0
    text = b"".join(shown.families(in_openmetrics=False)).decode()
    golden = GOLDEN / f"nvml_{machine}.metrics"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


# A line `> script` takes a sample. `(2 times)` takes a second sample, which logs nothing new; `(1 minutes)`
# first advances the clock. The next lines are expectations: NVML's state and the sampler's success; `said`
# with a pattern of the only message (without `said`, the sampler logs nothing); a metric with a value for
# each label, with its labels only, or `none` if it is missing; or another part of the session's answer.
SCENARIOS = r"""
what hardly changes is read once a minute, and each GPU is listened to once
>
> power_limit 0 350000; ecc_corrected 1 5
gpu_power_limit_watts 0=700 1=700
> power_limit 0 350000; ecc_corrected 1 5 (1 minutes)
gpu_power_limit_watts 0=350 1=700
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=0 1/corrected=5 1/uncorrected=0
gpu_xid_events_total 0=0 1=0

what one GPU does not offer is missing for it alone: CODE in NOT_SUPPORTED NO_PERMISSION INVALID_ARGUMENT UNKNOWN
> nvmlDeviceGetTemperatureV 1 CODE; nvmlDeviceGetUtilizationRates * CODE; nvmlDeviceGetCurrPcieLinkWidth 0 CODE;\
 nvmlDeviceGetVbiosVersion 0 CODE; nvmlDeviceGetFieldValues 1 CODE; nvmlDeviceGetCpuAffinity 1 CODE;\
 nvmlEventSetCreate * CODE; field.74 * 1000000
ok 1
gpu_temperature_celsius 0/gpu=41
gpu_utilization_ratio
gpu_pcie_link_ratio 1
gpu_up 0=1 1=1
gpu_clock_event_seconds_total 0/sw_power_cap=0.001
gpu_xid_events_total
local_cpus 0=[0,1,2,3]

a value of all ones is not available
> link_lanes 0 NOT_AVAILABLE; energy 0 NOT_AVAILABLE_64; field.74 0 NOT_AVAILABLE_64; field.82 0 NOT_AVAILABLE;\
 field.82 1 0
gpu_pcie_link_ratio 1
gpu_energy_joules_total 1=1.5
gpu_clock_event_seconds_total
gpu_temperature_celsius 0/gpu 1/gpu
> link_lanes_max 1 0
gpu_pcie_link_ratio 0

a field fails for itself, and a lost gpu in a field is lost
> field.74 * 1000000000; field.270 * 2000000000; field.74.error 1 NO_PERMISSION
gpu_clock_event_seconds_total 0/sw_power_cap=1 0/hw_thermal=2 1/hw_thermal=2
> field.74 * 1000000000; field.74.error 1 LOST
lost 1
said GPU 1: GPU is lost
gpu_up 0=1 1=0

the CPUs near the GPUs are as last known
> cpus 0 3; cpus 1 12
local_cpus 0=[0,1] 1=[2,3]
> cpus 0 3; cpus 1 9223372036854775808 (1 minutes)
local_cpus 0=[0,1] 1=[63]
> cpus * 0 (1 minutes)
local_cpus 0=[0,1] 1=[63]
> nvmlInit * DRIVER_NOT_LOADED; nvmlDeviceGetCount * UNINITIALIZED
said reloaded
local_cpus 0=[0,1] 1=[63]

errors that are remembered are no second answer
> gpus * 1; ecc_uncorrected 0 3
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 0 (1 minutes)
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 0 (3 times)
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 3 (1 minutes)
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 0; nvmlDeviceGetClockInfo 0 LOST (1 minutes)
said is lost
gpu_ecc_errors_total
> gpus * 1; ecc_uncorrected 0 0; nvmlDeviceGetClockInfo 0 LOST (2 times)
gpu_ecc_errors_total
> gpus * 1; ecc_uncorrected 0 3
said works again
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 1 (1 minutes)
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 1
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=3
> gpus * 1; ecc_uncorrected 0 1 (1 minutes)
gpu_ecc_errors_total 0/corrected=0 0/uncorrected=4

mig devices come and go
> mig 1 1; mig_devices 1 5; nvmlDeviceGetMemoryInfo 1 NO_PERMISSION; nvmlDeviceGetUtilizationRates 1 NOT_SUPPORTED
ok 1
gpu_up 0=1 1=1 1:0=1 1:2=1
gpu_memory_used_bytes 0 1:0 1:2
gpu_utilization_ratio 0
gpu_sm_clock_hertz 0 1
> mig 1 1; mig_devices 1 1 (1 minutes)
gpu_up 0=1 1=1 1:0=1
> mig 1 1; mig_devices 1 0; nvmlDeviceGetMemoryInfo 1:0 UNKNOWN
said GPU 1:0: NVML fails
gpu_up 0=1 1=1 1:0=0
> mig 1 1; mig_devices 1 0
gpu_up 0=1 1=1

a mig device of another container is passed over
> mig 0 1; mig_devices 0 3; nvmlDeviceGetMemoryInfo 0:1 NO_PERMISSION
ok 1
gpu_up 0=1 1=1 0:0=1

XIDs are counted by number, so many in one sample at most
>
gpu_xid_events_total 0=0 1=0
gpu_xid_errors_total
> xids 1 2; xid 1 63
gpu_xid_errors_total 1/63=2
> xids 1 3; xid 1 31; xids 0 1; xid 0 123456789
gpu_xid_errors_total 1/63=2 1/31=1 0/other=1
gpu_xid_events_total 0=1 1=3
> xids 0 1; xids 1 153; xid 1 31
gpu_xid_events_total 0=1 1=103
> xids 0 1; xids 1 153; xid 1 31
gpu_xid_events_total 0=1 1=153

the XID of a gpu that falls off the bus is reported with its loss, and counting goes on after it
> gpus * 1
> gpus * 1; nvmlDeviceGetMemoryInfo 0 LOST; xids 0 1; xid 0 79
lost 0
said is lost
gpu_xid_errors_total 0/79=1
> gpus * 1; nvmlInit * UNKNOWN; xids 0 1
said lost its device files
gpu_xid_errors_total 0/79=1
> gpus * 1; xids 0 2; xid 0 79
said works again
gpu_xid_errors_total 0/79=2

a lost gpu is a metric and the other goes on; half of a lost gpu is stale, and so is what is cached of it
>
> nvmlDeviceGetMemoryInfo 1 LOST
lost 1
said WARNING sampler nvml: GPU 1: GPU is lost
gpu_up 0=1 1=0
gpu_temperature_celsius 0/gpu
gpu_power_limit_watts 0=700
> nvmlDeviceGetClockInfo 1 LOST
gpu_up 0=1 1=0
gpu_temperature_celsius 0/gpu
> nvmlDeviceGetHandleByIndex 1 LOST
gpu_up 0=1 1=0
gpu_temperature_celsius 0/gpu
> nvmlDeviceGetMemoryInfo 1 RESET_REQUIRED
said GPU requires restart
>
gpu_up 0=1 1=1

a gpu that answers nothing, each function with an unknown error, is not up
>
> nvmlDeviceGetMemoryInfo 0 UNKNOWN; nvmlDeviceGetFieldValues 0 UNKNOWN; nvmlDeviceGetClockInfo 0 UNKNOWN;\
 nvmlDeviceGetTemperatureV 0 UNKNOWN; nvmlDeviceGetTotalEnergyConsumption 0 UNKNOWN;\
 nvmlDeviceGetUtilizationRates 0 UNKNOWN; nvmlDeviceGetCurrPcieLinkGeneration 0 UNKNOWN;\
 nvmlDeviceGetCurrPcieLinkWidth 0 UNKNOWN; nvmlDeviceGetPcieReplayCounter 0 UNKNOWN
failing 1
said may have fallen off the bus
gpu_up 0=0 1=1

a gpu is lost after some calls
> nvmlDeviceGetClockInfo 0 LOST 4 (2 times)
gpu_up 0=1 1=1
> nvmlDeviceGetClockInfo 0 LOST 4
said is lost
gpu_up 0=0 1=1

when all are lost the sample fails, an error of the shutdown does not hide it, and it recovers
>
> nvmlDeviceGetMemoryInfo * LOST
lost 0
said WARNING sampler nvml: GPU is lost: the GPU fell off the bus
families nvml_state gpu_xid_events_total gpu_up
gpu_up 0=0 1=0
> nvmlDeviceGetHandleByIndex * LOST; nvmlShutdown * UNKNOWN
lost 0
>
ok 1
said INFO sampler nvml: works again

no driver is a state and no failure, which pages nobody: FUNCTION in nvmlInit nvmlDeviceGetCount
> FUNCTION * DRIVER_NOT_LOADED
no_driver 1
said INFO sampler nvml: no NVIDIA driver here \(Driver Not Loaded\)
families nvml_state
> FUNCTION * DRIVER_NOT_LOADED
>
ok 1
> nvmlDeviceGetCount * DRIVER_NOT_LOADED
no_driver 1
said no NVIDIA driver

a driver that refuses, with advice: CALL in nvmlInit=NO_PERMISSION nvmlInit=UNKNOWN\
 nvmlDeviceGetHandleByIndex=NO_PERMISSION
> CALL (2 times)
no_permission 0
said recreate the container
>
ok 1
said works again

a driver that was upgraded, with advice: CALL in nvmlInit=MISMATCH nvmlDeviceGetClockInfo=MISMATCH
> CALL (2 times)
version_mismatch 0
said was upgraded.* restart the container
>
ok 1
said works again

a driver that fails otherwise: CALL in nvmlDeviceGetHandleByIndex=UNKNOWN nvmlInit=INVALID_ARGUMENT
> CALL (2 times)
failing 0
said fallen off the bus|NVML fails
>
ok 1
said works again

each gpu is looked up again after the driver was reloaded, and nothing is left over:\
 FUNCTION in nvmlDeviceGetCount nvmlDeviceGetClockInfo
>
> FUNCTION * UNINITIALIZED
failing 0
said reloaded
> power_limit 0 350000
ok 1
said works again
gpu_up 0=1 1=1
gpu_power_limit_watts 0=350 1=700
held 1001

a call that hangs does not hang the probe: FUNCTION in nvmlInit nvmlDeviceGetMemoryInfo nvmlEventSetWait
> FUNCTION * HANG
hanging 0
said WARNING sampler nvml: hangs: no answer within 0.5 s
families nvml_state
threads 2
> FUNCTION * HANG (2 times)
hanging 0
threads 2
> (until it answers)
ok 1
said INFO sampler nvml: works again
"""


def scenarios():
    """Yield title and lines of each scenario; a title with ": NAME in choices" gives one scenario for each choice."""
    for text in SCENARIOS.replace("\\\n", "").strip().split("\n\n"):
        title, _, lines = text.partition("\n")
        title, _, choices = title.partition(": ")
        name, _, choices = choices.partition(" in ")
        for choice in choices.split() or [""]:
            chosen = lines.replace(name or "\0", choice.replace("=", " * "))
            yield pytest.param(chosen, id=f"{title} {choice}".strip())


def check(found, *expected):
    for line in expected:
        name, *words = line.split()
        shown = {"families": found["families"].keys(), **found}.get(
            name, found["families"].get(f"infercanary_{name}", {})
        )
        if name == "said":
            [message] = found["said"]
            assert re.search(line.partition(" ")[2], message), message
        elif name in STATES:
            states = [state for state, value in found["families"]["infercanary_nvml_state"].items() if value]
            assert [*states, found["success"]] == [name, int(words[0])]
        elif name == "families":
            assert {key.removeprefix("infercanary_") for key in found[name]} == {*words}
        elif not isinstance(shown, dict):
            assert shown == json.loads(words[0]), line
        else:
            wanted = dict(word.partition("=")[::2] for word in words)
            assert shown.keys() == wanted.keys(), line
            assert all(shown[key] == json.loads(value) for key, value in wanted.items() if value), (
                line,
                shown,
            )


@pytest.mark.parametrize("lines", [*scenarios()])
def test_a_scenario(ask, lines):
    for step in re.split(r"^>", lines, flags=re.MULTILINE)[1:]:
        script, *expected = step.splitlines()
        script, _, more = script.partition("(")
        number, _, unit = more.rstrip(")").partition(" ")
        for repeat in range(int(number) if unit == "times" else 1):
            if unit == "it answers":
                found = until(lambda: (sample := ask())["success"] and sample, "the sampler does not recover")
            else:
                found = ask(script, minutes=int(number) if unit == "minutes" else 0)
            is_new = any(line.startswith("said") for line in expected) and not repeat
            assert is_new or not found["said"], found["said"]
            check(found, *(line for line in expected if is_new or not line.startswith("said")))


@pytest.mark.parametrize(
    ("driver", "fields"),
    [("570.86.15", "75 270 271"), ("575.51.03", "251 252 253"), ("580.65.06", "251 252 253"),
     ("580.82.07", "269 270 271"), ("no-number", "75 270 271")],
)  # fmt: skip
def test_three_counters_have_other_numbers_in_some_drivers(ask, driver, fields):
    """In other drivers, the same field numbers mean something else (power smoothing, or nothing)."""
    values = [f"field.{field} 0 {seconds}000000000" for seconds, field in enumerate(fields.split(), 1)]
    others = {"75", "251", "252", "253", "269", "270", "271"} - {*fields.split()}
    refused = [f"field.{other}.error 0 NOT_SUPPORTED" for other in others]
    found = ask(";".join([f"driver * {driver}", "gpus * 1", *values, *refused]))
    check(found, "gpu_clock_event_seconds_total 0/sw_thermal=1 0/hw_thermal=2 0/hw_power_brake=3")


# The driver counts in ns and in bytes; the metrics are in seconds and in bytes.
LEAPS = """
5000000000 100e9 5.0 100e9
5100000000 101e9 5.1 101e9
9223372036854775808 9223372036854775808 5.1 101e9 nonsense, once
5200000000 102e9 5.2 102e9
0 0 5.2 102e9 nonsense again
5300000000 103e9 5.3 103e9
9223372036854775808 9223372036854775808 5.3 103e9 of both kinds: neither confirms the other
0 0 5.3 103e9
5400000000 104e9 5.4 104e9
50000000 500e6 5.4 104e9 the driver was reloaded
60000000 750e6 5.46 104.75e9
900000000000000 4611686018427387904 5.46 104.75e9 it leaps, and stays there
900000000000000 4611686018427387904 5.46 104.75e9
900000100000000 4611686019427387904 5.56 105.75e9
500000000000000 2305843009213693952 5.56 105.75e9 it goes back, to more than it can have counted since, and stays
500000000000000 2305843009213693952 5.56 105.75e9
500000100000000 2305843010213693952 5.66 106.75e9
"""


def test_counters_that_wrap_go_back_or_leap_never_look_like_a_huge_increase(ask):
    for line in LEAPS.strip().splitlines():
        ns, sent, seconds, total, *_ = line.split()
        sent = sent.replace("e9", "0" * 9).replace("e6", "0" * 6)
        families = ask(f"gpus * 1; field.74 0 {ns}; field.197 0 {sent}")["families"]
        shown = (
            families["infercanary_gpu_clock_event_seconds_total"]["0/sw_power_cap"],
            families["infercanary_gpu_pcie_bytes_total"]["0/tx"],
        )
        assert shown == pytest.approx((float(seconds), float(total))), line


def test_errors_that_are_nonsense_for_once_are_no_new_errors(ask):
    values = "replays {0}; ecc_corrected {0}; ecc_uncorrected {0}; remapped_corrected {0}; remapped_uncorrected {0}"
    both = "0/corrected={0} 0/uncorrected={0}"
    for value, shown in ((3, 3), (4, 4), (0, 4), (4, 4), (2_000_000_000, 4), (5, 5), (0, 5), (1, 6), (2, 7)):
        found = ask(f"gpus * 1; {values.format(f'0 {value}')}", minutes=1)
        check(found, f"gpu_pcie_replays_total 0={shown}", f"gpu_ecc_errors_total {both.format(shown)}",
              f"gpu_remapped_rows_total {both.format(shown)}")  # fmt: skip


def test_an_old_driver(tmp_path):
    with session(build_nvml(tmp_path, "-DOLD_DRIVER"), tmp_path / "script") as ask:
        check(ask("temperature * 43"), "ok 1", "gpu_temperature_celsius 0/gpu=43 1/gpu=43")


def test_no_library_at_all(tmp_path):
    with session(tmp_path, tmp_path / "script") as ask:
        found = ask()
        if found["families"]["infercanary_nvml_state"]["no_driver"] != 1:
            pytest.skip("this machine has an NVIDIA driver")
        check(found, "no_driver 1", "said INFO sampler nvml: no NVIDIA driver here")
        assert ask(visible=True)["visible"] == []


def test_close_lets_go_of_everything(ask):
    check(ask(), "held 1001")
    assert ask(close=True) == {"closed": True, "held": 0}


def test_the_names_of_the_visible_gpus(ask):
    assert ask(visible=True) == {"visible": ["Fake-0", "Fake-1"], "held": 0}
    for fault in ("nvmlInit * DRIVER_NOT_LOADED", "nvmlDeviceGetName 1 LOST", "nvmlDeviceGetCount * HANG"):
        assert ask(fault, visible=True)["visible"] == []


# In a probe ---------------------------------------------------------------------------------------------------


def scripted_probe(folder, canaries, *libraries):
    folder.mkdir(exist_ok=True)
    (script := folder / "script").touch()
    environment = {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "FAKE_NVML": str(script)}
    return ProbeProcess(folder, canaries, "controls: false", environment=environment)


def test_a_cpu_only_wheel_on_a_machine_with_gpus_beside_a_canary_on_the_cpu(usual, tmp_path):
    """An image without CUDA is no mistake in the settings. If the probe ended, nobody could read its report."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    options = "{{target: torch, options: {{model: 'torch.nn:ReLU', inputs: [{{shape: [2]}}], device: {}}}}}"
    canaries = f"{{gpu: {options.format('cuda')}, cpu: {options.format('cpu')}}}"
    with scripted_probe(tmp_path, canaries, usual) as probe:
        seen = probe.until(lambda s: s.runs("cpu", "ok") and s.runs("gpu", "raised"))
        probe.until(lambda s: s.value("infercanary_gpu_up", "1"))
        assert probe.end() == 0
    assert seen.value("infercanary_cuda_missing", "gpu", "cpu_only_build") == 1
    [why] = [line for line in probe.output().splitlines() if "cannot be opened" in line]
    assert "`cuda` was asked for" in why
    assert "NVML sees Fake-0, Fake-1, but torch" in why


@pytest.mark.campaign  # each of its runs takes seconds
@pytest.mark.takes(90)
def test_the_energy_of_a_run_that_is_long_enough(usual, tmp_path):
    (tmp_path / "script").write_text("bus 0 65\npower 0 400\npower 1 700\nutilization 0 87\n")
    canaries = ", ".join(
        f"{name}: {scripted('OnDevice', device='cuda:0', seconds=seconds)}"
        for name, seconds in (("long", 0.6), ("short", 0.01))
    )
    with scripted_probe(tmp_path, f"{{{canaries}}}", usual, build(tmp_path)) as probe:
        seen = probe.ran("long", 2)
    long, short = ([run for run in seen.report.runs if run.canary == name] for name in ("long", "short"))
    known = [run for run in long if "energy" in run.measures]
    assert known, "a busy machine may delay some samples, but not all"
    for run in known:
        seconds = sum(run.latencies) / len(run.latencies)
        assert run.measures["energy"] == pytest.approx(400.0 * seconds, rel=0.06)
        assert seconds >= 0.6
        assert run.measures["device_use"] == 0.87
    assert short
    assert all(run.measures.keys() == {"throughput", "host_memory"} for run in short)
    shown = [seen.value("infercanary_run_energy_joules", name) for name in ("long", "short")]
    assert shown == [long[-1].measures.get("energy"), None]


SHARED = r'^infercanary_gpu_shared\{(?=.*\bcontainer="(\w+)")(?=.*\buuid="([^"]+)").*\} (\S+)$'
CONTAINERS = {"first": ("cuda:0", 0), "second": ("cuda:0", 0), "idle": ("cpu", 0), "far": ("cuda:0", 9)}
"""Device of each canary, and number of the GPU that the container sees."""


def test_containers_on_one_gpu_by_its_uuid(usual, tmp_path):
    """Two containers share a GPU: one computes on the CPU, and one numbers another GPU as GPU 0."""
    cuda = build(tmp_path)
    with ExitStack() as stack:
        probes = []
        for name, (device, gpu) in CONTAINERS.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "script").write_text(f"gpus * 1\nbus 0 65\nprocesses 0 5\nuuid 0 GPU-{gpu}\n")
            canaries = f"{{a: {scripted('OnDevice', device=device)}}}"
            probe = stack.enter_context(scripted_probe(tmp_path / name, canaries, usual, cuda))
            probes.append({"url": probe.address, "service": "s", "container": name})
        exporter = Process(tmp_path / "exporter", "exporter")
        listen = f"127.0.0.1:{exporter.port}"
        settings = {"listen": listen, "poll_seconds": 0.1, "discovery": "none", "probes": probes}
        (exporter.folder / "exporter.yaml").write_text(json.dumps(settings))
        stack.callback(exporter.kill)
        exporter.start()
        # Container, UUID and number of other containers
        wanted = {("first", "GPU-0", "1.0"), ("second", "GPU-0", "1.0"), ("far", "GPU-9", "0.0")}
        until(
            lambda: {*re.findall(SHARED, exporter.get("/metrics").decode(), re.MULTILINE)} == wanted,
            "the exporter shows something else",
        )
