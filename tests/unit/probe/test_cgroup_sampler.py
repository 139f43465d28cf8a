"""The sampler of the container's cgroup, on trees of files of both versions and on this process's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup import CgroupSampler, ContainerCpu, granted_cpus, limits


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def found(root: Path, proc: Path) -> dict[str, float]:
    """The name's distinctive part → value; with the label's value after a space, where there is one."""
    values = {}
    for family in CgroupSampler(root, proc).sample():
        assert family.points
        for point in family.points:
            assert isinstance(point.value, float)
            name = family.name.removeprefix("infercanary_cgroup_").removesuffix("_total")
            values[" ".join((name, *point.labels))] = point.value
    return values


def below(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {folder + name: text for name, text in files.items()}


# In the format of Linux 6.12; of memory.stat and memory.events some lines.
V2 = {
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cpu.max": "150000 100000\n",
    "cpu.stat": "usage_usec 900\nuser_usec 500\nnr_periods 40\nnr_throttled 7\nthrottled_usec 2500000\n",
    "cpuset.cpus.effective": "0-3,8\n",
    "memory.current": "1048576\n",
    "memory.max": "2097152\n",
    "memory.stat": "anon 500000\nfile 500000\ninactive_file 48576\nactive_file 2\npgfault 900\npgmajfault 12\n",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n",
    "cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=3000000\n"
    "full avg10=1.00 avg60=0.00 avg300=0.00 total=2000000\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=125000\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}
SAME_ON_BOTH = {
    "cpu_periods": 40,
    "cpu_throttled_periods": 7,
    "cpu_throttled_seconds": 2.5,
    "cpuset_cpus": 5,
    "cpuset_info 0-3,8": 1,
    "memory_working_set_bytes": 1000000,
    "memory_limit_bytes": 2097152,
    "memory_limit_hits": 3,
    "oom_kills": 1,
    "major_page_faults": 12,
}
FOUND_V2 = SAME_ON_BOTH | {
    "pressure_waiting_seconds cpu": 3.0,
    "pressure_waiting_seconds io": 0.25,
    "pressure_waiting_seconds memory": 0.0,
    "pressure_stalled_seconds cpu": 2.0,
    "pressure_stalled_seconds io": 0.125,
    "pressure_stalled_seconds memory": 0.0,
}


@pytest.mark.parametrize(
    ("own", "folder"),
    [
        ("0::/\n", ""),  # a private cgroup namespace, Docker's default
        ("0::/system.slice/docker-abc.scope\n", "system.slice/docker-abc.scope/"),  # the host's namespace
        ("0::/system.slice/docker-abc.scope\n", ""),  # the host's path, and only the own cgroup mounted
        ("0::/../../elsewhere\n", ""),  # moved out of its namespace
    ],
)
def test_v2(tmp_path: Path, own: str, folder: str) -> None:
    root = tmp_path / "a" / "b"
    tree(root, {"cgroup.controllers": "cpu memory\n", **below(folder, V2)})
    tree(tmp_path, {"proc/cgroup": own, "elsewhere/cpu.max": "1 100\n"})
    assert found(root, tmp_path / "proc") == FOUND_V2
    assert granted_cpus(root, tmp_path / "proc") == 1.5
    given = limits(root, tmp_path / "proc")
    assert given == {"cpu_quota": "1.5", "cpuset_cpus": "5", "memory_limit": "2 MiB"}


def test_v2_nested_the_tightest_limit_of_all_ancestors_binds_and_its_hits_count(tmp_path: Path) -> None:
    """A Kubernetes pod that is tighter in CPU, and a slice that is tighter in memory."""
    pod = "kubepods.slice/pod1.slice/"
    tree(
        tmp_path,
        {
            "cgroup.controllers": "cpu memory\n",
            "proc/cgroup": f"0::/{pod}app.scope\n",
            "kubepods.slice/cpu.max": "max 100000\n",
            "kubepods.slice/memory.max": "1500000\n",
            "kubepods.slice/memory.current": "9999999\n",
            "kubepods.slice/memory.events": "max 90\noom_kill 80\n",  # of all below, us among them
            "kubepods.slice/memory.events.local": "max 5\noom_kill 4\n",
            "kubepods.slice/cpu.stat": "usage_usec 900\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "cpu.stat": "usage_usec 9000\n",
            f"{pod}cpu.max": "50000 100000\n",
            f"{pod}memory.max": "max\n",
            f"{pod}cpu.stat": "nr_periods 9\nnr_throttled 9\nthrottled_usec 500000\n",
            **below(f"{pod}app.scope/", V2),
            f"{pod}app.scope/memory.events.local": "max 2\n",  # in memory.events already
        },
    )
    nested = {
        "cpu_periods": 40 + 9,
        "cpu_throttled_periods": 7 + 9,
        "cpu_throttled_seconds": 2.5 + 0.5,
        "memory_limit_bytes": 1500000,
        "memory_limit_hits": 3 + 5,
    }
    assert found(tmp_path, tmp_path / "proc") == FOUND_V2 | nested
    assert granted_cpus(tmp_path, tmp_path / "proc") == 0.5


def test_v2_a_cgroup_without_controllers_is_counted_in_its_parent(tmp_path: Path) -> None:
    """A server that a supervisor in the container put into a cgroup of its own, with no controller enabled there."""
    tree(tmp_path, {"cgroup.controllers": "cpu memory\n", "proc/cgroup": "0::/server\n", **V2})
    server = {
        "cgroup.events": "populated 1\n",
        "cpu.stat": "usage_usec 900\n",
        "cpu.pressure": "some avg10=0 total=1000000\n",
    }
    tree(tmp_path, below("server/", server))
    tree(tmp_path, {"memory.events.local": "max 2\n"})  # of the cgroup whose memory.events stand for ours
    values = found(tmp_path, tmp_path / "proc")
    assert values == {k: v for k, v in FOUND_V2.items() if "pressure" not in k} | {
        "pressure_waiting_seconds cpu": 1.0
    }


def test_v2_without_limits_or_controllers(tmp_path: Path) -> None:
    tree(tmp_path, {"cgroup.controllers": "", "proc/cgroup": "0::/\n"})
    assert found(tmp_path, tmp_path / "proc") == {}
    assert granted_cpus(tmp_path, tmp_path / "proc") is None
    tree(
        tmp_path,
        {
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
            "memory.current": "4096\n",
            "cpu.stat": "usage_usec 900\n",
        },
    )
    assert found(tmp_path, tmp_path / "proc") == {}
    assert limits(tmp_path, tmp_path / "proc") == {"cpu_quota": "none", "memory_limit": "none"}


def test_the_hosts_root_has_no_cpu_time_of_a_container(tmp_path: Path) -> None:
    """Its time is everyone's; with no cgroup at all there is none either."""
    proc = tmp_path / "proc"
    assert ContainerCpu(tmp_path, proc).seconds() is None
    v2, v1 = tmp_path / "v2", tmp_path / "v1"
    tree(tmp_path, {"proc/cgroup": "0::/\n1:cpuacct:/\n"})
    tree(v2, {"cgroup.controllers": "cpu\n", "cpu.stat": "usage_usec 900\n"})
    tree(v1, {"cpuacct/cpuacct.usage": "900000\n", "cpuacct/release_agent": "\n"})
    assert [ContainerCpu(root, proc).seconds() for root in (v2, v1)] == [None, None]
    tree(v2, {"cgroup.events": "populated 1\n"})
    (v1 / "cpuacct/release_agent").unlink()
    assert [ContainerCpu(root, proc).seconds() for root in (v2, v1)] == [0.0009, 0.0009]


