"""A real host with cgroup v2: Debian 12 with systemd, kernel 6.1, Docker and Podman, under software emulation.

The host is ten to twenty times slower than this machine, so the tests check only behaviour. ``make campaign ARGS="-k
cgroup_v2"`` boots the host once, as root (`.ci/host`), and writes benchmarks/results/cgroup-v2.md.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def checked(command, seconds, **environment):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Boot the host, and return the JSON objects that the guest printed."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("making the host needs root on Debian 12")
    site = tmp_path_factory.mktemp("host") / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = site.with_name("wheels")
    checked([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), "."], SITE_SECONDS)
    [wheel] = wheels.glob("*.whl")
    checked(
        [*pip, "install", "--target", str(site), "--python-version", "3.11", "--only-binary", ":all:",
         "--constraint", "constraints.txt", f"{wheel}[exporter]"],
        SITE_SECONDS,
    )  # fmt: skip
    units = sorted(map(str, (ROOT / "deploy/systemd").glob("*.service")))
    host = [str(ROOT / ".ci/host"), "run", str(Path(__file__).with_name("guest.py")), str(site), *units]
    text = checked(host, VM_SECONDS + 300, HOST_SECONDS=str(VM_SECONDS))
    print(text)  # pytest shows this output if the test fails
    return [json.loads(line) for line in text.splitlines()]


def by_scenario(said):
    return {each["scenario"]: each for each in said if "scenario" in each}


def fits(name, before, ours, after):
    if before is None or ours is None or after is None:
        return False
    slack = 0.05 * max(before, after) if name in WANDERS else 1e-6
    return min(before, after) - slack <= ours <= max(before, after) + slack


def test_cgroup_v2(said):
    """One test checks everything: the campaign runs each test in a separate process, and a boot takes minutes."""
    assert [each for each in said if "failed" in each] == []
    found = by_scenario(said)
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
    for way in ("beside", "inside"):
        grown = found[f"together_{way}"]
        assert (grown["lives"], grown["kills"]) == (True, 0), grown
    update = found["update"]
    assert (update["quota"], update["cpuset"]) == (0.75, ["cpuset_info 1"])
    assert update["samples"] <= 2
    exposure = {name: value for name, value in found["exposure"].items() if name != "scenario"}
    assert len(exposure) == 2
    assert max(exposure.values()) < 3
    assert found["service"]["active"] == "active", "a config with a mistake must not end the exporter"
    assert found["podman"]["image"] == "bare:latest"
    lines.append(
        "\n## Beside\n\n"
        f"- `docker update --cpus 0.75 --cpuset-cpus 1` was seen after {update['samples']} sample(s).\n"
        "- `memory.oom.group` was set by hand, and a model grew while it loaded, beside the server and in its\n"
        "  process: the kernel ended nothing, the canary was `out_of_memory`, and the other one went on.\n"
        f"- `systemd-analyze security`: {', '.join(f'{name} {value}' for name, value in sorted(exposure.items()))}.\n"
        "- The exporter as that unit found a container through Docker, reloaded by SIGHUP, and went on with its old\n"
        "  config where the new one had a mistake.\n"
        "- An exporter at rootless Podman's socket, which listed once, saw by events that a container\n"
        "  stopped and started again.\n"
    )
    TABLE.write_text("".join(lines))
