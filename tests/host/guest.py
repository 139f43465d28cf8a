#!/usr/bin/env python3
"""Scenarios of tests/host on a host with cgroup v2. `.ci/host` runs this program as root; it prints JSON Lines.

Before and after each probe report, this program reads the kernel's files with its own code, and compares the
values.
"""

import functools
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import traceback
import urllib.request

HERE = pathlib.Path("/opt/in")
PROBES = pathlib.Path("/run/probes")
CGROUPS = pathlib.Path("/sys/fs/cgroup")
PREFIX = "infercanary_cgroup_"
RESOURCES = ("cpu", "io", "memory")
FILES = (
    "cgroup.controllers", "cgroup.events", "cpu.max", "cpu.pressure", "cpu.stat", "cpuset.cpus.effective",
    "io.pressure", "memory.current", "memory.events", "memory.events.local", "memory.max",
    "memory.pressure", "memory.stat",
)  # fmt: skip
CONFIG = """
canaries: {{work: {{target: "work:Work"}}}}
listen: unix://{socket}
interval_seconds: 1
duty_cap: 1
controls: false
profile: false
memory_reserve: 0
samplers: {{nvml: false}}
"""
WORK = """
from infercanary.probe.timing import HostClock
class Work:
    clock = HostClock()
    def open(self): pass
    def run(self, phase):
        with phase("compute"):
            return sum(range(1000))
    def values(self, result): return [float(result)]
    def environment(self): return {}
    def close(self): pass
"""
GROWING = """
import os, time
from work import Work as Small
class Work(Small):
    def open(self):
        while not os.path.exists("/run/probes/go"):
            time.sleep(0.1)
        loading = []
        for _ in range(150):
            loading.append(b"x" * (4 << 20))
            time.sleep(0.1)
        self.kept = loading
"""
SERVER = """
import logging, sys, time
logging.basicConfig(level="INFO")
if sys.argv[1:]:
    from infercanary.probe.config import read
    read(sys.argv[1]).start()
time.sleep(1e6)
"""
HOG = """
open("/proc/self/oom_score_adj", "w").write("1000")
kept = []
while True:
    kept.append(b"x" * (8 << 20))
"""
STATE = "{{.State.Running}} {{.State.Pid}} {{.State.StartedAt}}"
SLICE = "[Slice]\nMemoryMax=200M\nCPUQuota=30%\n"


def say(**fields):
    print(json.dumps(fields), flush=True)


