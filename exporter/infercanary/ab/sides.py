"""The sides of an experiment as a person writes them: ``--a KEY=VALUE``, or a mapping in an experiment's file."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import docker.errors
import docker.types
import docker.utils
import msgspec

from infercanary.ab.probe_settings import PACE, load_settings, model_settings
from infercanary.ab.turn import last_line
from infercanary.command.interpreter import LIBRARIES_FIRST
from infercanary.command.settings import UsageError, load, unknown_key
from infercanary.contract.cpus import parse_cpus
from infercanary.contract.text import printable, shortened

_LONGEST = 60  # characters of a setting in a sentence
_LEAST_MEMORY = 6 << 20  # Docker's own
_VARIABLE = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")
_SHAPE = re.compile(r"([1-9]\d{0,8}(?:x[1-9]\d{0,8})*)(?::([a-z0-9_]+))?")
_DEVICES = re.compile(r"device=([\w:/.-]+(?:,[\w:/.-]+)*)")
_MOUNT = re.compile(r"([^:]+):(/[^:]*)(:r[ow])?")
_EXCLUSIVE = (("image", "python"), ("config", "model", "command"))
_NEEDS = {"input": ("model",), "model": ("input",), "python": ("config", "model")}
_CONTAINERS_ONLY = ("cpus", "memory", "volume")
_TWO = "ab: give two images: infercanary ab IMAGE_A IMAGE_B; or one image and a setting of one side, such as --b cpus=1"


class Value(NamedTuple):
    """A value as it was written, and as it was parsed."""

    text: str
    parsed: Any


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every start of one side: an image, or an interpreter of this host."""

    image: str = ""
    python: str = ""
    place: str = ""
    """File of the probe's settings, for messages."""
    probe: dict[str, Any] = {}
    """A ``probe.yaml`` as a document; empty if the image has its own."""
    command: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    """With an experiment's pace unless the user set another."""
    cpus: float | None = None
    cpuset: str = ""
    memory: int | None = None
    gpus: Sequence[str] = ()
    volume: tuple[docker.types.Mount, ...] = ()
    differing: Mapping[str, str] = {}
    """The settings in which it differs from the other side: key → text."""


