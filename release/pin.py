"""``make pin``: writes compose.pinned.yml, an overlay with the digest of every image of the Compose file.

For an image that Compose builds, the overlay has the digests of the base images, as BuildKit's additional
contexts. Run this at a release: the file has the registries' current digests, for all platforms of an image.
The Compose file itself keeps exact tags, which people can read. Use the overlay with ``docker compose -f
docker-compose.yml -f compose.pinned.yml up``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from infercanary.command.settings import UsageError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docker-compose.yml"
TARGET = ROOT / "compose.pinned.yml"
_FROM = re.compile(r"^FROM (?:--\S+ )*(\S+)(?: AS (\S+))?", re.MULTILINE | re.IGNORECASE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pulled(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the images that come from a registry, with their tags, by service; built images have no digest in a
    registry.

    Args:
        document: Content of a Compose file.
    """
    built = {each["image"] for each in document["services"].values() if "build" in each}
    return {name: each["image"] for name, each in document["services"].items() if each["image"] not in built}


def bases(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the base images of images that Compose builds, by service, without the Dockerfile's own stages.

    Args:
        document: Content of a Compose file in the repository's root.
    """
    found = {}
    for name, service in document["services"].items():
        if "build" in service:
            stages = _FROM.findall((ROOT / service["build"]["dockerfile"]).read_text(encoding="utf-8"))
            named = {stage for _, stage in stages}
            found[name] = sorted({image for image, _ in stages} - named)
    return found


def overlay(document: Mapping[str, Any], digest: Callable[[str], str]) -> str:
    """Return the overlay as YAML.

    Args:
        document: Content of a Compose file.
        digest: Function from image to digest.

    Raises:
        UsageError: An answer is not a digest.
    """
    images = pulled(document)
    built = bases(document)
    digests = {image: digest(image) for image in sorted({*images.values(), *chain(*built.values())})}
    for image, answer in digests.items():
        if not _DIGEST.fullmatch(answer):
            raise UsageError(f"{image}: the registry's answer `{answer[:80]}` is not a digest")
    services: dict[str, Any] = {
        name: {"image": f"{image}@{digests[image]}"} for name, image in images.items()
    }
    for name, found in built.items():
        contexts = {image: f"docker-image://{image}@{digests[image]}" for image in found}
        services[name] = {"build": {"additional_contexts": contexts}}
    return f"# Made by `make pin` from {SOURCE.name}.\n" + yaml.safe_dump({"services": services})


def from_registry(image: str) -> str:
    """Ask a registry for the digest of an image's index, with Docker's buildx.

    Args:
        image: Image with its tag.

    Raises:
        UsageError: buildx is missing, or the registry does not answer.
    """
    # Request the whole manifest, because buildx prints a table for any format that starts with {{.Manifest.
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{json .Manifest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    except FileNotFoundError:
        raise UsageError("docker is not installed: install it with its plugin buildx") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{image}: the registry does not answer within 120 s") from None
    if done.returncode:
        # Run a second command, because Docker's message about a missing plugin differs between versions.
        if subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode:  # noqa: S607
            raise UsageError(
                "docker has no plugin buildx: install docker-buildx-plugin, or Debian's docker-buildx"
            )
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise UsageError(f"{image}: {lines[-1]}")
    try:
        return str(json.loads(done.stdout)["digest"])
    except (ValueError, LookupError, TypeError):
        return done.stdout.strip()  # `overlay` refuses text that is not a digest


def main() -> None:
    """Write the overlay; after an error, print one line with the reason and write nothing."""
    try:
        made = overlay(yaml.safe_load(SOURCE.read_text(encoding="utf-8")), from_registry)
    except UsageError as error:
        sys.exit(f"make pin: {error}")
    TARGET.write_text(made, encoding="utf-8")
    print(f"{TARGET.name}: {made.count('sha256:')} images")


if __name__ == "__main__":
    main()
