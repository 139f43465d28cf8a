"""The real Compose stack, started once for all tests of this folder. Without Docker, pytest skips the tests."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from folders import NeedyFolder
from harness import (
    EXAMPLE,
    LABEL,
    PORTS,
    ROOT,
    background,
    build,
    eventually,
    remove_containers,
    replace_classify,
    started,
)
from ports import free_port
from registry import running

from images import slower

# Disable new vector instructions of torch and oneDNN. This halves the speed of some CPUs, but hardly slows
# others, so the model also waits.
SLOWER = f"FROM {EXAMPLE}\nENV ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX\n{slower(0.1)}\n"


def _missing():
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            if subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
                return f"`{' '.join(command)}` fails"
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return f"`{' '.join(command)}` does not run"
    return None


DOCKER = NeedyFolder(Path(__file__).parent, "stack", "the stack tests need Docker with Compose v2", _missing)


def pytest_configure(config):
    config.pluginmanager.register(DOCKER)


def pytest_sessionstart(session):
    """Remove the containers of a killed session before any process of this session starts containers."""
    if not (hasattr(session.config, "workerinput") or session.config.option.collectonly or DOCKER.missing()):
        remove_containers(LABEL)


def _impatient(folder):
    """Return additional keys of the services: rules in seconds instead of minutes, and a run each second."""
    rules = folder / "rules"
    shutil.copytree(ROOT / "prometheus/rules", rules)
    for file in rules.iterdir():
        text = re.sub(r"\[\d+m\]", "[45s]", re.sub(r"\binterval: 1m", "interval: 5s", file.read_text()))
        file.write_text(re.sub(r"\b(for|keep_firing_for): \d+m", r"\1: 5s", text))
    alertmanager = folder / "alertmanager.yml"
    text = (ROOT / "prometheus/alertmanager.yml").read_text()
    text = re.sub(r"group_wait: \w+", "group_wait: 1s", text)
    alertmanager.write_text(re.sub(r"group_interval: \w+", "group_interval: 5s", text))
    exporter = folder / "exporter.yaml"
    exporter.write_text((ROOT / "exporter/exporter.yaml").read_text() + "poll_seconds: 2\n")
    store = ["--store", "/var/lib/infercanary/judge.sqlite"]
    environment = {
        "PROBE_INTERVAL_SECONDS": "1",
        "PROBE_DUTY_CAP": "0.5",  # with a higher cap, the canaries would fill a machine with two cores
        "MALLOC_ARENA_MAX": "${TEST_ARENAS:-2}",
    }
    servers = ("classify", "moderate", "fleet-embed-1", "fleet-embed-2", "fleet-rank", "fleet-tag")
    return {
        "prometheus": {"volumes": [f"{rules}:/etc/prometheus/rules:ro"]},
        "alertmanager": {"volumes": [f"{alertmanager}:/etc/alertmanager/alertmanager.yml:ro"]},
        "exporter": {
            "command": ["--config", "/etc/infercanary/exporter.yaml", *store],
            "volumes": [f"{exporter}:/etc/infercanary/exporter.yaml:ro"],
        },
        **{name: {"environment": environment} for name in servers},
    }


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """Run the shipped stack with shorter times, once a session."""
    folder = tmp_path_factory.mktemp("stack")
    with started(folder, _impatient(folder)) as running:
        yield running


def _under_load(port):
    url = f"http://127.0.0.1:{port}/predict"
    load = (sys.executable, "examples/resnet18/load.py", "--url", url, "--seconds", "600", "--rate", "0.5")
    return background(*load, cwd=ROOT)


@pytest.fixture(scope="session")
def upgrade(stack):
    """Upgrade `classify` under load to an image that takes at least twice as long; return the Unix time of the
    upgrade.
    """
    build("infercanary-example:slower", SLOWER)
    stack.runs("classify", 26)  # a baseline with known noise
    with _under_load(PORTS["moderate"]):
        replace_classify("slower", 4)
        since = time.time()
        with _under_load(PORTS["classify"]):
            yield since


@pytest.fixture(scope="session")
def judged(stack, upgrade):
    regressed = {"service": "classify", "measure": "latency", "verdict": "regressed"}
    eventually("the verdict", 400, lambda: stack.value("infercanary_verdict", **regressed) == 1)
    stack.alert("InferCanaryImageRegressed", "classify")
    minute = 'sum_over_time(infercanary_verdict{service="classify", measure="latency", verdict="regressed"}[1m]) > 2'
    eventually("Prometheus has the verdict", 60, lambda: stack.query(minute))
    still = 'infercanary_verdict{service="classify", measure="latency", verdict="regressed"} == 1'
    measured = 'infercanary_shift_ratio{service="classify", measure="host_memory"}'
    eventually("the verdict on the memory", 120, lambda: stack.query(measured) and stack.query(still))
    return upgrade - 60, time.time()


@pytest.fixture
def registry(tmp_path):
    if shutil.which("docker-registry") is None:
        pytest.skip("needs Debian's docker-registry")
    address = f"127.0.0.1:{free_port()}"
    with running(tmp_path, address):
        yield address