def check_python(path: str) -> str:
    """Check an interpreter; return its absolute path, with its links as they are: a virtual environment's is one.

    Raises:
        UsageError: It is no interpreter, or has no InferCanary.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the user named the interpreter
            [path, "-c", f"{LIBRARIES_FIRST}; import infercanary.probe as probe; print(probe.__name__)"],
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"python {path}: cannot be run ({error}); name an interpreter, such as .venv/bin/python"
        ) from None
    if done.returncode or b"infercanary.probe" not in done.stdout:
        why = last_line(done.stderr) or "it is no Python"
        raise UsageError(f"python {path}: has no InferCanary ({why}); install it there with pip")
    return str(Path(path).absolute())


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


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError
    return match


def _gpus(text: str) -> list[str]:
    """Return indexes or uuids. A number of GPUs is refused: Docker would choose which."""
    return _matched(_DEVICES, text)[1].split(",")


def _input(text: str) -> tuple[dict[str, Any]]:
    sizes, dtype = _matched(_SHAPE, text).groups()
    return ({"shape": [int(size) for size in sizes.split("x")], **({"dtype": dtype} if dtype else {})},)


def _volume(text: str) -> tuple[docker.types.Mount]:
    """A source that begins with ``/``, ``.`` or ``~`` is a path, made absolute; any other names a volume."""
    source, target, mode = _matched(_MOUNT, text).groups()
    is_path = source.startswith((".", "/", "~"))
    return (
        docker.types.Mount(
            target,
            str(Path(source).absolute()) if is_path else source,
            type="bind" if is_path else "volume",
            read_only=mode == ":ro",
        ),
    )


KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "image": ("an image; it is pulled if it is missing", str),
    "python": ("an interpreter on this host, in place of an image", check_python),
    "config": ("a probe.yaml: runs `infercanary probe` with it", load_settings),
    "model": ("a model of torch to probe: module:factory, or a .pt2 file", str),
    "input": ("its input, such as 1x3x224x224 or 1x128:int64; repeat", _input),
    "command": ("a command, quoted as for a shell, in place of the image's", lambda text: tuple(shlex.split(text))),
    "env.NAME": ("a variable; without =VALUE, its value here", str),
    "cpus": ("a number of CPUs, such as 2 or 0.5", _cpus),
    "cpuset": ("numbers of CPUs, such as 0-3 or 0,2", _cpuset),
    "memory": ("a size of 6m or more, such as 512m or 2g", _memory),
    "gpus": ("GPUs by index or uuid, such as device=0 or device=0,1", _gpus),
    "volume": ("SOURCE:/in/the/container, with :ro to only read; repeat", _volume),
}  # fmt: skip
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


class ExperimentFile(msgspec.Struct, forbid_unknown_fields=True):
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
    file = load(path, ExperimentFile) if path else ExperimentFile()
    named = [f"image={image}" for image in images]
    if len(named) == 1:
        both = (*named, *both)
    elif named:
        a, b = (named[0], *a), (named[1], *b)
    shared, *own = (
        {**_parse(f"{path}: {name}", _entries(f"{path}: {name}", written)), **_parse(f"--{name}", given)}
        for name, written, given in (("both", file.both, both), ("a", file.a, a), ("b", file.b, b))
    )
    first, second = (_merged(name, shared, side) for name, side in zip("AB", own, strict=True))
    if len(images) > 2 or (first == second and len(images) < 2):
        raise UsageError(_TWO)
    return _side("A", first, second), _side("B", second, first)


def words(settings: Mapping[str, str]) -> str:
    """Write the settings in which a side differs as one line, such as ``OMP_NUM_THREADS=2, cpus=0.5``."""
    texts = (f"{key.removeprefix('env.')}={text}" for key, text in settings.items())
    return ", ".join(shortened(printable(text), _LONGEST) for text in texts)


def _entries(place: str, written: Mapping[str, Any]) -> Iterator[str]:
    """Return the keys of a file as on the command line."""
    for key, value in written.items():
        if isinstance(value, dict):
            yield from _entries(place, {f"{key}.{name}": each for name, each in value.items()})
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bool):  # it may have been written as `on` or `yes`
                raise UsageError(f"{place}: {key}: is `{each}` in YAML; put it in quotes")
            yield key if each is None else f"{key}={each}"


def _parse(place: str, entries: Iterable[str]) -> dict[str, Value]:
    side: dict[str, Value] = {}
    for entry in entries:
        key, sign, text = entry.partition("=")
        is_variable = bool(_VARIABLE.fullmatch(key))
        kind = "env.NAME" if is_variable else key
        if kind not in KEYS:
            raise UsageError(f"{place}: {unknown_key(key[:_LONGEST], [*KEYS])}")
        if is_variable and not sign:
            if key[4:] not in os.environ:
                raise UsageError(f"{place}: {key}: is not set here; give {key}=VALUE")
            side[key] = Value("(as here)", os.environ[key[4:]])
            continue
        takes, parser = KEYS[kind]
        try:
            if not (text.strip() or is_variable):
                raise ValueError
            parsed = parser(text)
        except (ValueError, docker.errors.DockerException):
            raise UsageError(f"{place}: {entry[:_LONGEST]}: give {takes}") from None
        if key in side and key in ("input", "volume"):
            before = side[key]
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
    probe = values.pop("config", {})
    if model := values.pop("model", ""):
        probe = model_settings(model, values.pop("input"), "cuda" if "gpus" in values else "cpu")
    variables = {key[4:]: values.pop(key) for key in own if key.startswith("env.")}
    return Side(
        **values,
        place=own["config"].text if "config" in own else "model",
        probe=probe,
        variables={**PACE, **variables},
        differing={
            key: value.text
            for key, value in own.items()
            if key not in _EXCLUSIVE[0] and (key not in other or other[key].parsed != value.parsed)
        },
    )