def test_the_memory_of_all_processes_is_of_a_container_of_its_own(tmp_path: Path) -> None:
    """Page cache that no process has mapped is not in it."""
    proc = tmp_path / "proc"
    assert ContainerCpu(tmp_path, proc).resident() is None
    v2, v1 = tmp_path / "v2", tmp_path / "v1"
    tree(tmp_path, {"proc/cgroup": "0::/a\n1:memory:/\n"})
    stat = "anon 500\nfile 90000\nfile_mapped 40\n"
    tree(
        v2,
        {
            "cgroup.controllers": "memory\n",
            "memory.current": "90540\n",
            "memory.stat": stat,
            "a/cgroup.events": "",
        },
    )
    stat = "rss 1\nmapped_file 2\ntotal_rss 500\ntotal_mapped_file 40\n"
    tree(v1, {"memory/memory.stat": stat, "memory/release_agent": "\n"})
    # Counted with others in a cgroup above; and the whole host's.
    assert [ContainerCpu(root, proc).resident() for root in (v2, v1)] == [None, None]
    tree(v2, {"a/memory.current": "540\n", "a/memory.stat": "anon 500\nfile_mapped 40\n"})
    (v1 / "memory/release_agent").unlink()
    assert [ContainerCpu(root, proc).resident() for root in (v2, v1)] == [540, 540]
    tree(v2, {"a/memory.stat": ""})
    assert ContainerCpu(v2, proc).resident() is None


