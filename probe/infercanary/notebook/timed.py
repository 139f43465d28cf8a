"""``infercanary.time``: measures a model in this process with the method of a probe."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.notebook.function import FunctionTarget
from infercanary.notebook.result import TimingResult
from infercanary.probe import Probe, Target, TorchTarget

RUNS = 12
"""Enough runs for the judge's first looks. The judge ignores a start with fewer than 8 runs."""

_MOST_RUNS = 512  # maximum number of runs in one report

_PROBE_LOG = logging.getLogger("infercanary.probe")


def time(
    model: Callable[..., Any] | str | Target,
    inputs: Sequence[Any] = (),
    *,
    device: str | None = None,
    name: str = "model",
    runs: int = RUNS,
) -> TimingResult:
    """Measure the latency of a model or function as a probe does: after a warm-up until the latency is steady, and by
    CUDA events on a GPU.

    Args:
        model: A torch module, any function, a target, or text as in probe.yaml (``package.module:factory``, a file).
        inputs: Arguments of the model or function; for a torch model also specifications, such as ``{"shape": [1, 3,
            224, 224]}``.
        device: ``cpu``, ``cuda`` or ``cuda:N``. Default: device of the model's first parameter, else the CPU.
        name: Name of the canary, in the result and in a journal.
        runs: Number of runs, of 5 to 50 repeats each.

    Returns:
        Latency, phases, tags and environment.

    Raises:
        UsageError: An argument is wrong, or the model fails; the message is one line with the reason.
    """
    if not 1 <= runs <= _MOST_RUNS:
        raise UsageError(f"runs: `{runs}` is not a whole number from 1 to {_MOST_RUNS}")
    target = _target(model, inputs, device)
    # A run has as many repeats as fit into a second, from 5 to 50.
    probe = Probe({name: target}, interval_seconds=1.0, duty_cap=1.0)
    _PROBE_LOG.addFilter(_is_no_failure)
    try:
        probe.open()
        report = probe.once(runs)
    finally:
        _PROBE_LOG.removeFilter(_is_no_failure)
        probe.close()
    assert report is not None  # only a stopped probe returns no report, and nothing stops this probe
    failed = [run for run in report.runs if run.outcome != "ok"]
    if failed:
        raise UsageError(f"{name}: {failed[-1].detail}")
    return TimingResult(
        canary=name,
        boot_id=report.boot_id,
        runs=report.runs,
        environment=report.environment,
        outputs=report.outputs,
        process=os.getpid(),
    )


def _is_no_failure(line: logging.LogRecord) -> bool:
    """Drop a failure's log line, because the failure is also raised as an exception."""
    return line.levelno < logging.ERROR


def _target(model: Any, inputs: Sequence[Any], device: str | None) -> Target:
    if isinstance(model, str):
        return TorchTarget(model, inputs, device=device or "cpu")
    torch = sys.modules.get("torch")  # a torch model exists only after the import of torch
    if torch is not None and isinstance(model, torch.nn.Module):
        parameter = next(model.parameters(), None)
        own = "cpu" if parameter is None else str(parameter.device)
        return TorchTarget(model, inputs, device=device or own)
    is_target = hasattr(model, "open") and hasattr(model, "values")
    if inspect.isclass(model) or not (is_target or callable(model)):
        raise UsageError(f"model: `{type(model).__name__}` is not a model, function or target")
    if is_target:
        target: Target = model
        return target
    if hasattr(inputs, "dtype"):  # an array has a length, but is a single argument
        inputs = [inputs]
    if not isinstance(inputs, list | tuple):
        raise UsageError("inputs: give a list with one entry for each argument, such as [x]")
    return FunctionTarget(model, inputs, device or "cpu")
