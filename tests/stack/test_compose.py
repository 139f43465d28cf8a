"""Canaries in real containers, found through a real Docker, seen by a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import EXPORTER, Stack, build, compose, eventually, get, run, services
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

SERVICES = ("classify", "moderate")
P50 = "histogram_quantile(0.5, sum by (service, le) (rate(infercanary_latency_seconds_bucket[1m])))"


def test_both_services_are_up_with_their_identity(stack: Stack) -> None:
    eventually(
        "both probes are up",
        60,
        lambda: {labels["service"] for labels, up in stack.samples("infercanary_up") if up} == set(SERVICES),
    )
    for service in SERVICES:
        [(info, _)] = stack.samples("infercanary_container_info", service=service)
        name = stack.container(service)
        assert info["container"] == name
        assert info["image"] == "infercanary-example:dev"
        assert info["image_id"] == run("docker", "inspect", "--format", "{{.Image}}", name).strip()
        full_id = run("docker", "inspect", "--format", "{{.Id}}", name).strip()
        assert info["container_id"] and full_id.startswith(info["container_id"])


@pytest.mark.quiet
def test_prometheus_sees_the_latency_that_a_client_measures(stack: Stack) -> None:
    """Within 10 %, over the same minute: a shared machine may be slower in the next.

    Where the client's own latencies lie further apart than that (its p90 over its p50), within as much: the canary and
    the client then met another machine each. The load is off the canary: its repeats take their turn in the server's
    one-thread pool, between requests. And it is paced, for the canary too comes to a CPU that did something else
    meanwhile: back to back an inference takes 10 to 20 % less here. Each service has up to four minutes; a wrong clock,
    unit or bucket is wrong in all of them.
    """

    def client(port: int) -> dict[str, float]:
        url = f"http://127.0.0.1:{port}/predict"
        printed = run(
            sys.executable, "examples/resnet18/load.py", "--url", url, "--seconds", "65", "--rate", "4"
        )
        told: dict[str, float] = json.loads(printed)
        return told

    seen, agree = [], set()
    for _ in range(4):
        with ThreadPoolExecutor() as pool:
            clients = dict(zip(SERVICES, pool.map(client, (8001, 8002)), strict=True))
        canaries = {labels["service"]: value for labels, value in stack.query(P50)}
        seen.append((canaries, clients))
        for service, told in clients.items():
            apart = min(0.5, max(0.10, told["p90"] / told["p50"] - 1))
            if canaries[service] == pytest.approx(told["p50"], rel=apart):
                agree.add(service)
        if agree == set(SERVICES):
            break
    else:
        raise AssertionError(f"(canaries, clients), in seconds: {seen}")
    print(seen)


def test_removed_then_recreated_with_another_image(stack: Stack) -> None:
    service = "moderate"
    name = stack.container(service)
    counted = stack.value("infercanary_latency_seconds_count", service=service)
    [(before, _)] = stack.samples("infercanary_container_info", service=service)
    assert counted

    run("docker", "rm", "--force", name)
    # Two polls of five seconds.
    eventually(
        "its series are gone",
        10,
        lambda: f'container="{name}"' not in get(f"{EXPORTER}/metrics").decode(),
    )
    assert stack.value("infercanary_up", service="classify") == 1

    build("infercanary-example:next", "FROM infercanary-example:dev\nENV UPGRADED=1\n")
    compose("up", "--detach", "--no-build", "--no-deps", "--wait", service, EXAMPLE_TAG="next")
    [(after, _)] = eventually(
        "it is found again",
        30,
        lambda: (
            stack.value("infercanary_up", service=service) == 1
            and stack.samples("infercanary_container_info", service=service)
        ),
    )
    assert after["container"] == before["container"]
    assert after["image"] == "infercanary-example:next"
    assert after["image_id"] != before["image_id"]
    assert after["container_id"] != before["container_id"]
    # The probe's counters started anew; to Prometheus it is the same series with a reset.
    assert (stack.value("infercanary_latency_seconds_count", service=service) or 0) < counted
    eventually(
        "the series goes on in Prometheus",
        120,
        lambda: [
            labels
            for labels, _ in stack.query(
                f'resets(infercanary_latency_seconds_count{{container="{name}"}}[15m]) > 0'
            )
            if labels["service"] == service
        ],
    )


def test_the_digest_of_a_pushed_image_is_shown_and_that_of_the_next(stack: Stack, registry: str) -> None:
    """The tag may stay the same: it is the digest that tells one image from the next."""
    service = "moderate"

    def push(image: str, tag: str) -> str:
        """The digest that the registry gives it."""
        reference = f"{registry}/infercanary-example:{tag}"
        run("docker", "tag", image, reference)
        pushed.append(reference)
        run("docker", "push", reference, seconds=300)
        digests = run("docker", "inspect", "--format", "{{.RepoDigests}}", reference)
        [digest] = re.findall(rf"{registry}/infercanary-example@(sha256:[0-9a-f]{{64}})", digests)
        return str(digest)

    def shown(digest: str) -> bool:
        """By the exporter, and to Prometheus."""
        found = stack.samples("infercanary_container_info", service=service)
        selector = f'{{service="{service}", image_digest="{digest}"}}'
        return [labels["image_digest"] for labels, _ in found] == [digest] and bool(
            stack.query(f"infercanary_container_info{selector}")
        )

    pushed: list[str] = []
    try:
        now = run("docker", "inspect", "--format", "{{.Image}}", stack.container(service)).strip()
        first = push(now, "now")
        eventually("the digest that the registry gave", 60, lambda: shown(first))

        build("infercanary-example:next", "FROM infercanary-example:dev\nENV UPGRADED=2\n")
        second = push("infercanary-example:next", "next")
        assert second != first
        up = ("up", "--detach", "--no-build", "--no-deps", "--force-recreate", "--wait", service)
        compose(*up, EXAMPLE_TAG="next")
        eventually("the next one's", 60, lambda: shown(second))
        eventually("it is up", 60, lambda: stack.value("infercanary_up", service=service) == 1)
    finally:
        for reference in pushed:
            run("docker", "rmi", reference)


def test_the_whole_exposition_is_well_formed(stack: Stack) -> None:
    """By promtool, and by the strict parser of OpenMetrics."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not on PATH; it comes with Prometheus")
    eventually(
        "both have run",
        120,
        lambda: (
            {labels["service"] for labels, _ in stack.samples("infercanary_latency_seconds_count")}
            == set(SERVICES)
        ),
    )
    url = f"{EXPORTER}/metrics"
    done = subprocess.run(["promtool", "check", "metrics"], input=get(url), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text"})
    with contextlib.closing(urllib.request.urlopen(asked, timeout=10)) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        families = {family.name for family in openmetrics(response.read().decode())}
    assert {"infercanary_latency_seconds", "infercanary_container_info"} <= families


def test_a_stopped_probe_costs_only_itself(stack: Stack) -> None:
    # The server itself: process 1 is Docker's init.
    code = """
import os, pathlib, signal, sys
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if (process / "cmdline").read_bytes() == b"python\\0server.py\\0":
        os.kill(int(process.name), signal.Signals[sys.argv[1]])
"""

    def send(signal: str) -> None:
        compose("exec", "-T", "classify", "python", "-c", code, signal)

    send("SIGSTOP")
    try:
        eventually("it is reported down", 20, lambda: stack.value("infercanary_up", service="classify") == 0)
        assert not stack.samples("infercanary_run_median_seconds", service="classify")
        took = []
        for _ in range(5):
            begin = time.monotonic()
            assert stack.value("infercanary_up", service="moderate") == 1
            took.append(time.monotonic() - begin)
            age = stack.value("infercanary_report_age_seconds", service="moderate")
            assert age is not None and age < 12
            time.sleep(1)
        assert statistics.median(took) < 1
    finally:
        send("SIGCONT")
    eventually("it is up again", 75, lambda: stack.value("infercanary_up", service="classify") == 1)


@pytest.mark.parametrize("what", ["exporter", "prometheus", "docker"])
def test_everything_comes_back_and_nothing_is_counted_twice(stack: Stack, what: str) -> None:
    def counts(report: dict[str, object]) -> float:
        families: list[dict[str, list[list[object]]]] = report["families"]  # type: ignore[assignment]
        latency = next((f for f in families if f["name"] == "infercanary_latency_seconds"), None)
        return sum(sum(point[1][0]) for point in latency["points"]) if latency else 0  # type: ignore[index,arg-type]

    before = counts(stack.probe_report("classify"))
    if what == "docker":
        restart = os.environ.get("INFERCANARY_RESTART_DOCKER")
        if not restart:
            pytest.skip(
                "set INFERCANARY_RESTART_DOCKER to the command that restarts this machine's Docker daemon"
            )
        run(*shlex.split(restart), seconds=180)
        eventually(
            "Docker answers",
            60,
            lambda: subprocess.run(["docker", "info"], capture_output=True).returncode == 0,
        )
    else:
        compose("restart", "--timeout", "5", what)

    def exact() -> bool:
        """Between two looks at the probe itself, the exporter's count lies between theirs."""
        low = counts(stack.probe_report("classify"))
        shown = stack.value("infercanary_latency_seconds_count", service="classify")
        high = counts(stack.probe_report("classify"))
        return shown is not None and before <= shown <= high and shown >= low - 10

    eventually("the exporter counts what the probe counts", 90, exact)
    eventually("discovery works", 60, lambda: stack.value("infercanary_discovery_up") == 1)
    eventually(
        "Prometheus scrapes the exporter and both probes are up",
        90,
        lambda: (
            [v for _, v in stack.query('up{job="infercanary"}')] == [1.0]
            and {labels["service"] for labels, up in stack.query("infercanary_up") if up} == set(SERVICES)
        ),
    )
    for service in SERVICES:
        [(_, series)] = stack.query(f'count(infercanary_latency_seconds_count{{service="{service}"}})')
        assert series == 1
    # Over the restart Prometheus saw no more than the probe did.
    [(_, increase)] = stack.query('max(increase(infercanary_latency_seconds_count{service="classify"}[10m]))')
    assert increase <= counts(stack.probe_report("classify")) * 1.2 + 10


def test_the_stack_is_hardened(stack: Stack) -> None:
    containers = json.loads(run("docker", "inspect", *compose("ps", "--quiet").split()))
    assert len(containers) == len(services())
    for container in containers:
        name, host = container["Name"], container["HostConfig"]
        assert container["Config"]["User"].split(":")[0] not in ("", "0", "root"), name
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert "no-new-privileges:true" in host["SecurityOpt"], name
        assert host["Memory"] > 0 and host["NanoCpus"] > 0 and host["PidsLimit"] > 0, name
        assert not host["Privileged"] and not host["CapAdd"], name
        bound = [b["HostIp"] for bindings in (host["PortBindings"] or {}).values() for b in bindings]
        assert set(bound) <= {"127.0.0.1"}, name


def test_every_service_is_meant_to_be_hardened() -> None:
    """What the file says, of Grafana too, which may not run here, and of the profiles."""
    every = json.loads(compose("--profile", "*", "config", "--format", "json"))["services"]
    assert {"grafana", "load-classify", "broken-upgrade"} <= every.keys()
    for name, service in every.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"], name
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}, name
        ours = service["image"].startswith("infercanary-")  # not root by their Dockerfiles
        assert ours or (service["user"].split(":")[0] != "0" and "latest" not in service["image"]), name