@pytest.mark.parametrize("text", ["", None], ids=["switched off while open", "not built in, or psi=0"])
def test_v2_without_pressure(tmp_path: Path, text: str | None) -> None:
    """Reading also fails with EOPNOTSUPP, as it does with EISDIR here."""
    tree(tmp_path, {"cgroup.controllers": "cpu\n", "proc/cgroup": "0::/\n", **V2})
    for resource in ("cpu", "io", "memory"):
        file = tmp_path / f"{resource}.pressure"
        file.unlink()
        file.mkdir() if text is None else file.write_text(text)
    assert found(tmp_path, tmp_path / "proc") == {k: v for k, v in FOUND_V2.items() if "pressure" not in k}


def test_the_full_line_of_cpu_pressure_is_newer_than_the_others(tmp_path: Path) -> None:
    tree(tmp_path, {"cgroup.controllers": "", "proc/cgroup": "0::/\n"})
    tree(tmp_path, {"cpu.pressure": V2["cpu.pressure"].partition("\n")[0] + "\n"})  # Linux before 5.13
    assert found(tmp_path, tmp_path / "proc") == {"pressure_waiting_seconds cpu": 3.0}


V1 = {
    "cpuacct/x/cpuacct.usage": "900000\n",
    "cpu/x/cpu.cfs_quota_us": "150000\n",
    "cpu/x/cpu.cfs_period_us": "100000\n",
    "cpu/x/cpu.stat": "nr_periods 40\nnr_throttled 7\nthrottled_time 2500000000\n",
    "cpuset/x/cpuset.cpus": "0-3,8\n",
    "memory/x/memory.usage_in_bytes": "1048576\n",
    "memory/x/memory.limit_in_bytes": "2097152\n",
    "memory/x/memory.failcnt": "3\n",
    "memory/x/memory.stat": "pgmajfault 1\nhierarchical_memory_limit 9223372036854771712\n"
    "total_pgmajfault 12\ninactive_file 5\ntotal_inactive_file 48576\n",
    "memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "unified/x/cpu.pressure": V2["cpu.pressure"],  # the host's: v1 keeps none of a container
}
OWN_V1 = "12:cpuset:/x\n5:memory:/x\n4:cpu,cpuacct:/x\n1:name=systemd:/x\n0::/x\n"
FOUND_V1 = SAME_ON_BOTH


