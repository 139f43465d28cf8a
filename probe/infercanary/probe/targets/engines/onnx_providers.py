"""ONNX Runtime's execution providers: their names in settings, and why one of them, or a model, does not load."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.probe.deadline import one_line

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
ON_CUDA = (CUDA, TENSORRT)
SHORT = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}


def full_names(providers: object) -> list[str]:
    """Read the option ``providers``.

    Args:
        providers: As in the settings: a name, or a list of names.

    Returns:
        ONNX Runtime's names.

    Raises:
        UsageError: It is no list of names, or has one twice.
    """
    if isinstance(providers, str):
        providers = [providers]
    if not isinstance(providers, Sequence) or isinstance(providers, bytes) or not providers:
        raise UsageError(f"providers: a list is needed, such as [cuda]; short names: {', '.join(SHORT)}")
    names = [_full_name("providers", name) for name in providers]
    if len(set(names)) < len(names):
        raise UsageError(f"providers: {', '.join(names)} has one twice; keep one")
    return names


def short_name(provider: str) -> str:
    """Return the name of a provider in settings.

    Args:
        provider: ONNX Runtime's name; one that has no short name is returned as it is.
    """
    return next((name for name, full in SHORT.items() if full == provider), provider)


def options_of(providers: Sequence[str], given: object) -> dict[str, dict[str, str]]:
    """Read the option ``provider_options``.

    Args:
        providers: ONNX Runtime's names, of those that were asked for.
        given: As in the settings: provider → options.

    Returns:
        ONNX Runtime's name of a provider → its options.

    Raises:
        UsageError: It is no mapping, or names a provider that is not among ``providers``.
    """
    found = {
        _full_name("provider_options", name): texts(f"provider_options.{name}", options)
        for name, options in _mapping("provider_options", given).items()
    }
    for provider in found:
        if provider not in providers:
            raise UsageError(
                f"provider_options: `{short_name(provider)}` is not among the providers; name it there too"
            )
    return found


def device_id(options: Mapping[str, Mapping[str, str]]) -> int:
    """Return the one GPU that provider options name; 0 where they name none.

    Args:
        options: Provider → its options, as :func:`options_of` returns them.

    Raises:
        UsageError: They name several, or something else.
    """
    ids = {each["device_id"] for name, each in options.items() if name in ON_CUDA and "device_id" in each}
    if len(ids) > 1:
        raise UsageError("provider_options: `device_id` differs between the providers; give one GPU")
    text = ids.pop() if ids else "0"
    if not re.fullmatch(r"\d{1,3}", text, re.ASCII):
        raise UsageError(f"provider_options: device_id: `{text}` is not the number of a GPU")
    return int(text)


def texts(place: str, options: object) -> dict[str, str]:
    """Convert options to text, as ONNX Runtime takes them: true is 1.

    Args:
        place: In the settings, for messages.
        options: As in the settings.

    Returns:
        Option → its value as text.

    Raises:
        UsageError: They are no mapping of plain values.
    """
    found = {}
    for key, value in _mapping(place, options).items():
        if not isinstance(value, (str, int, float)):
            raise UsageError(f"{place}: {key}: text, a number, true or false is needed")
        found[key] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def library_fault(onnxruntime: Any, provider: str) -> str:
    """Explain why a provider's library cannot be loaded, usually because it misses another; empty where it can be.

    Call it only after ONNX Runtime tried: a provider that is loaded first does not find ONNX Runtime.

    Args:
        onnxruntime: The module.
        provider: ONNX Runtime's name.

    Returns:
        The loader's error, in one line.
    """
    folder = Path(onnxruntime.__file__).parent / "capi"
    name = provider.removesuffix("ExecutionProvider").lower()
    try:
        if (library := folder / f"libonnxruntime_providers_{name}.so").is_file():
            ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library))
    except OSError as error:
        return one_line(error)
    return ""


def why_not(error: Exception, path: str, version: str) -> str:
    """Explain why ONNX Runtime does not load a model, and how to fix that.

    Args:
        error: What it raised; the file names and signatures in its message are left out.
        path: The model's file.
        version: ONNX Runtime's.

    Returns:
        One line, for people.
    """
    text = str(error)
    too_new = f"is newer than ONNX Runtime {version}: "
    fix = "upgrade onnxruntime, or export it again with a lower `opset_version`"
    if found := re.search(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text):
        return f"{too_new}IR version {found[1]}, and it reads {found[2]} at most; {fix}"
    if found := re.search(
        r"Opset (\d+) is under development.*support for domain (\S+) is till opset (\d+)", text, re.DOTALL
    ):
        return f"{too_new}opset {found[1]} of {found[2]}, and it has {found[3]} at most; {fix}"
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    # Where in its source, and in which function:
    text = re.sub(r"/\S+\.(?:cc|h|cpp):\d+ .*?\)(?: const)? ", "", text)
    text = text.replace(f"Load model from {path} failed:", "")
    return (
        f"cannot be loaded by ONNX Runtime {version} ({one_line(type(error)(text))}); "
        "check the file (onnx.checker.check_model), and the options of the session"
    )


def _full_name(place: str, name: object) -> str:
    if not isinstance(name, str) or (name not in SHORT and not re.fullmatch(r"\w+ExecutionProvider", name)):
        raise UsageError(
            f"{place}: no provider `{name}`; there are {', '.join(SHORT)}, or ONNX Runtime's name of another, "
            "such as OpenVINOExecutionProvider"
        )
    return SHORT.get(name, name)


def _mapping(place: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{place}: a mapping is needed, with text as keys")
    return value
