"""Registry of targets. Each file in ``targets/`` registers its target; all other targets are
``package.module:attribute``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from infercanary.command.settings import UsageError, unknown_key
from infercanary.probe.deadline import one_line
from infercanary.probe.targets.target import Target
from infercanary.probe.timing import Phase

Factory = Callable[..., Target]
F = TypeVar("F", bound=Factory)


_PACKAGE = __name__.rpartition(".")[0]
_registered: dict[str, Factory] = {}


def register(name: str) -> Callable[[F], F]:
    """Register a class, or a function that makes a target, under the name that settings use.

    ::

        @register("tensorrt")
        class TensorRtTarget: ...

    Args:
        name: Value of ``target:`` in probe.yaml. If the file has the same name, no other file is imported.

    Returns:
        A decorator that returns its argument.
    """

    def registering(factory: F) -> F:
        _registered[name] = factory
        return factory

    return registering


def names() -> list[str]:
    """Return the sorted names of all registered targets. This imports every file of the package."""
    for module in _modules():
        importlib.import_module(module)
    return sorted(_registered)


def registered(name: str) -> Factory | None:
    """Return the factory of a registered target; None if no file registers this name.

    The function imports as few files as possible, so that a probe with one canary does not pay for other targets.
    """
    for module in sorted(_modules(), key=lambda module: module != f"{_PACKAGE}.{name}"):
        if name in _registered:
            break
        importlib.import_module(module)
    return _registered.get(name)


def attribute(reference: str) -> Any:
    """Import the object that a reference names.

    Args:
        reference: ``package.module:attribute``.

    Raises:
        UsageError: The reference has another form, or the object does not exist.
    """
    module_name, _, path = reference.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise UsageError(f"`{reference}` is not of the form package.module:attribute")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"`{module_name}` cannot be imported: no module `{error.name}`; install the module, or start in its folder "
            "(the working directory is searched)"
        ) from None
    except (Exception, SystemExit) as error:  # a module may raise any exception during its import
        raise UsageError(f"`{module_name}` cannot be imported: {one_line(error)}; fix the module") from None
    file = getattr(found, "__file__", None) or "built in"
    try:
        return attrgetter(path)(found)
    except AttributeError:
        raise UsageError(f"module `{module_name}` ({file}) has no `{path}`; check the spelling") from None


def factory_at(key: str, reference: str) -> Callable[..., Any]:
    """Import a class, or a function that makes an object, for an option.

    Raises:
        UsageError: See :func:`attribute`, or the object cannot be called; the text begins with the option's key.
    """
    try:
        factory = attribute(reference)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from None
    if not callable(factory):
        raise UsageError(
            f"{key}: `{reference}` is not callable; name a class or a function that makes the {key}"
        )
    made: Callable[..., Any] = factory
    return made


def make(target: str, options: Mapping[str, Any]) -> Target:
    """Make the target that settings name.

    Args:
        target: Name of a registered target, or ``package.module:attribute``.
        options: Keyword arguments of the target.

    Returns:
        The target before :meth:`Target.open`. :func:`adapt` converts a target without base class.

    Raises:
        UsageError: The target is unknown, or the options do not fit it.
    """
    factory = factory_at("target", target) if ":" in target else registered(target)
    if factory is None:
        raise UsageError(
            f"target: no target `{target}`; built in: {', '.join(names())}; or package.module:attribute"
        )
    struct = getattr(factory, "options_type", None)
    try:
        _check_options(parameters(factory), options)
        return factory(**options) if struct is None else factory(struct(**options))
    except UsageError as error:
        raise UsageError(f"options: {error}") from None
    except Exception as error:
        raise UsageError(f"options: `{target}` does not accept them: {one_line(error)}") from None


def adapt(target: Any) -> Target:
    """Give a target of release 0.1.0 (without the base class) the current interface."""
    return target if isinstance(target, Target) else _PlainTarget(target)


_NEW_NAMES = "kind", "memory", "reset_memory_peak", "profile", "profiler", "copy_with_batch", "is_sweepable"
_OLD_NAMES = {name: name for name in vars(Target) if not name.startswith("_") and name not in _NEW_NAMES} | {
    "identity": "model_identity",
    "settings": "measured_settings",
}


class _PlainTarget(Target):
    """Adapter for a target of release 0.1.0, which lacks the base class and has old names for two methods."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattribute__(self, name: str) -> Any:
        if name in _OLD_NAMES and hasattr(self._plain, _OLD_NAMES[name]):
            return getattr(self._plain, _OLD_NAMES[name])
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        has_it = name in _OLD_NAMES and hasattr(self._plain, name)
        object.__setattr__(self._plain if has_it else self, name, value)

    def open(self) -> None: ...

    def run(self, phase: Phase) -> Any: ...

    def values(self, result: Any) -> Any: ...

    @property
    def kind(self) -> str:
        return type(self._plain).__name__


def _modules() -> Iterator[str]:
    """Yield the full names of the package's files. Subpackages are left out, because they contain shared code."""
    path = importlib.import_module(_PACKAGE).__path__
    return (f"{_PACKAGE}.{module.name}" for module in pkgutil.iter_modules(path) if not module.ispkg)


def parameters(factory: Factory) -> Mapping[str, inspect.Parameter]:
    """Return the options of a target by name.

    Args:
        factory: Class of the target, or a function that makes it.

    Returns:
        Name → parameter.

    Raises:
        ValueError: The factory is written in C and has no signature.
    """
    return inspect.signature(getattr(factory, "options_type", factory)).parameters


def _check_options(known: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        for key in options:
            if key not in known:
                raise UsageError(unknown_key(key, [*known]))
