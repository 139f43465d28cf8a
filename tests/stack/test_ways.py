"""The ways to run a probe in docs/probe.md, each in a real container that the exporter finds through a real
Docker.

The Compose stack tests the first way, in the server's own process. These tests cover the others: beside the
server, and alone. Settings and commands are those of the page; only the device and the interval differ.
"""

import json
import subprocess

import pytest
import yaml
from harness import OWN_LABEL, PROJECT, ROOT, build, eventually, remove_containers, run

from tests.scenarios import cases

IMAGE = "infercanary-example:dev"
# Options of the Compose file for its inference services.
HARDENED = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp"),
    *("--pids-limit", "256", "--memory", "2g", "--cpus", "1", "--env", "OMP_NUM_THREADS=1"),
)
ENABLED = ("--label", "infercanary.enable=true")
ON_THE_NETWORK = ("--network", f"{PROJECT}_inference", *ENABLED)
ALONE = ("infercanary", "probe", "--config", "/app/probe.yaml")


@pytest.fixture
def start(stack):
    """Start containers on the stack's networks under short names; afterwards, print their logs and remove them."""
    started = []

    def begin(short, *options, image=IMAGE, command=()):
        name = f"{PROJECT}-{short}"
        run("docker", "create", "--name", name, "--label", OWN_LABEL, *options, image, *command)
        started.append(name)
        run("docker", "start", name)
        return name

    try:
        yield begin
    finally:
        for name in started:
            print(f"--- {name}\n{logs(name)}")
        remove_containers()


@pytest.fixture
def settings(tmp_path):
    """Write the page's probe.yaml with changes, and return the option that mounts it into the image's folder."""

    def write(**changes):
        [block] = [
            b
            for b in (ROOT / "docs/probe.md").read_text().split("```")
            if b.startswith("yaml\n# probe.yaml\n")
        ]
        config = yaml.safe_load(block.removeprefix("yaml\n"))
        config["canaries"]["resnet18"]["options"]["device"] = "cpu"
        path = tmp_path / "probe.yaml"
        path.write_text(yaml.safe_dump({**config, "interval_seconds": 1, "duty_cap": 0.5, **changes}))
        path.chmod(0o644)
        return f"--volume={path}:/app/probe.yaml:ro"

    return write


