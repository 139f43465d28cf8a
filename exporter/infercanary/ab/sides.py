"""Sides of an experiment, read from options (``--a KEY=VALUE``) or from an experiment's file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker.errors
import docker.types
import docker.utils
import msgspec

from infercanary.ab.probe_settings import PACE, load_settings
from infercanary.command.settings import UsageError, load, unknown_key
from infercanary.contract.cpus import numbers, parse_cpus
from infercanary.contract.text import printable, shortened

_LONGEST = 60  # maximum number of characters of a setting in the sentence
_VARIABLE = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")
_DEVICES = re.compile(r"device=([\w:/.-]+(?:,[\w:/.-]+)*)")
_MOUNT = re.compile(r"([^:]+):(/[^:]*(?::r[ow])?)")
_ALTERNATIVES = {"image": "python", "python": "image", "config": "command", "command": "config"}
"""Pairs of keys that exclude each other: if a side has the second key, the first key in `both` is ignored."""
_CONFLICTS = (
    *_ALTERNATIVES.items(),
    *(("python", key) for key in ("cpus", "memory", "volume")),
)  # an interpreter of this host has no such limits
_AS_HERE = "(as here)"  # placeholder for the value of an environment variable of this process
_TWO = "give two images, IMAGE_A IMAGE_B; or one image and a setting of one side, such as --b cpus=1"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every start of one side: an image, or an interpreter of this host."""

    image: str = ""
    python: str = ""
    probe: dict[str, Any] = {}
    """Content of a ``probe.yaml``; empty for the image's own probe."""
    command: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    """Environment variables, including those for the pace of an experiment. The user's values have priority."""
    cpus: float | None = None
    cpuset: frozenset[int] = frozenset()
    memory: int | None = None
    gpus: Sequence[str] = ()
    volume: Sequence[docker.types.Mount] = ()
    differing: Mapping[str, str] = {}
    """Settings that differ from the other side: text of the value, by key."""


def _cpus(text: str) -> float:
    number = float(text)
    if not 0.01 <= number <= 4096:  # the comparison is false for NaN
        raise ValueError
    return number


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError
    return match


def _gpus(text: str) -> list[str]:
    """Return indexes or uuids. With a mere number of GPUs, Docker would choose the GPUs, so a number is refused."""
    return _matched(_DEVICES, text)[1].split(",")


def _path(text: str) -> str:
    return str(Path(os.path.expanduser(text)).absolute())  # Path.expanduser fails for an unknown user


def _python(text: str) -> str:
    path = shutil.which(_path(text))
    if path is None:
        raise ValueError
    return path


def _volume(text: str) -> docker.types.Mount:
    """Return a mount.

    A source that begins with ``/``, ``.`` or ``~`` is a path, made absolute; any other source is the name of a
    volume.
    """
    source, rest = _matched(_MOUNT, text).groups()
    if source.startswith((".", "/", "~")):
        source = _path(source)
    return docker.types.Mount.parse_mount_string(f"{source}:{rest}")


KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "image": ("an image, which is pulled if it is missing", str),
    "python": ("the path of an interpreter on this host, instead of an image", _python),
    "config": ("a probe.yaml: runs `infercanary probe` with it", load_settings),
    "command": ("a command, quoted as for a shell, as CMD (ENTRYPOINT stays)", lambda text: tuple(shlex.split(text))),
    "env.NAME": ("an environment variable; without =VALUE, its value here", str),
    "cpus": ("a number of CPUs, such as 2 or 0.5", _cpus),
    "cpuset": ("numbers of CPUs, such as 0-3 or 0,2", lambda text: numbers(parse_cpus(text))),
    "memory": ("a size, such as 512m or 2g", docker.utils.parse_bytes),
    "gpus": ("GPUs by index or uuid, such as device=0 or device=0,1", _gpus),
    "volume": (
        "SOURCE:/in/the/container, with :ro for read-only; may be repeated",
        lambda text: [*map(_volume, text.split(", "))],
    ),
}  # fmt: skip
"""Description of the value (for help and errors), and parser of the value, by key. Parsers raise ValueError."""

HELP = "\b\nKeys of a side:\n" + "".join(f"  {key:<9} {takes}\n" for key, (takes, _) in KEYS.items()) + "\n"
"""Help text on keys for the command."""


