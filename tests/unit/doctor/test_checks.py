"""The doctor's checks with recorded files, and the output of their results. tests/integration tests checks of
drivers.
"""

import json
import re
from pathlib import Path

import pynvml
import pytest
from click.testing import CliRunner
from jsonschema import validate

from infercanary.command.cli import cli
from infercanary.doctor import host
from infercanary.doctor.ability import Ability, Check, Machine, Refusal, answered, checks
from infercanary.doctor.asking import NotAsked
from infercanary.doctor.command import schema
from infercanary.doctor.nvml_calls import CALLS
from infercanary.probe.gpu.cuda_driver import CudaError
from infercanary.probe.samplers import Unavailable
from tests.scenarios import scenarios

ROOT = Path(__file__).parents[3]
SAMPLER = ROOT / "probe/infercanary/probe/samplers/nvml"


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def answer(section, name, root, files=None):
    write(root, files or {})
    machine = Machine(proc=root / "proc", sysfs=root / "sys", devices=root / "dev")
    [each] = [each for each in checks() if (each.section, each.name) == (section, name)]
    return answered(each, machine)


CLOCK = "sys/devices/system/clocksource/clocksource0"
V2 = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/memory.max": "268435456\n",
    "sys/fs/cgroup/memory.current": "1048576\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-3\n",
}


PSI = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"


FILES = {
    "nothing": {},
    "balancing": {"proc/sys/kernel/numa_balancing": "1\n"},
    "no balancing": {"proc/sys/kernel/numa_balancing": "0\n"},
    "status": {"proc/self/status": "x"},
    "schedule": {f"proc/self/{name}": "5 6 0" for name in ("status", "sched", "schedstat")},
    "v1 unmounted": {"proc/self/cgroup": "3:cpu,cpuacct:/x\n"},
    "v2": V2,
    "v2 whole": V2
    | {
        "sys/fs/cgroup/cpu.stat": "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n",
        "sys/fs/cgroup/memory.events": "max 0\noom_kill 0\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 0\npgmajfault 0\n",
    },
    "v2, host's PSI": V2 | {"proc/pressure/cpu": PSI},
    "v2, own PSI": V2 | {"sys/fs/cgroup/cpu.pressure": PSI},
    "devices": {f"dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")},
    "nodes": {f"sys/devices/system/node/node{n}/cpulist": cpus for n, cpus in enumerate(("0-3\n", "4-7\n"))},
    "siblings": {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": cpus
        for cpu, cpus in {0: "0,4", 1: "1,5", 2: "2", 4: "0,4", 5: "1,5"}.items()
    },
    "clocks": {f"{CLOCK}/current_clocksource": "hpet\n", f"{CLOCK}/available_clocksource": "hpet acpi_pm\n"},
    "paranoid": {"proc/sys/kernel/perf_event_paranoid": "4\n"},
    # The doctor cannot open a folder like a device.
    "closed device": {"dev/nvidia0/folder": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""},
}


# Section, check, files, state, and words of the result
ANSWERS = """
host | NUMA nodes | nothing | limited | sys/devices/system/node cannot be read.*mount /sys
host | NUMA balancing | balancing | limited | moves memory pages
host | NUMA balancing | no balancing | OK | off
host | threads | status | limited | schedstat, sched cannot be read
host | threads | schedule | limited | does not measure.*task_delayacct=1
container | cgroup | nothing | refused | proc/self/cgroup cannot be read
container | cgroup | v1 unmounted | refused | no cgroup is mounted.*mount
container | cgroup | v2 | limited | version 2: cpu_quota 0.5, memory_limit 256 MiB, cpuset_cpus 4; the cgroup's files have no values for .*throttled.*oom_kills
container | cgroup | v2 whole | OK | cpuset_cpus 4; ; $
container | pressure (PSI) | v2 | refused | psi=1
container | pressure (PSI) | v2, host's PSI | limited | pressure of the host only
container | pressure (PSI) | v2, own PSI | OK | pressure of the container: cpu
container | memory peak | nothing | limited | is not allowed to write /proc/self/clear_refs
container | who ends first | nothing | limited | the kernel may kill the server first
driver | device files | nothing | limited | lacks nvidia0, nvidiactl, nvidia-uvm
driver | device files | devices | OK | nvidia0, nvidia1, nvidiactl
driver | device files | closed device | refused | cannot open nvidia0.*recreate the container
"""  # noqa: E501


@pytest.mark.parametrize(("section", "name", "files", "state", "words"), scenarios(ANSWERS))
def test_results_of_checks(section, name, files, state, words, tmp_path):
    says(answer(section, name, tmp_path, FILES[files]), state, words)


def says(found, state, words):
    text = f"{found.found}; {found.why}; {found.fix}"
    assert found.state == state and re.search(words, text), text


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (Unavailable("no libcuda.so.1 here"), "absent", "no libcuda.so.1 here"),
        (Refusal("NVML shows no GPU", "name one"), "refused", "NVML shows no GPU"),
        (CudaError("cuInit", 999, "CUDA_ERROR_UNKNOWN"), "refused", "cuInit: CUDA_ERROR_UNKNOWN (999)"),
        (pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "refused", "fell off the bus"),
        (ValueError("a\x1b[31m\nb"), "refused", "the check failed: ValueError: a [31m"),
    ],
)
def test_an_exception_in_a_check_is_a_result(error, state, words):
    def fails(_):
        raise error

    found = answered(Check("host", "x", fails, 1.0, ""), Machine())
    assert found.state == state
    assert words in found.why


