"""Canaries in real containers: a real Docker lists them, and a real Prometheus scrapes their metrics."""

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.request

import pytest
from harness import EXPORTER, PORTS, compose, eventually, get, run, services
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

P50 = (
    'histogram_quantile(0.5, sum by (le) (rate(infercanary_latency_seconds_bucket{service="classify"}[30s])))'
)


def test_both_services_are_up_with_their_identity(stack):
    eventually(
        "both probes are up",
        60,
        lambda: {labels["service"] for labels, up in stack.samples("infercanary_up") if up} == {*PORTS},
    )
    for service in PORTS:
        [(info, _)] = stack.samples("infercanary_container_info", service=service)
        name = stack.container(service)
        assert info["container"] == name
        assert info["image"] == "infercanary-example:dev"
        assert info["image_id"] == run("docker", "inspect", "--format", "{{.Image}}", name).strip()
        full_id = run("docker", "inspect", "--format", "{{.Id}}", name).strip()
        assert info["container_id"]
        assert full_id.startswith(info["container_id"])
        assert name in get(f"{EXPORTER}/").decode()
    assert get(f"{EXPORTER}/-/healthy")


@pytest.mark.campaign  # The test measures for seconds, and up to five times on a machine with other load.
@pytest.mark.quiet
def test_prometheus_sees_the_latency_that_a_client_measures(stack):
    """Canary and client agree within 10 %, or within the client's own spread (p90 over p50), over the same half
    minute.

    The load comes from the client, and the canary's repeats run between requests in the server's one-thread
    pool. A wrong clock, unit or bucket would be wrong in all five trials.
    """
    stack.runs("classify", 10)
    seen = []
    for _ in range(5):
        url = f"http://127.0.0.1:{PORTS['classify']}/predict"
        client = json.loads(
            run(sys.executable, "examples/resnet18/load.py", "--url", url, "--seconds", "30", "--rate", "2")
        )
        [(_, canary)] = stack.query(P50)
        seen.append((canary, client))
        spread = min(0.5, max(0.10, client["p90"] / client["p50"] - 1))
        if canary == pytest.approx(client["p50"], rel=spread):
            return
    raise AssertionError(f"(canary, client), in seconds: {seen}")


def test_the_whole_exposition_is_well_formed(stack):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not on PATH; it comes with Prometheus")
    eventually(
        "both canaries have run",
        120,
        lambda: (
            {labels["service"] for labels, _ in stack.samples("infercanary_latency_seconds_count")}
            == {*PORTS}
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


def test_every_service_is_hardened(stack):
    """The test inspects running services; in the Compose file, it also reads Grafana, which may not run here,
    and profiles.
    """
    containers = json.loads(run("docker", "inspect", *compose("ps", "--quiet").split()))
    assert len(containers) == len(services())
    for container in containers:
        name, host = container["Name"], container["HostConfig"]
        assert container["Config"]["User"].split(":")[0] not in ("", "0", "root"), name
        assert not host["Privileged"] and not host["CapAdd"], name
    every = json.loads(compose("--profile", "*", "config", "--format", "json"))["services"]
    assert {"grafana", "load-classify", "broken-upgrade"} <= every.keys()
    for name, service in every.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"], name
        assert int(service["logging"]["options"]["max-file"]) <= 3, name
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}, name
        ours = service["image"].startswith("infercanary-")  # their Dockerfiles set a user other than root
        assert ours or (service["user"].split(":")[0] != "0" and "latest" not in service["image"]), name


ASKS = """
import json, socket, sys
for method, path, headers in json.loads(sys.argv[1]):
    with socket.create_connection(("socket-proxy", 2375), timeout=10) as s:
        s.sendall(f"{method} {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: {headers}\\r\\n\\r\\n".encode())
        print(s.recv(99).split()[1].decode())
"""


def test_the_exporter_reaches_nothing_of_docker_but_its_lists(stack):
    """The requests come from the exporter's container, like those of an attacker who controls it."""
    name = stack.container("classify")
    allowed = [("GET", "/containers/json"), ("GET", "/version")]
    refused = [
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
    ]
    asked = [(*request, "close") for request in allowed + refused]
    asked.append(("GET", "/version", "Upgrade\r\nUpgrade: tcp"))
    printed = compose("exec", "-T", "exporter", "python", "-c", ASKS, json.dumps(asked))
    assert printed.split() == ["200"] * len(allowed) + ["403"] * (len(refused) + 1)