@pytest.mark.parametrize("inside", ["/x", ""], ids=["the host's path", "only the own cgroup mounted"])
def test_v1(tmp_path: Path, inside: str) -> None:
    tree(tmp_path, {name.replace("/x", inside): text for name, text in V1.items()})
    tree(tmp_path, {"proc/cgroup": OWN_V1})
    assert found(tmp_path, tmp_path / "proc") == FOUND_V1
    assert granted_cpus(tmp_path, tmp_path / "proc") == 1.5


def test_v1_a_hierarchy_of_two_controllers_without_links(tmp_path: Path) -> None:
    moved = {re.sub("^cpu(acct)?/", "cpu,cpuacct/", name): text for name, text in V1.items()}
    tree(tmp_path, moved | {"proc/cgroup": OWN_V1})
    proc = tmp_path / "proc"
    assert found(tmp_path, proc) == FOUND_V1
    assert limits(tmp_path, proc)["cpu_quota"] == "1.5"
    assert ContainerCpu(tmp_path, proc).seconds() == 0.0009


def test_v1_nested_the_tightest_limit_of_all_ancestors_binds(tmp_path: Path) -> None:
    nested = {name.replace("/x/", "/pod/x/"): text for name, text in V1.items()}
    tree(
        tmp_path,
        nested
        | {
            "proc/cgroup": OWN_V1.replace("/x", "/pod/x"),
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "cpu/pod/cpu.cfs_quota_us": "25000\n",
            "cpu/pod/cpu.cfs_period_us": "50000\n",
            "cpu/pod/cpu.stat": "nr_periods 9\nnr_throttled 9\nthrottled_time 500000000\n",
            "cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "memory/pod/memory.limit_in_bytes": "7\n",  # counts only where the kernel says that it does
            "memory/pod/x/memory.stat": V1["memory/x/memory.stat"].replace("9223372036854771712", "1500000"),
        },
    )
    limits = {
        "cpu_periods": 40 + 9,
        "cpu_throttled_periods": 7 + 9,
        "cpu_throttled_seconds": 2.5 + 0.5,
        "memory_limit_bytes": 1500000,
    }
    assert found(tmp_path, tmp_path / "proc") == FOUND_V1 | limits


def test_v1_without_limits(tmp_path: Path) -> None:
    unlimited = {
        "cpu/x/cpu.cfs_quota_us": "-1\n",
        "memory/x/memory.limit_in_bytes": "9223372036854771712\n",
    }
    tree(tmp_path, V1 | unlimited | {"proc/cgroup": OWN_V1})
    missing = "memory_limit_bytes"
    assert found(tmp_path, tmp_path / "proc") == {k: v for k, v in FOUND_V1.items() if k != missing}
    assert granted_cpus(tmp_path, tmp_path / "proc") == 5


def damaged(files: Iterable[str], content: bytes, root: Path) -> None:
    for name in files:
        (root / name).write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"\xff\xfe\x00",
        b"-",
        b"--5",
        b"some total=x\nfull total=\n",
        b"max max max\n1 2 3\n",
        b"nr_periods x\nthrottled_usec\n",
        b"9" * 5000,
        b"0-4294967295",
        b"3-\n",
        b"100000 0",
        b"100000 -1",
    ],
)
def test_garbage_leaves_metrics_out_and_never_fails(tmp_path: Path, content: bytes) -> None:
    """The own cgroup's files are damaged; that of the cpuset is well, and stays."""
    tree(tmp_path, {"v2/cgroup.controllers": "", "v2/proc/cgroup": "0::/\n", **below("v2/", V2)})
    tree(tmp_path, {"v1/proc/cgroup": OWN_V1, **below("v1/", V1)})
    cpuset = {"cpuset_cpus": 5.0, "cpuset_info 0-3,8": 1.0}
    for version, files in {"v2": V2, "v1": V1}.items():
        damaged([name for name in files if "cpuset" not in name], content, tmp_path / version)
        assert found(tmp_path / version, tmp_path / version / "proc") == cpuset
        assert granted_cpus(tmp_path / version, tmp_path / version / "proc") == 5


