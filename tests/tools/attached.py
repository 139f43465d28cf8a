"""The volume with the probe, and the lines of `infercanary attach`."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import yaml
from harness import run

VOLUME = "infercanary-probe"
IMAGE = "infercanary-probe:dev"


@contextmanager
def filled_volume():
    """Fill the volume as docs/other-ways.md does; remove the volume afterwards."""
    run("docker", "build", "--quiet", "--tag", IMAGE, "--file", "probe/Dockerfile", ".", seconds=900)
    run("docker", "volume", "rm", "--force", VOLUME)
    run("docker", "run", "--rm", "--volume", f"{VOLUME}:/infercanary", "--entrypoint", "true", IMAGE)
    try:
        yield
    finally:
        run("docker", "volume", "rm", VOLUME)


def attach(image):
    """Return the lines for Compose and the patch for Kubernetes that the command prints."""
    compose, kubernetes = yaml.safe_load_all(run(sys.executable, "-m", "infercanary", "attach", image))
    return compose, kubernetes


def steady_seconds(report):
    """Return a canary's time to its first steady run; None before."""
    times = [
        point.value
        for family in report.families
        if family.name == "infercanary_cold_start_seconds"
        for point in family.points
        if "time_to_steady" in point.labels
    ]
    return times[0] if times else None
