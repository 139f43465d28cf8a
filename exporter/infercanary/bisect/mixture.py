"""Containers and images of mixtures: packages that differ between images, and an image with other versions of some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import docker

from infercanary.ab.daemon import UNREACHED, labels
from infercanary.ab.turn import StartFailed, last_line

_SECONDS = 1800  # time limit for the installation of packages
_INSTALL = "python3 -m pip install --no-input --no-deps"

# Runs in both images with their own Python, first A, then B, then A, and adds to what it found before. Packages that
# were not installed from an index belong to the contents of the image. A pin is a requirement of one package that the
# other side's version of another package does not fulfil: both packages are swapped together.
_READ = """
import importlib.metadata, json, re, subprocess, sys
found = json.loads(sys.argv[1])
other, pins = found.get("versions", {}), found.get("pins", [])
def normal(name): return re.sub("[-_.]+", "-", name).lower()
own = {normal(d.metadata["Name"]): d for d in importlib.metadata.distributions() if d.metadata["Name"]}
own = {name: d for name, d in own.items() if not d.read_text("direct_url.json")}
try:
    from pip._vendor.packaging.requirements import Requirement
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True).stdout
    has_index = bool(re.search("index-url|find-links", settings))
except ImportError:
    own, has_index = {}, False
for name, d in own.items():
    for needed in map(Requirement, d.requires or []):
        to, marker = normal(needed.name), needed.marker
        if to in own and to in other and not (marker and not marker.evaluate({"extra": ""})):
            if not needed.specifier.contains(other[to], prereleases=True):
                pins.append([name, to])
versions = {name: d.version for name, d in own.items()}
groups = [{name} for name in sorted(versions) if versions[name] != other.get(name, versions[name])]
for pin in pins:
    linked = [group for group in groups if not group.isdisjoint(pin)]
    groups = [group for group in groups if group not in linked] + ([set().union(*linked)] if linked else [])
# The package that pins most others gives the name.
needs = {name: sum(name == first for first, _ in pins) for name in versions}
groups = [sorted(group, key=lambda name: (-needs[name], name)) for group in groups]
lines = [[" ".join(name + "==" + side[name] for name in group) for side in (versions, other)] for group in groups]
print(json.dumps({"versions": versions, "pins": pins, "groups": lines, "has_index": has_index}))
"""


def read_packages(client: docker.APIClient, images: Sequence[str], index: str) -> list[list[str]]:
    """Return the packages that can be swapped: groups of requirements, each one with the versions of A and of B.

    Args:
        client: Docker client.
        images: Ids of A's and B's image.
        index: Index that the user gave; if it is empty, pip's own setting is needed.
    """
    found: Any = {}
    for image in (*images, images[0]):
        try:
            with _ended(client, image, ["python3", "-c", _READ, json.dumps(found)]) as container:
                found = json.loads(client.logs(container, stderr=False))
        except (StartFailed, *UNREACHED):  # no Python 3
            return []
    return found["groups"] if index or found["has_index"] else []


@contextmanager
def mixture_image(
    client: docker.APIClient, base: Mapping[str, Any], requirements: Sequence[str], index: str
) -> Iterator[str]:
    """Yield an image with other versions of some packages, and remove it afterwards.

    Args:
        client: Docker client.
        base: Docker's description of the image to start from.
        requirements: Packages to install, such as ``torch==2.8.0``; without any, the base image itself is yielded.
        index: Address of the packages; empty for pip's own setting.

    Raises:
        StartFailed: The packages cannot be installed.
    """
    if not requirements:
        yield base["Id"]
        return
    config, source = base["Config"], ["--index-url", index] if index else []
    with _ended(client, base["Id"], [*_INSTALL.split(), *source, *requirements]) as container:
        # An empty entrypoint, because Docker would take the one of the installation instead of none.
        made = client.commit(container, conf={**config, "Entrypoint": config.get("Entrypoint") or []})["Id"]
    try:
        yield made
    finally:
        client.remove_image(made, force=True)


@contextmanager
def _ended(client: docker.APIClient, image: str, command: Sequence[str]) -> Iterator[str]:
    """Run a command in an image as root; yield the ended container, and remove it afterwards.

    Raises:
        StartFailed: The command failed.
        DockerException: The command does not exist, or Docker does not answer.
    """
    made = client.create_container(image, entrypoint=[*command], user="root", labels=labels(_SECONDS))
    try:
        client.start(made)
        if client.wait(made, timeout=_SECONDS)["StatusCode"]:
            raise StartFailed(last_line(client.logs(made)))
        yield made["Id"]
    finally:
        client.remove_container(made, force=True, v=True)
