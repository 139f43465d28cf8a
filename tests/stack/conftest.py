"""The Compose stack, really started, once for all tests of this folder. Skipped, in one line, without Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from folders import NeedyFolder
from harness import (
    ENVIRONMENT,
    EXAMPLE,
    LABEL,
    PORTS,
    ROOT,
    SECRET,
    Stack,
    build,
    compose,
    eventually,
    get,
    make_images,
    remove_containers,
    replace_classify,
    services,
    webhook,
)
from ports import free_port

from images import slower

# Without the CPU's newer vector instructions for torch and oneDNN. That halves the speed of some CPUs, and costs others
# next to nothing: so it waits as well.
SLOWER = f"FROM {EXAMPLE}\nENV ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX\n{slower(0.05)}\n"


def _missing() -> str | None:
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            if subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
                return f"`{' '.join(command)}` fails"
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return f"`{' '.join(command)}` does not run"
    return None


DOCKER = NeedyFolder(Path(__file__).parent, "stack", "the stack tests need Docker with Compose v2", _missing)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DOCKER)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove what a session that was killed left, before any process of this one starts something."""
    if not (hasattr(session.config, "workerinput") or session.config.option.collectonly or DOCKER.missing()):
        remove_containers(LABEL)


def _impatient(folder: Path) -> Path:
    """A Compose file beside the shipped one: seconds for minutes in copies of the rules, a run a second, a webhook."""
    rules = folder / "rules"
    shutil.copytree(ROOT / "prometheus/rules", rules)
    for file in rules.iterdir():
        text = re.sub(r"\[\d+m\]", "[45s]", re.sub(r"\binterval: 1m", "interval: 5s", file.read_text()))
        file.write_text(re.sub(r"\b(for|keep_firing_for): \d+m", r"\1: 5s", text))
    alertmanager = folder / "alertmanager.yml"
    text = (ROOT / "prometheus/alertmanager.yml").read_text()
    text = re.sub(r"group_wait: \w+", "group_wait: 1s", text)
    alertmanager.write_text(re.sub(r"group_interval: \w+", "group_interval: 5s", text))
    hurried = "poll_seconds: 2\n"
    (folder / "exporter.yaml").write_text((ROOT / "exporter/exporter.yaml").read_text() + hurried)
    (folder / "webhook-url").write_text(f"http://alert-webhook:8080/{SECRET}\n")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    store = ["--store", "/var/lib/infercanary/judge.sqlite"]
    environment = {
        "PROBE_INTERVAL_SECONDS": "1",
        "PROBE_DUTY_CAP": "0.5",  # more would fill a machine of two cores with canaries
        "MALLOC_ARENA_MAX": "${TEST_ARENAS:-2}",
    }
    services = {
        "prometheus": {"volumes": [f"{rules}:/etc/prometheus/rules:ro"]},
        "alertmanager": {"volumes": [f"{alertmanager}:/etc/alertmanager/alertmanager.yml:ro"]},
        "exporter": {
            "command": ["--config", "/etc/infercanary/exporter.yaml", *store],
            "volumes": [f"{folder / 'exporter.yaml'}:/etc/infercanary/exporter.yaml:ro"],
        },
        "classify": {"environment": environment},
        "moderate": {"environment": environment},
        **{f"fleet-{name}": {"environment": environment} for name in ("embed-1", "embed-2", "rank", "tag")},
        "alert-webhook": webhook(),
    }
    override = folder / "compose.yml"
    override.write_text(yaml.safe_dump({"services": services}))
    return override


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`docker compose up`, once a session; gone afterwards, with its volumes and networks.

    The shipped file but for its patience, and with a webhook that keeps what it receives.
    """
    folder = tmp_path_factory.mktemp("stack")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)  # containers read in there as other users
    compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "2")
    ENVIRONMENT["COMPOSE_FILE"] = os.pathsep.join(map(str, (ROOT / "docker-compose.yml", _impatient(folder))))
    ENVIRONMENT["ALERT_WEBHOOK_URL_FILE"] = str(folder / "webhook-url")
    try:
        make_images()
        compose("up", "--detach", "--wait", "--wait-timeout", "180", *services(), seconds=240)
        yield Stack()
    except BaseException:
        print(compose("logs", "--tail", "40"))
        raise
    finally:
        remove_containers()
        compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "2")
        del ENVIRONMENT["COMPOSE_FILE"], ENVIRONMENT["ALERT_WEBHOOK_URL_FILE"]


@contextmanager
def _under_load(port: int) -> Iterator[None]:
    """A request every two seconds to the service at this port, meanwhile."""
    url = f"http://127.0.0.1:{port}/predict"
    process = subprocess.Popen(
        [sys.executable, "examples/resnet18/load.py", "--url", url, "--seconds", "600", "--rate", "0.5"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="session")
def upgrade(stack: Stack) -> Iterator[float]:
    """`classify` gets an image that is half as fast, or slower, under load; since when (Unix time)."""
    build("infercanary-example:slower", SLOWER)
    for service in PORTS:
        stack.runs(service, 26)  # a baseline whose noise is known
    with _under_load(PORTS["moderate"]):
        replace_classify("slower", 4)
        since = time.time()
        with _under_load(PORTS["classify"]):
            yield since


@pytest.fixture(scope="session")
def judged(stack: Stack, upgrade: float) -> tuple[float, float]:
    """Times before and after the upgrade, its verdict and its alert."""
    regressed = {"service": "classify", "measure": "latency", "verdict": "regressed"}
    eventually("the verdict", 400, lambda: stack.value("infercanary_verdict", **regressed) == 1)
    stack.alert("InferCanaryImageRegressed", "classify")
    minute = 'sum_over_time(infercanary_verdict{service="classify", measure="latency", verdict="regressed"}[1m]) > 2'
    eventually("Prometheus has it", 60, lambda: stack.query(minute))
    measured = 'infercanary_shift_ratio{service="classify", measure="host_memory"}'
    eventually("and that of the memory", 60, lambda: stack.query(measured))
    return upgrade - 60, time.time()


@pytest.fixture
def registry(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A real image registry on loopback (Debian's docker-registry), which Docker trusts there without TLS.

    With the parameter "users" it asks for a name and a password.
    """
    binary = shutil.which("docker-registry")
    if binary is None:
        pytest.skip("needs Debian's docker-registry")
    address = f"127.0.0.1:{free_port()}"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'data'}}}}}\nhttp: {{addr: {address}}}\n"
    )
    if has_users := getattr(request, "param", "") == "users":
        with config.open("a") as file:
            file.write(f"auth: {{htpasswd: {{realm: test, path: {tmp_path / 'users'}}}}}\n")
    server = subprocess.Popen(
        [binary, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        path = "" if has_users else "v2/"  # without a name it refuses all but its root
        eventually("the registry answers", 20, lambda: get(f"http://{address}/{path}") is not None)
        yield address
    finally:
        server.terminate()
        server.wait(10)
