"""The sides of an experiment as a person writes them: ``--a KEY=VALUE``, or a mapping in an experiment's file."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import docker
import docker.errors
import docker.utils
import msgspec

from infercanary.ab import conditions, process
from infercanary.ab.conditions import Conditions, Mount
from infercanary.command.settings import UsageError, load, unknown_key
from infercanary.compare.recording import shown
from infercanary.contract.cpus import parse_cpus

_LONGEST = 60  # characters of a setting in a sentence
_LEAST_MEMORY = 6 << 20  # Docker's own
_VARIABLE = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")
_SHAPE = re.compile(r"([1-9]\d{0,8})(x[1-9]\d{0,8})*(:[a-z0-9_]+)?")
_DEVICES = re.compile(r"device=[\w:/.-]+(,[\w:/.-]+)*")
_MOUNT = re.compile(r"([^:]+):(/[^:]*)(:r[ow])?")
_REPEATED = ("input", "volume")
_EXCLUSIVE = (("image", "python"), ("config", "model", "command"))
_CONDITIONS = ("command", "cpus", "cpuset", "memory", "gpus", "volume")
_NEEDS = {"input": ("model",), "model": ("input",), "python": ("config", "model")}
_CONTAINERS_ONLY = ("cpus", "memory", "volume")
_TWO = "ab: give two images: infercanary ab IMAGE_A IMAGE_B; or one image and a setting of one side, such as --b cpus=1"


class Value(NamedTuple):
    """A value as it was written, and as it was parsed."""

    text: str
    parsed: Any


class Side(NamedTuple):
    """Settings of one side: an image, or an interpreter of this host."""

    image: str
    python: str
    place: str
    """Where the probe's settings are from, for messages."""
    conditions: Conditions
    differing: Mapping[str, str]
    """The settings in which it differs from the other side: key → text."""


def _command(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _cpus(text: str) -> float:
    number = float(text)
    if not 0.01 <= number <= 4096:  # NaN is neither
        raise ValueError
    return number


def _cpuset(text: str) -> str:
    parse_cpus(text)
    return text


def _memory(text: str) -> int:
    size = int(docker.utils.parse_bytes(text))
    if size < _LEAST_MEMORY:
        raise ValueError
    return size


def _gpus(text: str) -> str:
    """Return indexes or uuids, separated by commas. A number of GPUs is refused: Docker would choose which."""
    if not _DEVICES.fullmatch(text):
        raise ValueError
    return text.removeprefix("device=")


def _input(text: str) -> tuple[str]:
    if not _SHAPE.fullmatch(text):
        raise ValueError
    return (text,)


def _volume(text: str) -> tuple[Mount]:
    """A source that begins with ``/``, ``.`` or ``~`` is a path, made absolute; any other names a volume."""
    parts = _MOUNT.fullmatch(text)
    if parts is None:
        raise ValueError
    source, target, mode = parts.groups()
    if source.startswith((".", "/", "~")):
        source = str(Path(source).absolute())
    return (Mount(source, target, mode == ":ro"),)


KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "image": ("an image; it is pulled if it is missing", str),
    "python": ("an interpreter on this host, in place of an image", process.python),
    "config": ("a probe.yaml: runs `infercanary probe` with it", conditions.settings),
    "model": ("a model of torch to probe: module:factory, or a .pt2 file", str),
    "input": ("its input, such as 1x3x224x224 or 1x128:int64; repeat", _input),
    "command": ("a command, quoted as for a shell, in place of the image's", _command),
    "env.NAME": ("a variable; without =VALUE, its value here", str),
    "cpus": ("a number of CPUs, such as 2 or 0.5", _cpus),
    "cpuset": ("numbers of CPUs, such as 0-3 or 0,2", _cpuset),
    "memory": ("a size of 6m or more, such as 512m or 2g", _memory),
    "gpus": ("GPUs by index or uuid, such as device=0 or device=0,1", _gpus),
    "volume": ("SOURCE:/in/the/container, with :ro to only read; repeat", _volume),
}
"""Key of a side → the value it takes, in the words of help and errors, and a parser, which raises ValueError."""

HELP = "\b\nKeys of a side:\n" + "".join(f"  {key:<9} {takes}\n" for key, (takes, _) in KEYS.items()) + "\n"
"""For the command's help."""

MOVED: Mapping[str, str] = {
    "--config": "--both config=…", "--config-b": "--b config=…",
    "--model": "--both model=…", "--input": "--both input=…",
    "--command": "--both command=…", "--command-b": "--b command=…",
    "--cpus": "--both cpus=…", "--cpus-b": "--b cpus=…", "--cpuset-cpus": "--both cpuset=…",
    "--memory": "--both memory=…", "--memory-b": "--b memory=…",
    "--gpus": "--both gpus=…", "--volume": "--both volume=…", "--host-python": "--a python=…",
    "--env": "--both env.NAME=…", "--env-b": "--b env.NAME=…", "--level": "--confidence=…",
}  # fmt: skip
"""Former option → what to give instead."""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """The file of an experiment: the keys of both sides, and those of each."""

    both: dict[str, Any] = {}
    a: dict[str, Any] = {}
    b: dict[str, Any] = {}


