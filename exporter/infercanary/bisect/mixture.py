"""Mixtures of two sides: reads the differences from Docker and pip, and makes a side with some differences swapped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import docker

from infercanary.ab.daemon import UNREACHED, find_image, labels
from infercanary.ab.progress import show_progress
from infercanary.ab.sides import Side
from infercanary.ab.turn import StartFailed, last_line
from infercanary.bisect.components import CONTENTS, Recipe, describe, recipe, requirements, side_of
from infercanary.bisect.search import Components
from infercanary.command.interruption import Interruption

_SECONDS = 1800  # time limit for the installation of packages
_INSTALL = "python3 -m pip install --no-input --no-deps"

# This script runs with each image's own Python, in A, B and A again. Each run adds to the previous run's result.
# Packages that were not installed from an index belong to the contents of the image. A pin is a package's requirement
# that the other side's version of the required package does not fulfil. Both packages are then swapped together.
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
# The package with the most pins names the group.
needs = {name: sum(name == first for first, _ in pins) for name in versions}
groups = [sorted(group, key=lambda name: (-needs[name], name)) for group in groups]
lines = [[" ".join(name + "==" + side[name] for name in group) for side in (versions, other)] for group in groups]
print(json.dumps({"versions": versions, "pins": pins, "groups": lines, "has_index": has_index}))
"""


class Sides(NamedTuple):
    """A and B, their differences, and the images between them."""

    images: Sequence[Any]
    """Docker's descriptions."""
    recipes: Sequence[Recipe]
    tags: Mapping[str, Any]
    """Docker's description by image name, for each image from A to B."""
    texts: Mapping[str, str]
    """Displayed text by component, for components that differ."""


def read_sides(
    client: docker.APIClient, pair: Sequence[Side], index: str, interruption: Interruption
) -> Sides:
    """Read both sides; pull their images if this host does not have them.

    Args:
        pair: Settings of A and of B.
        index: The user's package index. If empty, packages are swapped only if pip's own settings name an index.
        interruption: Ends a pull.
    """
    images = [find_image(client, side.image, interruption)[0] for side in pair]
    show_progress("reading the packages of both images")
    packages = read_packages(client, [image["Id"] for image in images], index)
    a, b = recipes = [recipe(pair[i], images[i], (group[i] for group in packages)) for i in range(2)]
    texts = {
        key: describe(key, *(pair[i].differing.get(key, recipes[i].get(key)) for i in range(2)))
        for key in {**a, **b}
        if a.get(key) != b.get(key)
    }
    return Sides(images, recipes, read_tags(client, [side.image for side in pair]), texts)


def read_packages(client: docker.APIClient, images: Sequence[str], index: str) -> list[list[str]]:
    """Return the packages that can be swapped. A group of packages is a pair of requirements: versions of A, versions
    of B.

    Args:
        images: Ids of A's and B's image.
        index: The user's package index. If empty, pip's own settings must name an index.
    """
    found: Any = {}
    for image in (*images, images[0]):
        try:
            with _ended(client, image, ["python3", "-c", _READ, json.dumps(found)]) as container:
                found = json.loads(client.logs(container, stderr=False))
        except (StartFailed, *UNREACHED):  # the image has no Python 3
            return []
    return found["groups"] if index or found["has_index"] else []


def read_tags(client: docker.APIClient, pair: Sequence[str]) -> dict[str, Any]:
    """Return this host's images from A to B in order of creation; empty if A and B are from different repositories.

    Args:
        pair: Names of A's and B's image.
    """
    images = sorted(client.images(pair[0].rpartition(":")[0]), key=lambda image: image["Created"])
    listed = {name: image for image in images for name in image["RepoTags"] or ()}
    names = [*listed]
    if not {*pair} <= {*names}:
        return {}
    a, b = map(names.index, pair)
    return dict([*listed.items()][a : b + 1])


@contextmanager
def mixture(client: docker.APIClient, sides: Sides, taken: Components, index: str) -> Iterator[Side]:
    """Yield A with some components of B, or with the image of a tag. An image built for this mixture is removed
    afterwards.

    Args:
        sides: Both sides.
        taken: Components of B, or one tag.
        index: The user's package index; empty to use pip's own settings.

    Raises:
        StartFailed: The packages cannot be installed.
    """
    (a, b), base = sides.recipes, CONTENTS in taken
    wanted = {**a, **{key: b.get(key) for key in taken}}  # a variable that B does not have is None
    image = sides.tags.get(min(taken), sides.images[base])
    packages = requirements(wanted, sides.recipes[base])
    if not packages:
        yield side_of(wanted, image["Id"])
        return
    config, source = image["Config"], ["--index-url", index] if index else []
    with _ended(client, image["Id"], [*_INSTALL.split(), *source, *packages]) as container:
        # Without an entrypoint here, Docker would keep the entrypoint of the installation.
        made = client.commit(container, conf={**config, "Entrypoint": config.get("Entrypoint") or []})["Id"]
    try:
        yield side_of(wanted, made)
    finally:
        client.remove_image(made, force=True)


@contextmanager
def _ended(client: docker.APIClient, image: str, command: Sequence[str]) -> Iterator[str]:
    """Run a command as root in a new container. Yield the id of the ended container, then remove the container.

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