def logs(name):
    done = subprocess.run(
        ["docker", "logs", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    return done.stdout


def inspect(name):
    [found] = json.loads(run("docker", "inspect", name))
    return found


def runs_go_on(stack, name, image=IMAGE, canary="resnet18"):
    """Wait until the container is up and the exporter counts two more runs; return the container's labels."""
    eventually(f"{name} is up", 60, lambda: stack.value("infercanary_up", container=name) == 1)
    count = "infercanary_latency_seconds_count"
    first = eventually(f"a run of {name}", 60, lambda: stack.value(count, container=name) or 0.0)
    eventually(f"another run of {name}", 30, lambda: (stack.value(count, container=name) or 0) > first)
    [(info, _)] = stack.samples("infercanary_container_info", container=name)
    [(series, _)] = stack.samples(count, container=name)
    assert series == {"canary": canary, "container": name, "service": info["service"]}
    assert inspect(name)["Id"].startswith(info["container_id"])
    assert info["image"] == image
    return info


def stop(name):
    """Stop the container and return its exit code; 137 means that Docker killed it after 10 s."""
    run("docker", "stop", name)
    return inspect(name)["State"]["ExitCode"]


ANY = (ROOT / "docs/other-ways.md").read_text()
PLAIN = "python:3.11-slim-bookworm"


@pytest.fixture(scope="module")
def sidecar():
    tag = "infercanary-probe:dev"
    run("docker", "build", "--quiet", "--tag", tag, "--file", "probe/Dockerfile", ".", seconds=300)
    return tag


def block(begin):
    [found] = [b.partition("\n")[2] for b in ANY.split("```") if b.startswith(begin)]
    return found


def test_beside_in_an_image_that_knows_nothing_of_it(stack, start, settings, sidecar, tmp_path):
    """Uses the page's Dockerfile on a plain image, with an HTTP target for its server."""
    settings(canaries={"search": {"target": "http", "options": {"url": "http://127.0.0.1:8000/"}}})
    (tmp_path / "Dockerfile").write_text(block("dockerfile\n").replace("YOUR_IMAGE", PLAIN))
    tag = "infercanary-any-image:test"
    run("docker", "build", "--quiet", "--tag", tag, str(tmp_path), seconds=300)
    try:
        name = start("any-image", "--init", *ON_THE_NETWORK, image=tag)
        runs_go_on(stack, name, tag, "search")
        processes = run("docker", "top", name, "-o", "pid,args")
        for part in ("http.server", "infercanary beside", "probe --config"):
            assert part in processes, processes
        # SIGTERM ends http.server, as it does without a probe. 137 would mean that Docker killed it after 10
        # s.
        assert stop(name) == 143
    finally:
        run("docker", "rm", "--force", f"{PROJECT}-any-image")
        run("docker", "rmi", tag)


@cases([True, pytest.param(False, marks=pytest.mark.campaign)])
def test_alone_in_a_container_it_runs_hardened_and_ends_cleanly(init, stack, start, settings):
    """Without `--init`, the kernel ignores signals that process 1 does not handle itself."""
    options = ("--init",) if init else ()
    name = start("alone", *options, "--no-healthcheck", *HARDENED, *ON_THE_NETWORK, settings(), command=ALONE)
    assert runs_go_on(stack, name)["service"] == name
    assert run("docker", "exec", name, "id", "--user").strip() == "10001"
    assert stop(name) == 0
    assert "Traceback" not in logs(name)
    eventually(
        "the container has no series any more",
        20,
        lambda: not stack.samples("infercanary_up", container=name),
    )


def test_a_sidecar_and_the_upgrade_of_what_it_watches(stack, start, settings, sidecar):
    inside = ("--network", f"{PROJECT}_inference")
    serve = ("python", "-m", "http.server", "8000")
    agrees = ("--label", f"infercanary.watched-by={PROJECT}-search-probe")
    server = start("search", *inside, *agrees, image=PLAIN, command=serve)
    config = yaml.safe_load(block("yaml\n# probe.yaml"))
    config["canaries"]["search"]["options"]["url"] = f"http://{server}:8000/"
    mount = settings(canaries=config["canaries"])
    labels = ("--label", "infercanary.service=search", "--label", f"infercanary.watches={server}")
    hardened = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", "128m")
    name = start("search-probe", *ON_THE_NETWORK, *labels, *hardened, mount, image=sidecar)

    def identity(image):
        [(info, _)] = eventually(
            f"{name} has the image {image}",
            60,
            lambda: stack.samples("infercanary_container_info", container=name, image=image),
        )
        return info

    def counted():
        return stack.value("infercanary_runs_total", container=name, canary="search", outcome="ok") or 0.0

    info = identity(PLAIN)
    assert info["image_id"] == inspect(server)["Image"]
    assert inspect(name)["Config"]["User"] == "10003"
    eventually("a baseline", 60, lambda: counted() > 14)
    run("docker", "rm", "--force", server)
    eventually("the container is not polled", 20, lambda: stack.value("infercanary_up", container=name) == 0)
    tag = "infercanary-search:next"
    build(tag, f"FROM {PLAIN}\nENV NEXT=1\n")
    try:
        run(
            "docker", "run", "--detach", "--name", server, "--label", OWN_LABEL, *agrees, *inside, tag, *serve
        )
        assert identity(tag)["image_id"] != info["image_id"]
        eventually(
            "the judge has found an upgrade",
            90,
            lambda: stack.samples("infercanary_upgrade_timestamp_seconds", container=name),
        )
        [(upgrade, _)] = stack.samples("infercanary_upgrade_info", container=name)
        assert upgrade["baseline_image"].startswith(PLAIN)
        assert upgrade["candidate_image"].startswith(tag)
    finally:
        run("docker", "rm", "--force", server)
        run("docker", "rmi", tag)
