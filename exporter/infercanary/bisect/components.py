"""Components: differences between two sides that experiments can swap. Pure functions.

A recipe maps each component that a start needs to its value. A mixture is A's recipe with some components of B.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from infercanary.ab.sides import Side
from infercanary.contract.text import masked, shortened

Recipe: TypeAlias = Mapping[str, Any]

CONTENTS = "image contents"
"""Component for all files of the image, except packages that are components of their own."""

_COMMAND = "command"
_LIMITS = ("cpus", "cpuset", "memory", "gpus", "volume")
_PACKAGE = "package "
# Variables that describe the files of their image.
_OF_CONTENTS = re.compile(r"\w*(PATH|HOME|VERSION|SHA256|KEY)=")


def recipe(side: Side, image: Mapping[str, Any], packages: Iterable[str]) -> Recipe:
    """Return the recipe of a side.

    Args:
        side: Settings of the side.
        image: Docker's description of its image.
        packages: Groups of requirements, such as ``torch==2.7.0 triton==3.3.0``, that can be swapped.
    """
    config = image["Config"]
    own = dict(entry.split("=", 1) for entry in config.get("Env") or () if not _OF_CONTENTS.match(entry))
    return {
        CONTENTS: image["Id"],
        _COMMAND: (side.probe, side.command or config.get("Cmd") or ()),
        **{key: getattr(side, key) for key in _LIMITS},
        **{f"env.{name}": value for name, value in (own | side.variables).items()},
        **{f"{_PACKAGE}{group.partition('==')[0]}": group for group in packages},
    }


def requirements(wanted: Recipe, base: Recipe) -> Sequence[str]:
    """Return the packages to install in the base recipe's image to get the wanted recipe."""
    lines = (wanted[key] for key in base if key.startswith(_PACKAGE) and wanted[key] != base[key])
    return " ".join(lines).split()


def side_of(wanted: Recipe, image: str) -> Side:
    """Return the settings to start a recipe in an image that already has the recipe's contents and packages.

    Docker removes a variable that is None.
    """
    probe, command = wanted[_COMMAND]
    variables = {key[4:]: value for key, value in wanted.items() if key.startswith("env.")}
    return Side(
        image=image,
        probe=probe,
        command=command,
        variables=variables,
        **{key: wanted[key] for key in _LIMITS},
    )


def describe(key: str, a: object, b: object) -> str:
    """Return a component with both values as text, such as ``OMP_NUM_THREADS 1 → 4``.

    Args:
        a: A's value, or None.
        b: B's value, or None.
    """
    if key in (CONTENTS, _COMMAND):
        return key
    name = key.removeprefix("env.").removeprefix(_PACKAGE)
    # `masked` recognizes a password by its variable's name.
    before, after = (masked(f"{name}={x}").removeprefix(f"{name}=") for x in (a, b))
    if key.startswith(_PACKAGE):  # the group's first package
        before, after = (re.split("==| ", x)[1] for x in (before, after))
    return f"{name} {shortened(before, 60)} → {shortened(after, 60)}"
