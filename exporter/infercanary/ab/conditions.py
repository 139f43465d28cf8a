"""What both arms have in common: CPUs, memory, GPUs, environment, mounts and command. Checked before any start."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.utils
import msgspec
import yaml

from infercanary.command.settings import UsageError, load
from infercanary.contract.cpus import numbers, parse_cpus
from infercanary.contract.report import DEFAULT_PORT

INTERVAL_SECONDS = 0.5
"""Between runs. Nothing else competes, so runs may follow each other quickly."""

_PACE = {"INFERCANARY_INTERVAL_SECONDS": f"{INTERVAL_SECONDS:g}", "INFERCANARY_DUTY_CAP": "1"}
_SWEEP_SECONDS = 10.0  # a sweep's own, where its settings name none
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHAPE = re.compile(r"([1-9]\d{0,8})(x[1-9]\d{0,8})*(:[a-z0-9_]+)?")
_LEAST_MEMORY = 6 << 20  # Docker's own


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host, or an existing volume."""

    source: str
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith("/")


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of every start. ``settings`` is a ``probe.yaml``; empty if the image starts its own probe."""

    cpus: float | None = None
    cpuset: str = ""
    memory: int | None = None
    gpus: str = ""
    environment: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    command: tuple[str, ...] = ()
    settings: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables, with an experiment's pace unless the user set another."""
        return {**_PACE, **self.environment}

    @property
    def host_variables(self) -> dict[str, str]:
        """Those of a process on the host, where CUDA is to see the same GPUs by the same numbers as in a container."""
        # CUDA's own order is by speed; Docker's and NVML's is by PCI bus (CUDA programming guide, CUDA_DEVICE_ORDER).
        pinned = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.gpus} if self.gpus else {}
        return {**pinned, **self.variables}

    def device_request(self) -> dict[str, Any] | None:
        """Return the GPUs as Docker's API takes them, or None.

        Returns:
            The arguments of ``docker.types.DeviceRequest``; None without GPUs.
        """
        if not self.gpus:
            return None
        return {"capabilities": [["gpu"]], "device_ids": self.gpus.split(",")}

    def cpu_numbers(self) -> frozenset[int]:
        """Return the numbers of the CPUs in ``cpuset``.

        Returns:
            Numbers; empty where the CPUs are not limited.
        """
        return numbers(parse_cpus(self.cpuset))


def cpus(number: float | None, option: str = "--cpus") -> float | None:
    """Check ``--cpus``.

    Args:
        number: As given; None where the option was left out.
        option: Its name, for messages.

    Returns:
        The same number.

    Raises:
        UsageError: It is no number of CPUs.
    """
    if number is not None and not (math.isfinite(number) and 0.01 <= number <= 4096):
        raise UsageError(f"{option} {number:g}: give a number of CPUs, such as 2 or 0.5")
    return number


def cpuset(text: str) -> str:
    """Check ``--cpuset-cpus``.

    Args:
        text: As given; empty where the option was left out.

    Returns:
        The same text.

    Raises:
        UsageError: It is no list of CPUs.
    """
    try:
        parse_cpus(text)
    except ValueError:
        raise UsageError(f"--cpuset-cpus {text}: give numbers of CPUs, such as 0-3 or 0,2") from None
    return text


def memory(text: str, option: str = "--memory") -> int | None:
    """Return the bytes of ``--memory``.

    Args:
        text: As given, such as ``2g``; empty where the option was left out.
        option: Its name, for messages.

    Returns:
        Bytes; None where the option was left out.

    Raises:
        UsageError: It is no size, or too small for Docker.
    """
    if not text:
        return None
    try:
        size = int(docker.utils.parse_bytes(text))
    except (docker.errors.DockerException, ValueError):
        size = 0
    if size < _LEAST_MEMORY:
        raise UsageError(f"{option} {text}: give a size of 6m or more, such as 512m or 2g")
    return size


def gpus(text: str) -> str:
    """Return the GPUs of ``--gpus``. A number of them is refused: Docker would choose which, perhaps another each time.

    Args:
        text: As given; empty where the option was left out.

    Returns:
        Their indexes or uuids, separated by commas.

    Raises:
        UsageError: It names no GPU.
    """
    named = text.removeprefix("device=")
    if text and (named == text or not all(part and part.isprintable() for part in named.split(","))):
        raise UsageError(f"--gpus {text}: name the GPUs, such as device=0 or device=0,1")
    return named


