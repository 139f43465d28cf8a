"""Compose's profile `fleet`: two exporters of simulated hosts share a PostgreSQL, and each service has one judge."""

import json

import pytest
from harness import ROOT, Stack, compose, eventually, run

HOSTS = {"fleet-host-1": 9801, "fleet-host-2": 9802}
# Number of exporters that publish a service's verdict at the same time.
JUDGES = 'count by (service) (max by (service, instance) (infercanary_verdict{instance=~"fleet-.*"}))'


def publishers(service):
    return [
        host
        for host, port in HOSTS.items()
        if Stack(f"http://127.0.0.1:{port}").samples("infercanary_verdict", service=service)
    ]


@pytest.fixture(scope="module")
def fleet(stack):
    """Run `docker compose --profile fleet up` beside the stack, and remove its containers afterwards."""
    every = json.loads(compose("--profile", "fleet", "config", "--format", "json"))["services"]
    names = [name for name, service in every.items() if service.get("profiles") == ["fleet"]]
    try:
        compose("--profile", "fleet", "up", "--detach", "--no-build", "--wait", *names, seconds=240)
        yield
    except BaseException:
        print(compose("logs", "--tail", "40", *names))
        raise
    finally:
        compose("--profile", "fleet", "rm", "--force", "--stop", *names)


@pytest.mark.campaign  # tests/integration/fleet tests takeovers and stored runs; this test is for the Compose profile
@pytest.mark.usefixtures("fleet")
def test_each_service_has_one_judge(stack):
    for service, hosts in (
        ("rank", [["fleet-host-1"]]),
        ("tag", [["fleet-host-2"]]),
        ("embed", [[h] for h in HOSTS]),
    ):
        eventually(f"one publisher for {service}", 180, lambda of=service, one=hosts: publishers(of) in one)
    up = 'up{job="infercanary", instance=~"fleet-.*"} == 1'
    eventually(
        "both exporters are scraped", 90, lambda: {ls["instance"] for ls, _ in stack.query(up)} == {*HOSTS}
    )
    eventually("their verdicts are scraped", 60, lambda: len(stack.query(JUDGES)) == 3)

    secret = (ROOT / "examples/fleet/password").read_text().strip()
    names = [*HOSTS, "fleet-database"]
    shown = run("docker", "inspect", *compose("ps", "--quiet", *names).split()) + compose("logs", *names)
    assert "fleet-database" in shown
    assert secret not in shown
