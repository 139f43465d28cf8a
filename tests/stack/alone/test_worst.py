"""The exporter in Compose's limits beside as many probes as it plans for, each of which reports all that it may, or
makes the judge find all that it can."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import OWN_LABEL, ROOT, compose, eventually, get, remove, run
from onlooker import Watch

from infercanary.exporter.limits import Totals

IMAGE = "infercanary-exporter:dev"
NAME = "infercanary-worst"
MEMORY = 512 << 20
FITTING = Totals.within(MEMORY).probes
BEYOND = 8
SECONDS = float(os.environ.get("WORST_SECONDS", "300"))
PEAK = r"sed -n 's/^VmHWM:\s*\([0-9]*\) kB/\1/p' /proc/[0-9]*/status | sort -n | tail -1"


@pytest.fixture
def exporter(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Its URL, beside probes of one kind; its store is a file on a volume of its own."""
    compose("build", "--quiet", "exporter", seconds=600)
    probes = [
        {"url": f"http://{NAME}-probes:{9800 + n}", "service": f"s{n}", "container": "c"}
        for n in range(FITTING + BEYOND)
    ]
    settings = {"discovery": "none", "store": "/var/lib/infercanary/judge.sqlite", "probes": probes}
    (tmp_path / "exporter.yaml").write_text(json.dumps(settings))
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        remove(NAME, f"{NAME}-probes")
        run("sh", "-c", f"docker network rm {NAME} 2>/dev/null || true")
        run("docker", "network", "create", "--label", OWN_LABEL, NAME)
        stack.callback(lambda: run("docker", "network", "rm", NAME))
        stack.callback(lambda: remove(NAME, f"{NAME}-probes"))
        common = ("docker", "run", "--detach", "--label", OWN_LABEL, "--network", NAME, "--init")
        run(*common, "--name", f"{NAME}-probes", "--volume", f"{ROOT / 'tests/hostile'}:/hostile:ro",
            "--entrypoint", "python", IMAGE, f"/hostile/{request.param}.py", "0.0.0.0", "9800",
            str(len(probes)))  # fmt: skip
        run(*common, "--name", NAME, "--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--publish",
            "127.0.0.1::9797", "--volume", f"{tmp_path}:/etc/infercanary:ro", "--volume", "/var/lib/infercanary",
            "--read-only", "--tmpfs", "/tmp", IMAGE, "--config", "/etc/infercanary/exporter.yaml")  # fmt: skip
        port = run("docker", "port", NAME, "9797/tcp").strip().rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        eventually("the exporter", 60, lambda: get(f"{url}/-/healthy"))
        yield url


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("exporter", "least"),
    [
        # Those that keep the judge busy are taken more slowly.
        pytest.param("worst", FITTING / 2, id="worst"),
        pytest.param("regressed", FITTING / 4, id="regressed"),
    ],
    indirect=["exporter"],
)
def test_as_many_as_fit_stay_within_the_memory_that_is_planned(exporter: str, least: float) -> None:
    watch = Watch(exporter, FITTING, every=5.0)
    try:
        time.sleep(SECONDS)
    finally:
        watch.end()
    state = run(
        "docker", "inspect", "--format", "{{.State.Running}} {{.RestartCount}} {{.State.OOMKilled}}", NAME
    )
    assert state.split() == ["true", "0", "false"]
    peak = int(run("docker", "exec", NAME, "sh", "-c", PEAK)) << 10
    values = {
        name: watch.value(f"infercanary_{name}")
        for name in (
            "refused_containers",
            "budget_exceeded_total",
            "runs_collected_total",
        )
    }
    taken = len(re.findall(r"^infercanary_runs_collected_total{.*} [1-9]", watch.text, re.M))
    print(f"{FITTING} probes, {taken} taken: {peak >> 20} MiB, scrape p99 {watch.p99:.3f} s, {values}")
    assert values["refused_containers"] == BEYOND
    assert values["budget_exceeded_total"] > FITTING
    assert taken > least, "all want more than their share of what comes in at once, and come later"
    assert [each for each in watch.faults if "scrape failed" in each] == []
    assert peak < MEMORY
