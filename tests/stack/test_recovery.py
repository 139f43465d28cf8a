"""Stopped, restarted or replaced parts recover without an effect on other parts, and each restart counts once."""

import os
import re
import shlex
import subprocess
import time

import pytest
from harness import EXPORTER, OWN_LABEL, PORTS, PROJECT, build, compose, eventually, get, remove, run


def test_removed_then_recreated_with_another_image(stack):
    service = "moderate"
    name, count = stack.container(service), "infercanary_latency_seconds_count"
    stack.runs(service, 20)  # enough runs that Prometheus notices the reset of the counter
    counted = stack.value(count, service=service) or 0.0
    [(before, _)] = stack.samples("infercanary_container_info", service=service)

    run("docker", "rm", "--force", name)
    eventually(
        "the container is not polled", 30, lambda: not stack.samples("infercanary_up", service=service)
    )

    def left():
        """Return the exporter's lines about the container. The lines of a verdict disappear at the next judgement."""
        text = get(f"{EXPORTER}/metrics").decode()
        return [line for line in text.splitlines() if f'container="{name}"' in line]

    try:
        eventually("the container's series are gone", 120, lambda: not left())
    finally:
        print(*left()[:20], sep="\n")
    assert stack.value("infercanary_up", service="classify") == 1

    build("infercanary-example:next", "FROM infercanary-example:dev\nENV UPGRADED=1\n")
    compose("up", "--detach", "--no-build", "--no-deps", "--wait", service, EXAMPLE_TAG="next")
    eventually("the container is up again", 30, lambda: stack.value("infercanary_up", service=service) == 1)
    [(after, _)] = stack.samples("infercanary_container_info", service=service)
    assert after["container"] == before["container"]
    assert after["image"] == "infercanary-example:next"
    assert after["image_id"] != before["image_id"]
    assert after["container_id"] != before["container_id"]
    # The probe's counters start at 0; for Prometheus, this is a reset of the same series.
    assert (stack.value(count, service=service) or 0) < counted
    resets = f'resets({count}{{container="{name}"}}[15m]) > 0'
    eventually("the series continues in Prometheus", 120, lambda: stack.query(resets))


@pytest.mark.campaign
def test_the_digest_of_a_pushed_image_is_shown_and_that_of_the_next(stack, registry):
    """The tag stays the same, so only the digest distinguishes the images.

    The image is the smallest one, because a push compresses all of it; it needs no probe.
    """
    name = f"{PROJECT}-pushed"
    small = run("docker", "inspect", "--format", "{{.Config.Image}}", stack.container("socket-proxy")).strip()
    reference = f"{registry}/infercanary-pushed:latest"

    def push(version):
        build(reference, f"FROM {small}\nENV VERSION={version}\n")
        run("docker", "push", reference)
        digests = run("docker", "inspect", "--format", "{{.RepoDigests}}", reference)
        [digest] = re.findall(rf"{registry}/infercanary-pushed@(sha256:[0-9a-f]{{64}})", digests)
        return str(digest)

    def start():
        remove(name)
        run(
            *("docker", "run", "--detach", "--name", name, "--label", OWN_LABEL, "--no-healthcheck"),
            *("--label", "infercanary.enable=true", "--network", "none", "--init", "--entrypoint", "sleep"),
            *(reference, "600"),
        )

    def shown(digest):
        found = stack.samples("infercanary_container_info", container=name)
        selector = f'{{container="{name}", image_digest="{digest}"}}'
        return [labels["image_digest"] for labels, _ in found] == [digest] and bool(
            stack.query(f"infercanary_container_info{selector}")
        )

    try:
        first = push(1)
        start()
        eventually("the first digest", 60, lambda: shown(first))
        second = push(2)
        assert second != first
        start()
        eventually("the next digest", 60, lambda: shown(second))
    finally:
        remove(name)
        run("docker", "rmi", "--force", reference)


# While the daemon is stopped, no other test can run.
@pytest.mark.quiet
def test_everything_comes_back_and_nothing_is_counted_twice(stack):
    def counts(report):
        families = report["families"]
        latency = next((f for f in families if f["name"] == "infercanary_latency_seconds"), None)
        return sum(sum(point[1][0]) for point in latency["points"]) if latency else 0

    before = counts(stack.probe_report("classify"))
    compose("restart", "--timeout", "5", "exporter", "prometheus")
    restart = os.environ.get("INFERCANARY_RESTART_DOCKER")
    if not restart:
        pytest.skip(
            "set INFERCANARY_RESTART_DOCKER to the command that restarts this machine's Docker daemon"
        )
    run(*shlex.split(restart), seconds=180)
    answers = ("docker", "info")
    eventually("Docker", 60, lambda: subprocess.run(answers, capture_output=True).returncode == 0)

    def exact():
        """Return True if the exporter's count is between two counts of the probe, read before and after it."""
        low = counts(stack.probe_report("classify"))
        shown = stack.value("infercanary_latency_seconds_count", service="classify")
        high = counts(stack.probe_report("classify"))
        return shown is not None and before <= shown <= high and shown >= low - 10

    eventually("the counts of exporter and probe agree", 90, exact)
    eventually("discovery works", 60, lambda: stack.value("infercanary_discovery_up") == 1)
    eventually(
        "Prometheus scrapes the exporter and both probes are up",
        90,
        lambda: (
            [v for _, v in stack.query('up{job="infercanary"}')] == [1.0]
            and {labels["service"] for labels, up in stack.query("infercanary_up") if up} == set(PORTS)
        ),
    )
    for service in PORTS:
        [(_, series)] = stack.query(f'count(infercanary_latency_seconds_count{{service="{service}"}})')
        assert series == 1
    # Over the restart, the increase in Prometheus is at most the probe's count since its start.
    [started] = stack.starts("classify")
    since = f"{time.time() - started:.0f}s"
    [(_, increase)] = stack.query(
        f'max(increase(infercanary_latency_seconds_count{{service="classify"}}[{since}]))'
    )
    assert increase <= counts(stack.probe_report("classify")) * 1.2 + 10