def environment(entries: Sequence[str], option: str = "--env") -> dict[str, str]:
    """Return the variables of all ``--env``: NAME=VALUE, or NAME for its value here.

    Args:
        entries: As given, in order; of a name that is there twice, the last one counts.
        option: Its name, for messages.

    Returns:
        Name → value.

    Raises:
        UsageError: One has no valid name, or no value here.
    """
    found = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"{option} {entry[:60]}: give NAME=VALUE, or NAME for its value here")
        if not given and name not in os.environ:
            raise UsageError(f"{option} {name}: is not set here; give {name}=VALUE")
        found[name] = value if given else os.environ[name]
    return found


def mounts(entries: Sequence[str]) -> tuple[Mount, ...]:
    """Return the mounts of all ``--volume``: SOURCE:TARGET, with :ro or :rw.

    Args:
        entries: As given, in order.

    Returns:
        Mounts; a source that begins with ``/``, ``.`` or ``~`` is a path, made absolute; any other names a volume.

    Raises:
        UsageError: One is not of that form.
    """
    found = []
    for entry in entries:
        parts = entry.split(":")
        mode = parts.pop() if len(parts) == 3 else "rw"
        if len(parts) != 2 or mode not in ("ro", "rw") or not parts[0] or not parts[1].startswith("/"):
            raise UsageError(f"--volume {entry}: give SOURCE:/in/the/container, and :ro to make it read-only")
        source = str(Path(parts[0]).absolute()) if parts[0].startswith((".", "/", "~")) else parts[0]
        found.append(Mount(source, parts[1], mode == "ro"))
    return tuple(found)


def command(text: str, option: str = "--command") -> tuple[str, ...]:
    """Split ``--command`` as a shell would.

    Args:
        text: As given; empty where the option was left out.
        option: Its name, for messages.

    Returns:
        Words; none where the option was left out.

    Raises:
        UsageError: A quote is open, or it is blank.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text[:60]}: {error}; fix the quotes") from None
    if text and not words:
        raise UsageError(f"{option}: is blank; give a command, or leave it out")
    return words


def settings(path: str) -> dict[str, Any]:
    """Read the ``probe.yaml`` at ``path``. The probe itself checks its canaries when it starts.

    Args:
        path: YAML.

    Returns:
        The document as it was read.

    Raises:
        UsageError: It cannot be read, or has no canaries.
    """
    document = load(path, dict[str, Any])
    if not isinstance(document.get("canaries"), Mapping) or not document["canaries"]:
        raise UsageError(f"{path}: has no canaries; add `canaries:` as for `infercanary probe`")
    return document


def settings_of(model: str, inputs: Sequence[str], device: str) -> dict[str, Any]:
    """Return the settings of one canary of torch.

    Args:
        model: What :class:`TorchTarget` takes: a file, or ``module:attribute``.
        inputs: A shape for each input, such as ``1x3x224x224``, or ``1x128:int64`` with a dtype.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        A ``probe.yaml`` as a document; the canary is named ``model``.

    Raises:
        UsageError: An input is missing, or is no shape.
    """
    if not inputs:
        raise UsageError("--model: its input is not known; add --input, such as --input 1x3x224x224")
    shapes = []
    for text in inputs:
        if not _SHAPE.fullmatch(text):
            raise UsageError(f"--input {text}: give a shape, such as 1x3x224x224 or 1x128:int64")
        shape, _, dtype = text.partition(":")
        shapes.append({"shape": [int(n) for n in shape.split("x")], **({"dtype": dtype} if dtype else {})})
    options = {"model": model, "inputs": shapes, "device": device}
    return {"canaries": {"model": {"target": "torch", "options": options}}}


def document(settings: Mapping[str, Any], listen: int | str = DEFAULT_PORT) -> str:
    """The settings of an experiment's probe, as YAML: with its address and pace, and without a journal.

    A sweep comes as soon as it may: half of the time is for sweeps, and the first comes an interval after the start.

    Args:
        settings: A ``probe.yaml`` as a document.
        listen: Where the probe answers.
    """
    whole = {
        **settings,
        "canaries": {name: _swept_soon(canary) for name, canary in settings["canaries"].items()},
        "listen": listen,
        "interval_seconds": INTERVAL_SECONDS,
        "duty_cap": 1.0,
        "journal": None,
    }
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)


def _swept_soon(canary: Any) -> Any:
    """Give a canary's sweep the pace of an experiment; the probe itself finds what is wrong with it."""
    sweep = canary.get("sweep") if isinstance(canary, Mapping) else None
    if not isinstance(sweep, Mapping):
        return canary
    seconds = sweep.get("seconds", _SWEEP_SECONDS)
    if not isinstance(seconds, (int, float)):
        return canary
    return {**canary, "sweep": {**sweep, "every_seconds": max(1.0, 2.0 * seconds)}}