def test_the_exporter_reaches_nothing_of_docker_but_its_lists(stack: Stack) -> None:
    """Tried from inside the exporter's container, as someone who has taken it over would."""
    code = """
import sys, urllib.request, urllib.error
request = urllib.request.Request("http://socket-proxy:2375" + sys.argv[2], method=sys.argv[1])
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""

    def status(method: str, path: str) -> int:
        return int(compose("exec", "-T", "exporter", "python", "-c", code, method, path))

    name = stack.container("classify")
    assert status("GET", "/containers/json") == 200
    assert status("GET", "/version") == 200
    for method, path in [
        ("GET", f"/containers/{name}/json"),
        ("GET", f"/containers/json/../{name}/json"),
        ("GET", f"//containers/{name}/json"),
        ("GET", f"/containers/{name}/logs?stdout=1"),
        ("GET", f"/v1.41/containers/{name}/archive?path=/etc/passwd"),
        ("GET", "/info"),
        ("GET", "/secrets"),
        ("POST", "/containers/create"),
        ("POST", f"/containers/{name}/stop"),
        ("POST", "/containers/json"),
        ("DELETE", f"/containers/{name}"),
    ]:
        assert status(method, path) == 403, (method, path)


def test_the_status_page_shows_both(stack: Stack) -> None:
    page = eventually("the page", 10, lambda: get(f"{EXPORTER}/").decode())
    for service in SERVICES:
        assert stack.container(service) in page
    with contextlib.closing(urllib.request.urlopen(f"{EXPORTER}/-/ready", timeout=5)) as response:
        assert response.status == 200
