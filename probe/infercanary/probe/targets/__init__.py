"""Targets: what the probe executes and times. A new one is one file here, named in config.

``target: torch`` names a built-in, ``target: package.module:attribute`` anyone's: both are found and called
in the same way, with the keys under ``options`` as arguments.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

from infercanary.command.settings import UsageError
from infercanary.contract.report import Metric
from infercanary.probe.deadline import one_line, printable
from infercanary.probe.timing import Clock, Phase

BUILT_IN = {
    "torch": "infercanary.probe.targets.torch:TorchTarget",
    "onnx": "infercanary.probe.targets.onnx:OnnxTarget",
    "tensorrt": "infercanary.probe.targets.tensorrt:TensorRtTarget",
    "kserve": "infercanary.probe.targets.kserve:KserveTarget",
    "openai": "infercanary.probe.targets.openai:OpenaiTarget",
    "http": "infercanary.probe.targets.http:HttpTarget",
}

Reason = Literal[
    "raised",
    "timed_out",
    "not_finite",
    "wrong_answer",
    "wrong_shape",
    "unreachable",
    "not_ready",
    "error_answer",
    "incomplete",
    "malformed",
    "too_large",
]
"""Why a run failed. The first four any target may meet by itself; the others are named by the target."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class Failure(Exception):
    """What a target raises to say why a run failed, from any of its methods: ``raise Failure("not_ready", "…")``."""

    def __init__(self, reason: Reason, text: str) -> None:
        if reason not in REASONS:
            raise ValueError(f"`{reason}` is no reason of a failure; there are {', '.join(REASONS)}")
        self.reason = reason
        super().__init__(printable(text, 400))


class NoCuda(UsageError):
    """What ``open()`` raises where an image, or a container, lacks the CUDA that the target is to run on.

    The settings are right, and somebody must be told: the probe goes on, with a metric, and tries again.
    """


class Unsized(Exception):
    """What ``sized()`` raises, with the reason, where a target cannot be run with so many samples."""


class Reading(NamedTuple):
    """One number of a run that its timing does not hold, such as what a server counted by itself."""

    metric: Metric
    """A gauge whose first label is ``canary``, declared beside the target."""
    value: float
    labels: tuple[str, ...] = ()
    """The values of its other labels."""


class Target(Protocol):
    """One thing to execute and time. Methods are called one at a time, from changing threads.

    A target may also have

    ``device``      ``cpu`` or ``cuda[:N]``: whose controls are run beside it;
    ``is_busy()``   whether the host keeps that device busy: a run then waits, or is skipped;
    ``calibrate()`` called once after the first run;
    ``prepare()``   called before the repeats of each run, outside of what is timed;
    ``readings()``  called after them: what to publish beside the timing (:class:`Reading`), 64 at most;
    ``reasons``     those of :data:`Reason` that it names itself, so that they are counted from 0 on.

    For sweeps (docs/sweeps.md)

    ``sized(batch)`` gives an open target of the same model, whose inputs hold ``batch`` samples. It is run beside
                     others of its kind, each in a thread of its own, and then closed. Raises :class:`Unsized`;
    ``samples``      how many samples its own inputs hold (else 1);
    ``reset_peak_memory()``, ``peak_memory()``
                     the most device memory in use since then, in bytes; None where that is not known.
    """

    @property
    def clock(self) -> Clock:
        """What times a repeat; read after :meth:`open`."""
        ...

    def open(self) -> None:
        """Load whatever :meth:`run` needs.

        Raises ``UsageError`` for a user's mistake, which ends the command ``probe``, and :class:`NoCuda`, which
        does not.
        """
        ...

    def run(self, phase: Phase) -> Any:
        """One inference, its parts inside ``with phase(name):``; returns the result."""
        ...

    def values(self, result: Any) -> Sequence[float]:
        """At most 1,024 fixed places of a result, as numbers; some value is not finite if anything in it is not."""
        ...

    def environment(self) -> Mapping[str, str]:
        """What of the engine may change latency: component → version or setting. Read after :meth:`open`."""
        ...

    def close(self) -> None:
        """Let go of what :meth:`open` took."""
        ...


def attribute(reference: str) -> Any:
    """What ``package.module:attribute`` names. Raises :class:`UsageError` in one line."""
    module_name, _, path = reference.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise UsageError(f"`{reference}` is not of the form package.module:attribute")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UsageError(
                f"no module `{error.name}`; install it, or start where it is found (the working directory is searched)"
            ) from None
        raise UsageError(f"`{module_name}` needs the module `{error.name}`, which is not installed") from None
    except (Exception, SystemExit) as error:  # whatever a module does while it is imported
        raise UsageError(f"`{module_name}` cannot be imported: {one_line(error)}; mend it there") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(f"module `{module_name}` has no `{path}`; check the spelling")
        found = getattr(found, name)
    return found


def make(target: str, options: Mapping[str, Any]) -> Target:
    """The target that config names, made with its options. Raises :class:`UsageError` in one line."""
    reference = BUILT_IN.get(target, target)
    if ":" not in reference:
        raise UsageError(
            f"target: no target `{target}`; built in: {', '.join(BUILT_IN)}; or package.module:attribute"
        )
    try:
        factory = attribute(reference)
    except UsageError as error:
        raise UsageError(f"target: {error}") from None
    if not callable(factory):
        raise UsageError(
            f"target: `{reference}` is not callable; name a class or a function that makes a target"
        )
    _check_options(factory, options)
    try:
        made: Target = factory(**options)
    except UsageError as error:
        raise UsageError(f"options: {error}") from None
    except Exception as error:
        raise UsageError(f"options: `{target}` refuses them: {one_line(error)}") from None
    for method in ("open", "run", "values", "environment", "close"):
        if not callable(getattr(made, method, None)):
            raise UsageError(
                f"target: `{target}` gave a {type(made).__name__}, which is no target: it has no method `{method}`"
            )
    return made


def _check_options(factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # written in C, it does not tell
        return
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in options:
            if key not in parameters:
                known = ", ".join(parameters) or "none"
                raise UsageError(f"options: unknown key `{key}`; known keys: {known}")
    for name, parameter in parameters.items():
        keyed = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if keyed and parameter.default is parameter.empty and name not in options:
            raise UsageError(f"options: the required key `{name}` is missing")