def test_every_function_of_nvml_that_the_sampler_calls_is_tried():
    used = set(
        re.findall(
            r"\bnvml(?:Device|System|Event)[A-Z]\w+", "".join(p.read_text() for p in SAMPLER.glob("*.py"))
        )
    )
    used -= {"nvmlEventTypeXidCriticalError"}
    tried = "".join(path.read_text() for path in (ROOT / "probe/infercanary/doctor").glob("*.py"))
    # The sampler's own code lists GPUs and MIG devices.
    walked = {
        "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlSystemGetCudaDriverVersion",
        "nvmlSystemGetDriverVersion", "nvmlEventSetWait_v2",
    }  # fmt: skip
    assert {name for name in used if name not in tried} <= walked
    assert len(CALLS) >= 20
    assert not re.search(r"\.nvml(DeviceSet|DeviceReset|\w+Lock)", tried), (
        "the doctor must not change settings"
    )
    assert tried.count("GetComputeRunningProcesses(") == 1, "processes are listed in one place"


def test_each_answer_is_shown_at_once_and_whole(monkeypatch):
    name = "nvmlDeviceGetCurrPcieLinkGeneration"
    abilities = [
        Ability(section="host", name="a", state="OK", found="x"),
        Ability(section="host", name="b", state="limited", found="f", why="w " * 40, fix="do this"),
        Ability(section="NVML", name=name, state="refused", why="x"),
        Ability(section="driver", name="NVIDIA driver", state="absent", why="none here"),
    ]

    def ask(*_):
        yield from abilities
        raise NotAsked("no process can be started")

    monkeypatch.setattr("infercanary.doctor.command.ask", ask)
    result = CliRunner(env={"COLUMNS": "60"}).invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 1
    assert "cannot run: no process can be started" in result.output
    lines = result.output.splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert words[:3] == ["", "host", "OK a: x"]
    assert words[3].startswith("limited b: f; w w")
    assert " ".join(words[4:6]).endswith("→ do this")
    assert words[6:-1] == ["", "NVML", f"refused {name}: x", "", "driver", "absent NVIDIA driver: none here"]
    assert max(map(len, lines[:-1])) <= 60


def test_json_follows_its_schema(monkeypatch):
    found = [Ability(section="host", name="clock source", state="OK", found="t\x1bsc", seconds=0.1)]
    monkeypatch.setattr("infercanary.doctor.command.ask", lambda table, machine: iter(found))
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert result.exit_code == 0
    printed = json.loads(result.output)
    stored = json.loads((ROOT / "docs/schemas/doctor.v1.json").read_text())
    assert stored == schema()
    validate(printed, stored)
    assert printed["counts"] == {"OK": 1, "limited": 0, "refused": 0, "absent": 0}
    assert printed["checks"][0]["found"] == "t?sc", "texts are printable"
    shown = CliRunner().invoke(cli, ["doctor"])
    assert shown.output.splitlines()[-1] == "1 checks: 1 OK, 0 limited, 0 refused, 0 absent"


def test_the_docs_have_every_section_and_state():
    page = (ROOT / "docs/doctor.md").read_text()
    for section in {each.section for each in checks()}:
        assert f"\n| {section} | " in page
    for state in ("OK", "limited", "refused", "absent"):
        assert f"\n| `{state}` | " in page


# Check, files, allowed CPUs, the kernel's error, state, and words of the result
HOSTS = """
host      | cores        | siblings | [0, 1, 2] | 0  | limited | 3 CPUs are allowed, on 3 cores.*siblings 4, 5 are not
host      | cores        | siblings | [0, 4]    | 0  | OK      | 2 CPUs are allowed, on 1 cores
host      | NUMA nodes   | nodes    | [4, 5]    | 0  | OK      | 2 on this host; .* may run on node1
host      | NUMA nodes   | nodes    | [3, 4]    | 0  | limited |
host      | clock source | clocks   | [0]       | 0  | limited | hpet: a reading takes 1400 ns.*available: hpet acpi_pm
container | perf events  | paranoid | [0]       | 1  | refused | paranoid is 4.*EPERM.*a seccomp|EPERM.*paranoid is 4
container | perf events  | paranoid | [0]       | 13 | refused | paranoid is 4
container | perf events  | paranoid | [0]       | 13 | refused | EACCES.*--cap-add PERFMON.*perf_event_paranoid=2
container | perf events  | paranoid | [0]       | 2  | limited | hardware counters do not
container | perf events  | paranoid | [0]       | 0  | OK      | its own instructions
container | perf events  | paranoid | [0]       | 0  | OK      | paranoid is 4
"""


@pytest.mark.parametrize(("section", "name", "files", "allowed", "error", "state", "words"), scenarios(HOSTS))
def test_results_of_checks_of_cpus_clocks_and_counters(
    section, name, files, allowed, error, state, words, tmp_path,
    monkeypatch
):  # fmt: skip
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(json.loads(allowed)))
    monkeypatch.setattr(host, "_reading_ns", lambda: 1400.0)
    monkeypatch.setattr("infercanary.doctor.container._perf_error", lambda: int(error))
    says(answer(section, name, tmp_path, FILES[files]), state, words)
