"""The sampler of the container's cgroup, with folders of files for both cgroup versions."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from infercanary.probe.samplers import Unavailable, cgroup
from infercanary.probe.samplers.cgroup import CgroupSampler, ContainerCpu, granted_cpus, limits
from tests.kernel_files import parsed, tree


def moved(text, folder, to=""):
    """Move the files to another folder; ``to`` replaces `/x/` in their paths."""
    return "\n".join(folder + line.replace("/x/", to or "/x/", 1) for line in text.strip().splitlines())


def here(root, proc):
    return patch.multiple(cgroup, _ROOT=root, _PROC=proc)


def granted(root, proc):
    with here(root, proc):
        return granted_cpus()


def found(root, proc):
    """Return sorted names and values: a name without its prefix, then its labels after dots."""
    values = {}
    with here(root, proc):
        families = list(CgroupSampler().sample())
    for family in families:
        assert family.points
        for point in family.points:
            name = family.name.removeprefix("infercanary_cgroup_").removesuffix("_total")
            values[".".join((name, *point.labels))] = point.value
    return " ".join(sorted(f"{name}={value:g}" for name, value in values.items()))


def changed(text, changes="", without="nothing"):
    """Return values of :func:`found` with changes, and without names that contain a word."""
    values = dict(pair.split("=") for pair in f"{text} {changes}".split())
    return " ".join(sorted(f"{name}={value}" for name, value in values.items() if without not in name))


# Files in the format of Linux 6.12, with some lines of memory.stat and memory.events.
V2 = """
cgroup.events = populated 1; frozen 0
cpu.max = 150000 100000
cpu.stat = usage_usec 900; user_usec 500; nr_periods 40; nr_throttled 7; throttled_usec 2500000
cpuset.cpus.effective = 0-3,8
memory.current = 1048576
memory.max = 2097152
memory.stat = anon 500000; file 500000; inactive_file 48576; active_file 2; pgfault 900; pgmajfault 12
memory.events = low 0; high 0; max 3; oom 2; oom_kill 1; oom_group_kill 0
cpu.pressure = some avg10=1.50 avg60=0.00 avg300=0.00 total=3000000; full avg10=1.00 avg300=0.00 total=2000000
io.pressure = some avg10=0.00 avg60=0.00 avg300=0.00 total=250000; full avg10=0.00 avg300=0.00 total=125000
memory.pressure = some avg10=0.00 avg60=0.00 avg300=0.00 total=0; full avg10=0.00 avg300=0.00 total=0
"""
V1 = """
cpuacct/x/cpuacct.usage = 900000
cpu/x/cpu.cfs_quota_us = 150000
cpu/x/cpu.cfs_period_us = 100000
cpu/x/cpu.stat = nr_periods 40; nr_throttled 7; throttled_time 2500000000
cpuset/x/cpuset.cpus = 0-3,8
memory/x/memory.usage_in_bytes = 1048576
memory/x/memory.limit_in_bytes = 2097152
memory/x/memory.failcnt = 3
memory/x/memory.stat = pgmajfault 1; hierarchical_memory_limit 9223372036854771712; total_pgmajfault 12; \
inactive_file 5; total_inactive_file 48576
memory/x/memory.oom_control = oom_kill_disable 0; under_oom 0; oom_kill 1
unified/x/cpu.pressure = some avg10=1.50 avg60=0.00 avg300=0.00 total=3000000
"""  # the host's pressure, because v1 has none for a container
OWN_V1 = "12:cpuset:/x; 5:memory:/x; 4:cpu,cpuacct:/x; 1:name=systemd:/x; 0::/x"
BOTH = changed(
    "cpu_periods=40 cpu_throttled_periods=7 cpu_throttled_seconds=2.5 cpuset_cpus=5 cpuset_info.0-3,8=1 "
    "memory_working_set_bytes=1e+06 memory_limit_bytes=2.09715e+06 memory_limit_hits=3 oom_kills=1 major_page_faults=12"
)
FOUND_V2 = changed(
    BOTH, "pressure_waiting_seconds.cpu=3 pressure_waiting_seconds.io=0.25 pressure_waiting_seconds.memory=0 "
    "pressure_stalled_seconds.cpu=2 pressure_stalled_seconds.io=0.125 pressure_stalled_seconds.memory=0",
)  # fmt: skip
SCOPE, POD = "system.slice/docker-abc.scope", "kubepods.slice/pod1.slice/"
# A Kubernetes pod with a lower CPU limit, and a slice with a lower memory limit.
NESTED_V2 = f"""
kubepods.slice/cpu.max = max 100000
kubepods.slice/memory.max = 1500000
kubepods.slice/memory.current = 9999999
kubepods.slice/memory.events = max 90; oom_kill 80
kubepods.slice/memory.events.local = max 5; oom_kill 4
kubepods.slice/cpu.stat = usage_usec 900; nr_periods 0; nr_throttled 0; throttled_usec 0
cpu.stat = usage_usec 9000
{POD}cpu.max = 50000 100000
{POD}memory.max = max
{POD}cpu.stat = nr_periods 9; nr_throttled 9; throttled_usec 500000
{moved(V2, POD + "app.scope/")}
{POD}app.scope/memory.events.local = max 2
"""  # memory.events includes the last line; events.local has the slice's own events
NESTED_V1 = f"""
{moved(V1, "", "/pod/x/")}
cpu/cpu.cfs_quota_us = -1
cpu/cpu.cfs_period_us = 100000
cpu/pod/cpu.cfs_quota_us = 25000
cpu/pod/cpu.cfs_period_us = 50000
cpu/pod/cpu.stat = nr_periods 9; nr_throttled 9; throttled_time 500000000
cpu/cpu.stat = nr_periods 0; nr_throttled 0; throttled_time 0
memory/pod/memory.limit_in_bytes = 7
memory/pod/x/memory.stat = pgmajfault 1; hierarchical_memory_limit 1500000; total_pgmajfault 12; \
total_inactive_file 48576
"""  # an ancestor's limit applies only if the kernel reports it as hierarchical
TIGHTER = "cpu_periods=49 cpu_throttled_periods=16 cpu_throttled_seconds=3 memory_limit_bytes=1.5e+06"
# A supervisor in the container put the server into a separate cgroup without enabled controllers.
WITHOUT_CONTROLLERS = f"""
{V2}
server/cgroup.events = populated 1
server/cpu.stat = usage_usec 900
server/cpu.pressure = some avg10=0 total=1000000
memory.events.local = max 2
"""
NO_PSI = "\n".join(line for line in V2.splitlines() if "pressure" not in line)
LIMITED = "cpu_quota 1.5, memory_limit 2 MiB, cpuset_cpus 5"
UNLIMITED = "cpu_quota none, memory_limit none"
NO_LIMIT_V1 = "cpu/x/cpu.cfs_quota_us = -1\nmemory/x/memory.limit_in_bytes = 9223372036854771712"
# Own cgroup; files (of v2 if there are no folders of controllers); found values; granted CPUs; limits.
SCENARIOS = {
    "v2, a private namespace, Docker's default": ("0::/", V2, FOUND_V2, 1.5, LIMITED),
    "v2, the host's namespace": (f"0::/{SCOPE}", moved(V2, f"{SCOPE}/"), FOUND_V2, 1.5, LIMITED),
    "v2, the host's path, and only the own cgroup mounted": (f"0::/{SCOPE}", V2, FOUND_V2, 1.5, LIMITED),
    "v2, moved out of its namespace": ("0::/../../elsewhere", V2, FOUND_V2, 1.5, LIMITED),
    "v2, nested": (f"0::/{POD}app.scope", NESTED_V2, changed(FOUND_V2, f"{TIGHTER} memory_limit_hits=8"), 0.5, None),
    "v2, without controllers, is counted in its parent": (
        "0::/server", WITHOUT_CONTROLLERS, changed(BOTH, "pressure_waiting_seconds.cpu=1"), 1.5, None),
    "v2, nothing": ("0::/", "", "", None, UNLIMITED),
    "v2, no limits": (
        "0::/", "cpu.max = max 100000\nmemory.max = max\nmemory.current = 4096\ncpu.stat = usage_usec 900", "", None,
        UNLIMITED),
    "v2, no psi": ("0::/", NO_PSI, BOTH, 1.5, LIMITED),
    "v2, before Linux 5.13": (
        "0::/", "cpu.pressure = some total=3000000", "pressure_waiting_seconds.cpu=3", None, UNLIMITED),
    "v2, a cpuset too long for a label": (
        "0::/", f"cpuset.cpus.effective = {','.join(map(str, range(1, 256, 2)))}", "cpuset_cpus=128", 128, None),
    "v2, more than 1024 CPUs": (
        "0::/", "cpuset.cpus.effective = 0-1151,2000", "cpuset_cpus=1153 cpuset_info.0-1151,2000=1", 1153, None),
    "v1, the host's path": (OWN_V1, V1, BOTH, 1.5, None),
    "v1, only the own cgroup mounted": (OWN_V1, moved(V1, "", "/"), BOTH, 1.5, None),
    "v1, two controllers without links": (
        OWN_V1, V1.replace("cpuacct/x", "cpu,cpuacct/x").replace("cpu/x", "cpu,cpuacct/x"), BOTH, 1.5, LIMITED),
    "v1, nested": (OWN_V1.replace("/x", "/pod/x"), NESTED_V1, changed(BOTH, TIGHTER), 0.5, None),
    "v1, no limits": (OWN_V1, f"{V1}{NO_LIMIT_V1}", changed(BOTH, "", "memory_limit_bytes"), 5, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_found(tmp_path, name):
    own, files, expected, cpus, given = SCENARIOS[name]
    root, proc = tmp_path / "a/b", tmp_path / "proc"
    tree(proc, parsed(f"cgroup = {own}"))
    tree(tmp_path, {"elsewhere/cpu.max": "1 100\n"})
    tree(root, parsed(files) | ({"cgroup.controllers": "cpu memory\n"} if name.startswith("v2") else {}))
    assert (found(root, proc), granted(root, proc)) == (expected, cpus)
    if given is not None:
        assert ", ".join(f"{name} {limit}" for name, limit in limits(root, proc).items()) == given


def test_no_cgroup_is_unavailable_and_not_an_error(tmp_path):
    for files, why in (({}, "cannot be read"), ({"cgroup": "0::/\n"}, "no cgroup is mounted at")):
        tree(tmp_path / "proc", files)
        with pytest.raises(Unavailable, match=why):
            found(tmp_path / "sys", tmp_path / "proc")
    assert granted(tmp_path / "sys", tmp_path / "proc") is None


@pytest.mark.parametrize("own", ["", "0::/", OWN_V1])
def test_limits_that_could_not_be_seen_are_unknown(tmp_path, own):
    """A listed cgroup may not be mounted in this container. An unknown limit does not mean that there is no limit."""
    tree(tmp_path, {"proc/cgroup": own.replace("; ", "\n")})
    assert limits(tmp_path / "sys", tmp_path / "proc") == {"cpu_quota": "unknown", "memory_limit": "unknown"}
    with here(tmp_path / "none", tmp_path / "proc"):
        of_none = ContainerCpu()
    assert (of_none.seconds(), of_none.resident()) == (None, None)


# Own cgroup of v2, or files of v1; CPU seconds; memory of processes without page cache that no process maps.
# In the host's root, both belong to all processes. If only an ancestor counts memory, the value may include
# other containers.
CONTAINERS = [
    ("/", "cgroup.controllers = cpu\ncpu.stat = usage_usec 900\nmemory.stat = anon 500; file_mapped 40", None, None),
    ("/", "cpuacct/cpuacct.usage = 900000\ncpuacct/release_agent = \nmemory/memory.stat = total_rss 5\n"
     "memory/release_agent = ", None, None),
    ("/", "cgroup.controllers = cpu\ncgroup.events = populated 1\ncpu.stat = usage_usec 900\nmemory.current = 90540\n"
     "memory.stat = anon 500; file 90000; file_mapped 40", 0.0009, 540),
    ("/", "cpuacct/cpuacct.usage = 900000\nmemory/memory.stat = rss 1; mapped_file 2; total_rss 500; "
     "total_mapped_file 40", 0.0009, 540),
    ("/", "cgroup.controllers = cpu\ncgroup.events = populated 1\nmemory.current = 540\nmemory.stat = ", None, None),
    ("/a", "cgroup.controllers = memory\nmemory.current = 540\nmemory.stat = anon 5\na/cgroup.events = ", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("own", "files", "seconds", "resident"), CONTAINERS)
def test_cpu_time_and_memory_of_all_processes_of_a_container(tmp_path, own, files, seconds, resident):
    tree(tmp_path, parsed(f"proc/cgroup = 0::{own}; 1:cpuacct:/; 2:memory:/"))
    tree(tmp_path / "sys", parsed(files))
    with here(tmp_path / "sys", tmp_path / "proc"):
        container = ContainerCpu()
    assert (container.seconds(), container.resident()) == (seconds, resident)


GARBAGE = (
    b"garbage", b"\xff\xfe\x00", b"-", b"--5", b"some total=x\nfull total=\n", b"max max max\n1 2 3\n",
    b"nr_periods x\nthrottled_usec\n", b"9" * 5000, b"0-4294967295", b"3-\n", b"100000 0", b"100000 -1", b"", None,
)  # fmt: skip


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize(("own", "files"), [("0::/", V2), (OWN_V1, V1)])
@pytest.mark.parametrize("is_cpuset", [False, True])
def test_garbage_leaves_metrics_out_and_never_fails(tmp_path, content, own, files, is_cpuset):
    root, proc = tmp_path / "sys", tmp_path / "proc"
    tree(proc, parsed(f"cgroup = {own}"))
    tree(root, parsed(files) | ({"cgroup.controllers": ""} if files == V2 else {}))
    for name in parsed(files):
        if ("cpuset" in name) == is_cpuset and name != "cgroup.events":
            (root / name).unlink()
            (root / name).write_bytes(content) if content is not None else (root / name).mkdir()
    if is_cpuset:
        assert "cpuset" not in found(root, proc)
        assert "memory_limit_hits=3" in found(root, proc)
        assert granted(root, proc) == 1.5
    else:
        assert found(root, proc) == "cpuset_cpus=5 cpuset_info.0-3,8=1"
        assert granted(root, proc) == 5


GOLDEN = Path(__file__).parents[2] / "golden/cgroup_v2"


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_files_of_a_real_host_say_what_another_reader_of_them_says(tmp_path, name):
    """Files of Debian 12 with systemd and kernel 6.1, recorded by tests/host, which reads them with its own code."""
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    for folder, files in recorded["files"].items():
        tree(tmp_path / "sys" / folder, files)
    tree(tmp_path, {"proc/cgroup": recorded["own"] + "\n"})
    values = {
        ".".join(key.replace("_total", "", 1).split()): value for key, value in recorded["values"].items()
    }
    expected = " ".join(sorted(f"{name}={value:g}" for name, value in values.items()))
    assert found(tmp_path / "sys", tmp_path / "proc") == expected
