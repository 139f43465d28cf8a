"""Canaries in real containers, found through a real Docker, seen by a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import EXPORTER, PORTS, Stack, compose, eventually, get, run, services
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

SERVICES = tuple(PORTS)
P50 = "histogram_quantile(0.5, sum by (service, le) (rate(infercanary_latency_seconds_bucket[30s])))"


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
    """Within 10 %, over the same half minute: a shared machine may be slower in the next.

    Where the client's own latencies lie further apart than that (its p90 over its p50), within as much: the canary and
    the client then met another machine each. The load is off the canary: its repeats take their turn in the server's
    one-thread pool, between requests. And it is paced, for the canary too comes to a CPU that did something else
    meanwhile: back to back an inference takes 10 to 20 % less here. Each service has up to five trials; a wrong clock,
    unit or bucket is wrong in all of them.
    """

    def client(service: str) -> dict[str, float]:
        # So seldom that no request waits for another one, however slow this machine is.
        median = stack.value("infercanary_run_median_seconds", service=service) or 1.0
        url = f"http://127.0.0.1:{PORTS[service]}/predict"
        rate = f"{min(4, 0.3 / median):.2f}"
        printed = run(
            sys.executable, "examples/resnet18/load.py", "--url", url, "--seconds", "30", "--rate", rate
        )
        measured: dict[str, float] = json.loads(printed)
        return measured

    for service in PORTS:
        stack.runs(service, 10)
    seen, agree = [], set()
    for _ in range(5):
        with ThreadPoolExecutor() as pool:
            clients = dict(zip(SERVICES, pool.map(client, SERVICES), strict=True))
        canaries = {labels["service"]: value for labels, value in stack.query(P50)}
        seen.append((canaries, clients))
        for service, measured in clients.items():
            apart = min(0.5, max(0.10, measured["p90"] / measured["p50"] - 1))
            if canaries[service] == pytest.approx(measured["p50"], rel=apart):
                agree.add(service)
        if agree == set(SERVICES):
            break
    else:
        raise AssertionError(f"(canaries, clients), in seconds: {seen}")
    print(seen)


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
        assert int(service["logging"]["options"]["max-file"]) <= 3, name
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
    upgraded = "import socket; s = socket.create_connection(('socket-proxy', 2375)); s.sendall(b'GET /version HTTP/1.1"
    upgraded += (
        r"\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n'); print(s.recv(99).split()[1].decode())"
    )
    assert compose("exec", "-T", "exporter", "python", "-c", upgraded).strip() == "403"
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
    with contextlib.closing(urllib.request.urlopen(f"{EXPORTER}/-/healthy", timeout=5)) as response:
        assert response.status == 200
