"""``make hashes``: SHA-256 of each file that the images of the exporter and of the probe install.

``constraints.txt`` fixes the versions. With these hashes, pip also refuses a file that changed since this commit
(https://pip.pypa.io/en/stable/topics/secure-installs/). The list has the wheels for the images' Python, on x86-64 and
aarch64; the probe's list also has those for the other Pythons and for musl.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from release import pyproject

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PYTHON = "3.11"
"""Python version of the base image."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
_WHEEL = (
    r"[^-]+-(?P<version>[^-]+)(?:-\d[^-]*)?-(?:\S*(?:py3|cp3(?:%s))\S*|cp3\d+-abi3-\S*)"
    r"(?:none-any|(?:%s)linux\S*_(?:x86_64|aarch64)\S*)\.whl"
)
IMAGE = re.compile(_WHEEL % (PYTHON.removeprefix("3."), "many"))
VOLUME = re.compile(_WHEEL % ("1[0-3]", "many|musl"))
"""Wheels of the probe, which also goes into a volume for images with another Python or C library."""
_INDEX = "https://pypi.org/simple"
_HEAD = "# Made by `make hashes` for the images, from pyproject.toml and constraints.txt: pip refuses any other file.\n"


def wanted() -> dict[Path, list[str]]:
    """Return the requirements, as in pyproject.toml, for each file."""
    document = pyproject()
    project = document["project"]
    extras = project["optional-dependencies"]
    return {
        ROOT / "release/build.txt": document["build-system"]["requires"],
        ROOT / "probe/requirements.txt": project["dependencies"],
        ROOT / "exporter/requirements.txt": [
            *project["dependencies"],
            *extras["exporter"],
            *extras["postgres"],
        ],
    }


def text(
    versions: Mapping[str, str],
    files: Mapping[str, Sequence[Mapping[str, Any]]],
    fitting: re.Pattern[str] = IMAGE,
) -> str:
    """Return a requirements file with the hashes of each package's wheels.

    Args:
        versions: Versions by name.
        files: Files that an index lists (PEP 691), by name.
        fitting: Pattern of the names of fitting wheels.

    Raises:
        ValueError: A package has no fitting wheel.
    """
    lines = []
    for name, version in sorted(versions.items()):
        hashes = sorted(
            each["hashes"]["sha256"]
            for each in files[name]
            if (wheel := fitting.fullmatch(each["filename"])) and wheel["version"] == version
        )
        if not hashes:
            raise ValueError(f"{name}=={version}: the index lists no wheel for Python {PYTHON} on Linux")
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in hashes)]))
    return _HEAD + "\n".join(lines) + "\n"


def resolved(requirements: Iterable[str]) -> dict[str, str]:
    """Return the versions that pip would install within the constraints, by name, with dependencies.

    Args:
        requirements: As in pyproject.toml.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", "--ignore-installed",
            "--constraint", str(CONSTRAINTS), "--target", folder, "--only-binary", ":all:", "--python-version", PYTHON,
            *(option for platform in _PLATFORMS for option in ("--platform", platform)), *requirements,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"make hashes: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    installed = json.loads(done.stdout)["install"]
    return {canonical(each["metadata"]["name"]): each["metadata"]["version"] for each in installed}


def canonical(name: str) -> str:
    """Return a package's normalized name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(name: str) -> list[Mapping[str, Any]]:
    """Return the files of a package that PyPI lists, for all versions."""
    request = urllib.request.Request(  # noqa: S310
        f"{_INDEX}/{canonical(name)}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        files: list[Mapping[str, Any]] = json.load(answer)["files"]
        return files


def main() -> None:
    for path, requirements in wanted().items():
        versions = resolved(requirements)
        fitting = VOLUME if path.parent.name == "probe" else IMAGE
        path.write_text(text(versions, {name: listed(name) for name in versions}, fitting), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(versions)} packages")


if __name__ == "__main__":
    main()