class ExperimentFile(msgspec.Struct, forbid_unknown_fields=True):
    """File of an experiment: keys of both sides, and keys of each side."""

    both: dict[str, Any] = {}
    a: dict[str, Any] = {}
    b: dict[str, Any] = {}


def read(
    images: Sequence[str], path: str, both: Sequence[str], a: Sequence[str], b: Sequence[str]
) -> tuple[Side, Side]:
    """Return the sides of an experiment, checked before anything is started.

    Args:
        images: A's and B's image, or one image for both.
        path: The experiment's file; may be empty. The other arguments override its keys.
        both: KEY=VALUE of both sides.
        a: KEY=VALUE of A; overrides ``both``.
        b: KEY=VALUE of B; overrides ``both``.

    Raises:
        UsageError: A key is unknown, a value is wrong, keys contradict each other, or the sides are equal.
    """
    file = load(path, ExperimentFile) if path else ExperimentFile()
    named = [f"image={image}" for image in images]
    if len(named) == 1:
        both = (*named, *both)
    elif named:
        a, b = (named[0], *a), (named[1], *b)
    shared, first, second = (
        _texts(f"{path}: {name}", _entries(f"{path}: {name}", getattr(file, name)))
        | _texts(f"--{name}", given)
        for name, given in (("both", both), ("a", a), ("b", b))
    )
    first, second = (
        {key: text for key, text in shared.items() if _ALTERNATIVES.get(key) not in own} | own
        for own in (first, second)
    )
    if len(images) > 2 or (first == second and len(images) < 2):
        raise UsageError(_TWO)
    return _side("A", first, second), _side("B", second, first)


def words(settings: Mapping[str, str]) -> str:
    """Return the differing settings of a side as one line, such as ``OMP_NUM_THREADS=2, cpus=0.5``."""
    texts = (f"{key.removeprefix('env.')}={text}" for key, text in settings.items())
    return ", ".join(shortened(printable(text), _LONGEST) for text in texts)


def _entries(place: str, written: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield a file's settings as ``KEY=VALUE`` texts, the form of the command line."""
    for key, value in written.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            yield from _entries(place, value, f"{name}.")
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, bool):  # YAML also reads `on` and `yes` as booleans
                raise UsageError(f"{place}: {name}: means `{text}` in YAML; put the value in quotes")
            yield name if text is None else f"{name}={text}"


def _texts(place: str, entries: Iterable[str]) -> dict[str, str]:
    """Return the text of each key's value."""
    texts: dict[str, str] = {}
    for entry in entries:
        key, sign, text = entry.partition("=")
        is_variable = _VARIABLE.fullmatch(key)
        if key not in KEYS and not is_variable:
            raise UsageError(f"{place}: {unknown_key(key, [*KEYS])}")
        if is_variable and not sign:
            if key[4:] not in os.environ:
                raise UsageError(f"{place}: {key}: is not set in this environment; give {key}=VALUE")
            text = _AS_HERE
        texts[key] = f"{texts[key]}, {text}" if key == "volume" and key in texts else text
    return texts


def _side(name: str, own: Mapping[str, str], other: Mapping[str, str]) -> Side:
    if "image" not in own and "python" not in own:
        raise UsageError(_TWO)
    for key, other_key in _CONFLICTS:
        if key in own and other_key in own:
            raise UsageError(f"{name}: {key} and {other_key}: exclude each other; give one of them")
    if "python" in own and "config" not in own:
        raise UsageError(f"{name}: python: needs config; give both")
    variables, values = dict(PACE), {}
    for key, text in own.items():
        if key not in KEYS:
            variables[key[4:]] = os.environ[key[4:]] if text == _AS_HERE else text
            continue
        takes, parser = KEYS[key]
        try:
            if not text.strip():
                raise ValueError
            values[key] = parser(text)
        except (ValueError, docker.errors.DockerException):
            raise UsageError(f"{name}: {key}={text}: give {takes}") from None
    differing = {
        key: text for key, text in own.items() if key not in ("image", "python") and other.get(key) != text
    }
    return Side(probe=values.pop("config", {}), **values, variables=variables, differing=differing)