def read(
    images: Sequence[str], path: str, both: Sequence[str], a: Sequence[str], b: Sequence[str]
) -> tuple[Side, Side]:
    """Return the sides of an experiment, checked before anything is started.

    Args:
        images: A's and B's, or one for both.
        path: The experiment's file, whose keys the other arguments replace; may be empty.
        both: KEY=VALUE of both sides.
        a: KEY=VALUE of A, which replace those of both.
        b: KEY=VALUE of B, which replace those of both.

    Raises:
        UsageError: A key is unknown, a value is wrong, keys contradict each other, or the sides do not differ.
    """
    file = load(path, Experiment) if path else Experiment()
    named = [f"image={image}" for image in images]
    if len(named) == 1:
        both = (*named, *both)
    elif named:
        a, b = (named[0], *a), (named[1], *b)
    shared, of_a, of_b = (
        {**_parse(f"{path}: {name}", _entries(f"{path}: {name}", written)), **_parse(f"--{name}", given)}
        for name, written, given in (("both", file.both, both), ("a", file.a, a), ("b", file.b, b))
    )
    first, second = _merged("A", shared, of_a), _merged("B", shared, of_b)
    if len(images) > 2 or (first == second and len(images) < 2):
        raise UsageError(_TWO)
    return _side("A", first, second), _side("B", second, first)


def words(settings: Mapping[str, str]) -> str:
    """Write settings as one line, such as ``OMP_NUM_THREADS=2, cpus=0.5``.

    Args:
        settings: Those of :class:`Side`; empty text is returned where there are none.
    """
    return ", ".join(shown(f"{key.removeprefix('env.')}={text}", _LONGEST) for key, text in settings.items())


def _entries(place: str, written: Mapping[str, Any]) -> Iterator[str]:
    """Return the keys of a file as on the command line."""
    for key, value in written.items():
        if isinstance(value, dict):
            yield from _entries(place, {f"{key}.{name}": each for name, each in value.items()})
        else:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, bool):  # it may have been written as `on` or `yes`
                    raise UsageError(f"{place}: {key}: is `{each}` in YAML; put it in quotes")
                yield key if each is None else f"{key}={each}"


def _parse(place: str, entries: Iterable[str]) -> dict[str, Value]:
    side: dict[str, Value] = {}
    for entry in entries:
        key, sign, text = entry.partition("=")
        kind = "env.NAME" if _VARIABLE.fullmatch(key) else key
        if kind not in KEYS:
            raise UsageError(f"{place}: {unknown_key(key[:_LONGEST], [*KEYS])}")
        if not sign and kind == "env.NAME":
            if key[4:] not in os.environ:
                raise UsageError(f"{place}: {key}: is not set here; give {key}=VALUE")
            side[key] = Value("(as here)", os.environ[key[4:]])
            continue
        takes, parser = KEYS[kind]
        try:
            if not text.strip() and kind != "env.NAME":
                raise ValueError
            parsed = parser(text)
        except (ValueError, docker.errors.DockerException):
            raise UsageError(f"{place}: {entry[:_LONGEST]}: give {takes}") from None
        before = side.get(key)
        if key in _REPEATED and before:
            text, parsed = f"{before.text}, {text}", before.parsed + parsed
        side[key] = Value(text, parsed)
    return side


def _merged(side: str, both: Mapping[str, Value], own: Mapping[str, Value]) -> dict[str, Value]:
    """Return a side's values: its own, and those of both that do not contradict them."""
    merged = {**both, **own}
    for group in _EXCLUSIVE:
        chosen = [key for key in group if key in own] or [key for key in group if key in both]
        if len(chosen) > 1:
            raise UsageError(f"{side}: {chosen[0]} and {chosen[1]}: exclude each other; give one of them")
        merged = {key: value for key, value in merged.items() if key not in group or key in chosen}
    if "model" in both and "model" not in merged:
        merged.pop("input", None)
    return merged


def _side(name: str, own: Mapping[str, Value], other: Mapping[str, Value]) -> Side:
    if "image" not in own and "python" not in own:
        raise UsageError(_TWO)
    for key, needed in _NEEDS.items():
        if key in own and not any(each in own for each in needed):
            raise UsageError(f"{name}: {key}: needs {' or '.join(needed)}; give that too")
    if "python" in own and (limits := [key for key in _CONTAINERS_ONLY if key in own]):
        raise UsageError(f"{name}: {limits[0]}: cannot be kept on the host; leave it out, or use cpuset")
    values = {key: value.parsed for key, value in own.items()}
    settings = values.get("config", {})
    if "model" in values:
        device = "cuda" if "gpus" in values else "cpu"
        settings = conditions.settings_of(values["model"], values["input"], device)
    return Side(
        values.get("image", ""),
        values.get("python", ""),
        own["config"].text if "config" in own else "model",
        Conditions(
            **{key: value for key, value in values.items() if key in _CONDITIONS},
            environment={key[4:]: value for key, value in values.items() if key.startswith("env.")},
            settings=settings,
        ),
        {
            key: value.text
            for key, value in own.items()
            if key not in _EXCLUSIVE[0] and (key not in other or other[key].parsed != value.parsed)
        },
    )
