"""The conditions of a side: CPUs, memory, GPUs, environment, volumes, command, and settings of its probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml

from infercanary.command.settings import UsageError, load
from infercanary.contract.cpus import numbers, parse_cpus
from infercanary.contract.report import DEFAULT_PORT

INTERVAL_SECONDS = 0.5
"""Between runs. Nothing else competes, so runs may follow each other quickly."""

_PACE = {"INFERCANARY_INTERVAL_SECONDS": f"{INTERVAL_SECONDS:g}", "INFERCANARY_DUTY_CAP": "1"}
_SWEEP_SECONDS = 10.0  # a sweep's own, where its settings name none


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host, or an existing volume."""

    source: str
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith("/")


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of every start of a side. ``settings`` is a ``probe.yaml``; empty if the image has its own."""

    cpus: float | None = None
    cpuset: str = ""
    memory: int | None = None
    gpus: str = ""
    environment: dict[str, str] = {}
    volume: tuple[Mount, ...] = ()
    command: tuple[str, ...] = ()
    settings: dict[str, Any] = {}

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
    """
    shapes = []
    for text in inputs:
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