def run(*command, check=True, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("probe", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def report(path, since=""):
    connection = Unix(path)
    try:
        connection.request("GET", f"/report?since={since}")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def ours(answer):
    found = {}
    for family in answer["families"]:
        if family["name"].startswith(PREFIX):
            for labels, value in family["points"]:
                found[" ".join((family["name"].removeprefix(PREFIX), *labels))] = value
    return found


def points(answer, name):
    return next(family["points"] for family in answer["families"] if family["name"] == name)


def until(condition, seconds=240, pause=0.3):
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except (OSError, http.client.HTTPException, ValueError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(pause)


def newer(path, begin):
    """Wait for a report with two runs after ``begin``, because the first run may have sampled before ``begin``."""

    def look():
        answer = report(path)
        return sum(each["started_at"] > begin for each in answer["runs"]) > 1 and answer

    return until(look)


def files(folder):
    return {name: (folder / name).read_text() for name in FILES if (folder / name).exists()}


def keyed(text):
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}


def kernel(text):
    """Convert the files of one cgroup to values with the names of the probe's metrics."""
    cpu, pages, events = keyed(text["cpu.stat"]), keyed(text["memory.stat"]), keyed(text["memory.events"])
    found = {
        "cpu_periods_total": cpu["nr_periods"],
        "cpu_throttled_periods_total": cpu["nr_throttled"],
        "cpu_throttled_seconds_total": cpu["throttled_usec"] / 1e6,
        "memory_working_set_bytes": int(text["memory.current"]) - pages["inactive_file"],
        "memory_limit_hits_total": events["max"],
        "oom_kills_total": events["oom_kill"],
        "major_page_faults_total": pages["pgmajfault"],
    }
    if text["memory.max"].strip() != "max":
        found["memory_limit_bytes"] = int(text["memory.max"])
    if cpus := text.get("cpuset.cpus.effective", "").strip():
        found["cpuset_cpus"] = sum(
            int(part.split("-")[-1]) - int(part.split("-")[0]) + 1 for part in cpus.split(",")
        )
        found[f"cpuset_info {cpus}"] = 1
    for kind, name in (("some", "waiting"), ("full", "stalled")):
        for resource in RESOURCES:
            if total := re.search(rf"^{kind} .*total=(\d+)", text.get(f"{resource}.pressure", ""), re.M):
                found[f"pressure_{name}_seconds_total {resource}"] = int(total[1]) / 1e6
    return found


def bound(own, above):
    """Combine a cgroup with its ancestors: the lowest limit applies, and throttled times are added."""
    found = dict(own)
    if given := [each["memory_limit_bytes"] for each in (own, *above) if "memory_limit_bytes" in each]:
        found["memory_limit_bytes"] = min(given)
    for name in ("cpu_periods_total", "cpu_throttled_periods_total", "cpu_throttled_seconds_total"):
        found[name] = sum(each[name] for each in (own, *above))
    return found


def launch(name, *options, command, engine=("docker",), image="bare", probes=PROBES):
    """Start Python in a container with the host's Python and infercanary as mounts."""
    run(
        *engine, "run", "--detach", "--name", name, *options,
        "-v", "/usr:/usr:ro", "-v", f"{HERE}:{HERE}:ro", "-v", f"{probes}:{probes}",
        "-e", f"PYTHONPATH={HERE}/site:{probes}", "-w", str(probes), image, "/usr/bin/python3", *command,
    )  # fmt: skip


class Probed:
    def __init__(self, name, *options, engine=("docker",), image="bare", probes=PROBES):
        self.name, self.engine = name, engine
        self.socket = probes / f"{name}.sock"
        (probes / f"{name}.yaml").write_text(CONFIG.format(socket=self.socket))
        (probes / "work.py").write_text(WORK)
        command = ("probe", "--config", str(probes / f"{name}.yaml"))
        launch(
            name, *options, command=("-m", "infercanary", *command), engine=engine, image=image, probes=probes
        )
        try:
            until(lambda: report(self.socket)["runs"])
        except TimeoutError:
            raise RuntimeError(run(*engine, "logs", name, check=False)) from None
        pid = run(*engine, "inspect", "--format", "{{ .State.Pid }}", name)
        self.path = pathlib.Path("/proc", pid, "cgroup").read_text().strip().removeprefix("0::")
        self.folder = CGROUPS / self.path.lstrip("/")

    def execute(self, *command):
        run(*self.engine, "exec", "--detach", self.name, *command)

    def busy(self):
        """Start processes that use up the CPU quota at a low priority (nice), so that the probe still runs."""
        for _ in range(2):
            self.execute("/usr/bin/nice", "-n", "19", "/usr/bin/sh", "-c", "while :; do :; done")

    def beside(self, above=()):
        read = lambda: bound(kernel(files(self.folder)), [ancestor(files(folder)) for folder in above])  # noqa: E731
        before, begin = read(), time.time()
        return {"before": before, "ours": ours(newer(self.socket, begin)), "after": read()}

    def remove(self):
        run(*self.engine, "rm", "--force", self.name, check=False)


def ancestor(text):
    """Convert the files of an ancestor cgroup, which may lack controllers."""
    empty = {"memory.stat": "inactive_file 0\npgmajfault 0", "memory.events": "max 0\noom_kill 0"}
    merged = {"memory.current": "0", "memory.max": "max", **empty, **text}
    merged["cpu.stat"] += "".join(
        f"{key} 0\n"
        for key in ("nr_periods", "nr_throttled", "throttled_usec")
        if key not in text["cpu.stat"]
    )
    return kernel(merged)


def is_up(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return re.search(rb"^infercanary_up{.*} 1", answer.read(), re.M)


def image():
    root = pathlib.Path("/run/bare")
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "run"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    run("tar", "--create", "--file", "/run/bare.tar", "--directory", root, ".")
    os.chmod("/run/bare.tar", 0o644)
    run("docker", "import", "/run/bare.tar", "bare")


def limits():
    probed = Probed("limits", "--cpus", "0.5", "--memory", "256m", "--cpuset-cpus", "0")
    probed.busy()
    until(lambda: keyed((probed.folder / "cpu.stat").read_text())["nr_throttled"] > 5)
    yield {"scenario": "private", "path": probed.path, **probed.beside()}

    run("docker", "update", "--cpus", "0.75", "--cpuset-cpus", "1", "limits")
    updated = time.time()

    def seen():
        answer = report(probed.socket)
        later = sum(each["started_at"] > updated for each in answer["runs"])
        [[_, granted]] = points(answer, "infercanary_process_granted_cpus")
        cpusets = [name for name in ours(answer) if "info" in name]
        if later >= 2 or (granted, cpusets) == (0.75, ["cpuset_info 1"]):
            return {"scenario": "update", "samples": later, "quota": granted, "cpuset": cpusets}
        return None

    yield until(seen)

    killed = kernel(files(probed.folder))["oom_kills_total"]
    probed.execute("/usr/bin/python3", "-c", HOG)
    until(lambda: kernel(files(probed.folder))["oom_kills_total"] > killed)
    yield {"scenario": "killed", "was": killed, **probed.beside()}
    probed.remove()


def nested():
    """Scenario: the host's cgroup namespace, and a parent slice with lower limits."""
    pathlib.Path("/run/systemd/system/tight.slice").write_text(SLICE)
    run("systemctl", "daemon-reload")
    probed = Probed(
        "nested", "--cgroup-parent", "tight.slice", "--cgroupns", "host", "--cpus", "0.5", "--memory", "256m"
    )
    probed.busy()
    above = [CGROUPS.joinpath(*parent.parts[1:]) for parent in pathlib.PurePosixPath(probed.path).parents][
        :-1
    ]
    until(lambda: keyed((above[0] / "cpu.stat").read_text())["nr_throttled"] > 5)
    yield {"scenario": "nested", "path": probed.path, **probed.beside(above)}
    probed.remove()
    hidden = Probed("hidden", "--cgroup-parent", "tight.slice", "--cpus", "0.5", "--memory", "256m")
    yield {"scenario": "hidden", **hidden.beside()}
    hidden.remove()


def together():
    """Scenario: a server survives a model that grows while it loads, with `memory.oom.group` as the kubelet sets it."""
    settings = CONFIG.replace("memory_reserve: 0\n", "").replace(
        "canaries: {{", 'canaries: {{grows: {{target: "growing:Work"}}, '
    )
    (PROBES / "work.py").write_text(WORK)
    (PROBES / "growing.py").write_text(GROWING)
    (PROBES / "server.py").write_text(SERVER)
    for way in ("beside", "inside"):
        name = f"together-{way}"
        socket, config, go = PROBES / f"{name}.sock", PROBES / f"{name}.yaml", PROBES / "go"
        go.unlink(missing_ok=True)
        config.write_text(settings.format(socket=socket))
        server = str(PROBES / "server.py")
        beside = ("-m", "infercanary", "beside", "--config", str(config), "--", "/usr/bin/python3", server)
        command = beside if way == "beside" else (server, str(config))
        launch(name, "--memory", "256m", "--memory-swap", "256m", command=command)

        state = functools.partial(run, "docker", "inspect", "--format", STATE, name)

        def named(socket=socket):
            answer = report(socket)
            states = points(answer, "infercanary_canary_state")
            ran = sum(each["canary"] == "work" and each["outcome"] == "ok" for each in answer["runs"])
            return [["grows", "out_of_memory"], 1] in states and ran > 2

        try:
            before = state()
            folder = CGROUPS / pathlib.Path("/proc", before.split()[1], "cgroup").read_text().strip()[4:]
            (folder / "memory.oom.group").write_text("1")
            until(functools.partial(report, socket))
            go.touch()
            until(named)
            kills = keyed((folder / "memory.events").read_text())["oom_kill"]
            found = {"scenario": f"together_{way}", "lives": state() == before, "kills": kills}
            run("docker", "exec", "--detach", name, "/usr/bin/python3", "-c", HOG)
            until(
                lambda state=state: state().startswith("false")
            )  # the kernel kills the whole group, so the setting is in effect
            yield found
        except TimeoutError:
            raise RuntimeError(run("sh", "-c", f"docker logs {name} 2>&1")) from None
        finally:
            run("docker", "rm", "--force", name, check=False)


def service():
    """Scenario: the exporter as the documented systemd unit: hardened, finds a container by Docker, reloads by
    SIGHUP.
    """
    program = pathlib.Path("/opt/infercanary/bin/infercanary")
    program.parent.mkdir(parents=True)
    shutil.copytree(HERE / "site", "/opt/infercanary/site")
    program.write_text(
        "#!/usr/bin/python3\nimport sys\nsys.path.insert(0, '/opt/infercanary/site')\n"
        "from infercanary.command.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    settings = pathlib.Path("/etc/infercanary/exporter.yaml")
    settings.parent.mkdir()
    settings.write_text("poll_seconds: 5\n")
    for unit in HERE.glob("*.service"):
        shutil.copy(unit, "/etc/systemd/system")
    run("systemctl", "daemon-reload")
    (PROBES / "found.yaml").write_text(CONFIG.format(socket="").replace("unix://", "0.0.0.0:9798"))
    command = ("-m", "infercanary", "probe", "--config", str(PROBES / "found.yaml"))
    launch("found", "--label", "infercanary.enable=true", command=command)
    run("systemctl", "start", "infercanary-exporter")

    journal = ("journalctl", "--no-pager", "-u", "infercanary-exporter")
    try:
        until(lambda: is_up("http://127.0.0.1:9797/metrics"))
        settings.write_text("poll_seconds: 4\n")
        run("systemctl", "reload", "infercanary-exporter")
        until(lambda: "config reloaded" in run(*journal), 60)
    except TimeoutError:
        raise RuntimeError(run(*journal, "-n", "30", check=False)) from None
    yield {
        "scenario": "service",
        "active": run("systemctl", "is-active", "infercanary-exporter", check=False),
    }
    run("systemctl", "stop", "infercanary-exporter")
    run("docker", "rm", "--force", "found", check=False)


def rootless():
    """Scenario: rootless Podman with a probe in a container."""
    run("useradd", "--create-home", "--shell", "/bin/bash", "anybody")
    run("loginctl", "enable-linger", "anybody")
    runtime = pathlib.Path("/run/user", run("id", "--user", "anybody"))
    until(lambda: (runtime / "bus").exists())
    probes = pathlib.Path("/home/anybody/probes")
    probes.mkdir()
    shutil.chown(probes, "anybody")
    engine = (
        "runuser", "--user", "anybody", "--", "env", f"XDG_RUNTIME_DIR={runtime}", "HOME=/home/anybody",
        f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus", "podman",
    )  # fmt: skip
    os.chdir("/home/anybody")
    run(*engine, "import", "/run/bare.tar", "bare")
    probed = Probed(
        "rootless", "--cpus", "0.5", "--memory", "256m", "--network", "none",
        "--label", "infercanary.enable=true", "--label", f"infercanary.socket=unix://{probes}/rootless.sock",
        engine=engine, image="localhost/bare:latest", probes=probes,
    )  # fmt: skip
    yield {"scenario": "rootless", "path": probed.path, **probed.beside()}
    probed.remove()


def main():
    say(
        kernel=run("uname", "-r"),
        docker=run("docker", "info", "--format", "{{ .CgroupVersion }} {{ .CgroupDriver }}"),
    )
    PROBES.mkdir()
    image()
    failed = 0
    for scenario in (limits, nested, together, service, rootless):
        if sys.argv[1:] and scenario.__name__ not in sys.argv[1:]:
            continue
        begin = time.monotonic()
        try:
            for found in scenario():
                say(**found)
        except Exception:
            failed += 1
            say(failed=scenario.__name__, error=traceback.format_exc()[-3000:])
        say(took=scenario.__name__, seconds=round(time.monotonic() - begin))
    return failed


if __name__ == "__main__":
    sys.exit(main())