def test_a_cpuset_too_long_for_a_label_is_only_counted(tmp_path: Path) -> None:
    odd = ",".join(map(str, range(1, 256, 2)))
    tree(tmp_path, {"cgroup.controllers": "", "proc/cgroup": "0::/\n", "cpuset.cpus.effective": odd})
    assert found(tmp_path, tmp_path / "proc") == {"cpuset_cpus": 128}


@pytest.mark.parametrize("content", ["garbage", "3-", "0-4294967295", ""])
def test_a_damaged_cpuset_is_left_out(tmp_path: Path, content: str) -> None:
    tree(tmp_path, {"cgroup.controllers": "", "proc/cgroup": "0::/\n", "cpuset.cpus.effective": content})
    assert found(tmp_path, tmp_path / "proc") == {} and granted_cpus(tmp_path, tmp_path / "proc") is None


def test_no_cgroup_is_unavailable_and_not_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        list(CgroupSampler(tmp_path, tmp_path / "proc").sample())
    tree(tmp_path, {"proc/cgroup": "0::/\n"})
    with pytest.raises(Unavailable, match="no cgroup is mounted at"):
        list(CgroupSampler(tmp_path, tmp_path / "proc").sample())
    assert granted_cpus(tmp_path, tmp_path / "proc") is None


GOLDEN = Path(__file__).parents[2] / "golden/cgroup_v2"


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_files_of_a_real_host_say_what_another_reader_of_them_says(tmp_path: Path, name: str) -> None:
    """Debian 12, systemd, kernel 6.1; written by tests/host, which reads the same files by code of its own."""
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    root = tmp_path / "sys"
    for folder, files in recorded["files"].items():
        tree(root / folder, files)
    tree(tmp_path, {"proc/cgroup": recorded["own"] + "\n"})
    expected = {
        " ".join(key.replace("_total", "", 1).split()): value for key, value in recorded["values"].items()
    }
    assert found(root, tmp_path / "proc") == expected


def test_a_host_without_cgroups_has_none_of_it(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cgroup": "0::/\n"})
    with pytest.raises(Unavailable, match="no cgroup is mounted"):
        list(CgroupSampler(tmp_path / "none", tmp_path / "proc").sample())
    assert granted_cpus(tmp_path / "none", tmp_path / "proc") is None


@pytest.mark.parametrize("own", ["", "0::/\n", OWN_V1])
def test_limits_that_could_not_be_seen_are_unknown(tmp_path: Path, own: str) -> None:
    """What the process's list names need not be mounted where it runs, and no limit is another thing."""
    tree(tmp_path, {"proc/cgroup": own})
    root = tmp_path / "sys"
    assert limits(root, tmp_path / "proc") == {"cpu_quota": "unknown", "memory_limit": "unknown"}
    assert ContainerCpu(tmp_path / "none", tmp_path / "proc").seconds() is None


def test_a_kernel_without_psi_leaves_pressure_out_and_nothing_else(tmp_path: Path) -> None:
    without = {name: text for name, text in V2.items() if not name.endswith(".pressure")}
    tree(tmp_path / "sys", {"cgroup.controllers": "cpu memory\n", **without})
    tree(tmp_path, {"proc/cgroup": "0::/\n"})
    left = {name: value for name, value in FOUND_V2.items() if not name.startswith("pressure")}
    assert found(tmp_path / "sys", tmp_path / "proc") == left


def test_more_than_1024_cpus(tmp_path: Path) -> None:
    tree(tmp_path / "sys", {"cgroup.controllers": "cpu\n", **V2, "cpuset.cpus.effective": "0-1151,2000\n"})
    tree(tmp_path, {"proc/cgroup": "0::/\n"})
    seen = found(tmp_path / "sys", tmp_path / "proc")
    assert (seen["cpuset_cpus"], seen["cpuset_info 0-1151,2000"]) == (1153, 1)
