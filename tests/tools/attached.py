"""The volume with the probe, and the lines that `infercanary attach` prints."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import yaml
from harness import run

VOLUME = "infercanary-probe"
IMAGE = "infercanary-probe:dev"


@contextmanager
def filled_volume():
    """Fill the volume with the commands of docs/other-ways.md; remove the volume afterwards."""
    run("docker", "build", "--quiet", "--tag", IMAGE, "--file", "probe/Dockerfile", ".", seconds=900)
    run("docker", "volume", "rm", "--force", VOLUME)
    run("docker", "run", "--rm", "--volume", f"{VOLUME}:/infercanary", "--entrypoint", "true", IMAGE)
    try:
        yield
    finally:
        run("docker", "volume", "rm", VOLUME)


def attach(image):
    compose, kubernetes = yaml.safe_load_all(run(sys.executable, "-m", "infercanary", "attach", image))
    return compose, kubernetes


def steady_seconds(report):
    """Return the seconds until a canary's first steady run; None before this run."""
    times = [
        point.value
        for family in report.families
        if family.name == "infercanary_cold_start_seconds"
        for point in family.points
        if "time_to_steady" in point.labels
    ]
    return times[0] if times else None
