"""A real host with cgroup v2: Debian 12 with systemd, kernel 6.1, Docker and Podman, under software emulation.

The host is ten to twenty times slower than this machine, so the tests check only behaviour. ``make campaign ARGS="-k
cgroup_v2"`` boots the host once, as root (`.ci/host`), and writes benchmarks/results/cgroup-v2.md.
"""

import datetime
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT, ended

TABLE = ROOT / "benchmarks/results/cgroup-v2.md"
HEAD = """# cgroup v2: the kernel's files beside our metrics

`make campaign ARGS="-k cgroup_v2"`, as root on Debian 12, boots Debian 12 with systemd, {kernel} and Docker with
its systemd driver (`.ci/host`). A probe runs in a container; the kernel's files are read on the host by code of the
test, before and after a report whose samples were all taken between the two. Counters lie between them; memory, which
goes up and down, is within 5 % of them. {day}.
"""
WANDERS = {"memory_working_set_bytes"}
SCENARIOS = {
    "private": "`docker run --cpus 0.5 --memory 256m --cpuset-cpus 0`, two others in it busy",
    "killed": "The same after `docker update --cpus 0.75 --cpuset-cpus 1`, and a process killed for memory",
    "nested": "`--cgroupns host --cpus 0.5 --memory 256m`, slice of `CPUQuota=30%`, `MemoryMax=200M`",
    "hidden": "The same in a private namespace: what is above is not visible in the container",
    "rootless": "Rootless Podman, `--cpus 0.5 --memory 256m`",
}
SITE_SECONDS, VM_SECONDS = 300, 1500

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("making the host needs root on Debian 12")
    site = tmp_path_factory.mktemp("host") / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = site.with_name("wheels")
    ended(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ".", cwd=ROOT, seconds=SITE_SECONDS)
    [wheel] = wheels.glob("*.whl")
    ended(
        *pip, "install", "--target", site, "--python-version", "3.11", "--only-binary", ":all:",
        "--constraint", "constraints.txt", f"{wheel}[exporter]", cwd=ROOT, seconds=SITE_SECONDS,
    )  # fmt: skip
    guest, units = Path(__file__).with_name("guest.py"), sorted((ROOT / "deploy/systemd").glob("*.service"))
    host = (ROOT / ".ci/host", "run", guest, site, *units)
    text = ended(*host, cwd=ROOT, env={"HOST_SECONDS": f"{VM_SECONDS}"}, seconds=VM_SECONDS + 300).stdout
    print(text)  # pytest shows this output if the test fails
    return [json.loads(line) for line in text.splitlines()]


def fits(name, before, ours, after):
    if None in (before, ours, after):
        return False
    slack = 0.05 * max(before, after) if name in WANDERS else 1e-6
    return min(before, after) - slack <= ours <= max(before, after) + slack


def test_cgroup_v2(said):
    """One test contains all checks: the campaign runs each test in a separate process, and a boot takes minutes."""
    assert [each for each in said if "failed" in each] == []
    found = {each["scenario"]: each for each in said if "scenario" in each}
    lines = [HEAD.format(kernel=f"kernel {said[0]['kernel']}", day=datetime.date.today().isoformat())]
    wrong = []
    for scenario, words in SCENARIOS.items():
        lines.append(
            f"\n## {scenario}\n\n{words}.\n\n| family | kernel before | ours | kernel after |\n|---|---:|---:|---:|\n"
        )
        sides = [found[scenario][key] for key in ("before", "ours", "after")]
        for name in sorted({name for side in sides for name in side}):
            values = [side.get(name) for side in sides]
            lines.append(f"| {name} | {' | '.join('–' if v is None else f'{v:.10g}' for v in values)} |\n")
            if not fits(name, *values):
                wrong.append((scenario, name, *values))
    assert wrong == []
    assert found["killed"]["ours"]["oom_kills_total"] == found["killed"]["was"] + 1
    assert found["private"]["ours"]["cpu_throttled_periods_total"] > 5
    assert found["private"]["ours"]["pressure_waiting_seconds_total cpu"] > 0
    assert found["nested"]["ours"]["memory_limit_bytes"] == 200 << 20
    for way in ("together_beside", "together_inside"):
        assert found[way] == {"scenario": way, "lives": True, "kills": 0}
    update = found["update"]
    assert (update["quota"], update["cpuset"], update["samples"] <= 2) == (0.75, ["cpuset_info 1"], True)
    assert found["service"]["active"] == "active"
    lines.append(
        "\n## Beside\n\n"
        f"- `docker update --cpus 0.75 --cpuset-cpus 1` was seen after {update['samples']} sample(s).\n"
        "- `memory.oom.group` was set by hand, and a model grew while it loaded, beside the server and in its\n"
        "  process: the kernel ended nothing, the canary was `out_of_memory`, and the other one went on.\n"
        "- The exporter as that unit found a container through Docker, and reloaded by SIGHUP.\n"
    )
    TABLE.write_text("".join(lines))
