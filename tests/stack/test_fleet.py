"""Compose's profile `fleet`: two exporters of simulated hosts share a PostgreSQL, and each service has one judge."""

import json
import operator

import pytest
from harness import ROOT, Stack, compose, eventually, run

HOSTS = {"fleet-host-1": 9801, "fleet-host-2": 9802}
# First run, last run and number of stored runs of each start.
RUNS = "SELECT min(sequence), max(sequence), count(*) FROM sample GROUP BY series ORDER BY series"
# Number of exporters that publish a service's verdict at the same time.
JUDGES = 'count by (service) (max by (service, instance) (infercanary_verdict{instance=~"fleet-.*"}))'


class Fleet:
    """Exporters of the profile, and their database."""

    def publishers(self, service):
        """Return the hosts whose exporter publishes the service's verdict."""
        found = []
        for host, port in HOSTS.items():
            try:
                if Stack(f"http://127.0.0.1:{port}").samples("infercanary_verdict", service=service):
                    found.append(host)
            except OSError:  # this exporter was killed
                continue
        return found

    def runs(self):
        """Return the rows of :data:`RUNS`."""
        printed = compose("exec", "-T", "fleet-database", "psql", "-U", "infercanary", "-Atc", RUNS)
        return [[*map(int, line.split("|"))] for line in printed.splitlines()]


@pytest.fixture(scope="module")
def fleet(stack):
    """Run `docker compose --profile fleet up` beside the stack, and remove its containers afterwards."""
    every = json.loads(compose("--profile", "fleet", "config", "--format", "json"))["services"]
    names = [name for name, service in every.items() if service.get("profiles") == ["fleet"]]
    try:
        compose("--profile", "fleet", "up", "--detach", "--no-build", "--wait", *names, seconds=240)
        yield Fleet()
    except BaseException:
        print(compose("logs", "--tail", "40", *names))
        raise
    finally:
        compose("--profile", "fleet", "rm", "--force", "--stop", *names)


@pytest.mark.campaign  # tests/integration/fleet has these cases with processes; this test is for the Compose profile
def test_each_service_has_one_judge_and_another_takes_over(stack, fleet):
    eventually(
        "one publisher for the first host's service",
        180,
        lambda: fleet.publishers("rank") == ["fleet-host-1"],
    )
    eventually(
        "one publisher for the second host's service",
        180,
        lambda: fleet.publishers("tag") == ["fleet-host-2"],
    )
    eventually(
        "one publisher for the service on both hosts", 120, lambda: len(fleet.publishers("embed")) == 1
    )
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

    [judge] = fleet.publishers("embed")
    [other] = HOSTS.keys() - {judge}
    compose("kill", judge)
    # The lease ends after 20 s, and an exporter renews every 5 s. The rest of the time is for a slow machine.
    eventually("the other exporter judges", 60, lambda: fleet.publishers("embed") == [other])
    series = f'infercanary_verdict{{service="embed", instance="{other}"}}'
    eventually("the verdict continues in Prometheus", 30, lambda: stack.query(series))

    compose("--profile", "fleet", "up", "--detach", "--no-build", "--no-deps", "--wait", judge)
    before = fleet.runs()
    eventually("more runs of each start are stored", 90, lambda: all(map(operator.lt, before, fleet.runs())))
    runs = fleet.runs()
    assert len(runs) == 4, "one start for each container, although two exporters store"
    assert all(stored == last - first + 1 for first, last, stored in runs), f"a run is missing: {runs}"
    at_once = stack.query(f"max_over_time({JUDGES}[5m:1s])")
    assert {labels["service"]: most for labels, most in at_once} == {"embed": 1, "rank": 1, "tag": 1}
