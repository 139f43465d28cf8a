"""ONNX Runtime's execution providers: their names in settings, and reasons why a provider or a model does not load."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from infercanary.command.settings import UsageError, convert
from infercanary.probe.deadline import one_line

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
ON_CUDA = (CUDA, TENSORRT)
SHORT = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}
_Names = Annotated[list[str], Meta(min_length=1)]


def full_names(providers: object) -> list[str]:
    """Return ONNX Runtime's names for the option ``providers``, which is a name or a list of names."""
    given = [providers] if isinstance(providers, str) else convert(providers, _Names, "providers")
    names = [_full_name("providers", name) for name in given]
    if len(set(names)) < len(names):
        raise UsageError(f"providers: {', '.join(names)} names a provider twice; remove the second name")
    return names


def short_name(provider: str) -> str:
    """Return a provider's short name in settings; without a short name, ONNX Runtime's name."""
    return next((name for name, full in SHORT.items() if full == provider), provider)


def read_provider_options(providers: Sequence[str], given: object) -> dict[str, dict[str, str]]:
    """Return the option ``provider_options`` with ONNX Runtime's names of the providers as keys.

    Args:
        providers: ONNX Runtime's names of the requested providers.
        given: Value in the settings.
    """
    options = {
        _full_name("provider_options", name): read_texts(f"provider_options.{name}", of_provider)
        for name, of_provider in convert(given or {}, dict[str, Any], "provider_options").items()
    }
    for provider in options:
        if provider not in providers:
            raise UsageError(
                f"provider_options: `{short_name(provider)}` is not in `providers`; add it there"
            )
    return options


def device_id(options: Mapping[str, Mapping[str, str]]) -> int:
    """Return the only GPU in the provider options; 0 if the options name no GPU."""
    ids = {options[name]["device_id"] for name in ON_CUDA if "device_id" in options.get(name, {})} or {"0"}
    if len(ids) > 1:
        raise UsageError("provider_options: `device_id` differs between the providers; give one GPU")
    [text] = ids
    if not re.fullmatch(r"\d{1,3}", text, re.ASCII):
        raise UsageError(f"provider_options: device_id: `{text}` is not the number of a GPU")
    return int(text)


def read_texts(place: str, options: object) -> dict[str, str]:
    """Convert a mapping of plain values to texts in ONNX Runtime's format (true becomes 1)."""
    values = convert({} if options is None else options, dict[str, bool | int | float | str], place)
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in values.items()}


def library_fault(onnxruntime: Any, provider: str) -> str:
    """Return the loader's error for a provider's library, usually a missing dependency; empty if the library loads.

    Call this only after ONNX Runtime has tried to load the provider: ONNX Runtime does not find a library that is
    already loaded.
    """
    folder = Path(onnxruntime.__file__).parent / "capi"
    library = folder / f"libonnxruntime_providers_{provider.removesuffix('ExecutionProvider').lower()}.so"
    try:
        if library.is_file():
            ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library))
    except OSError as error:
        return one_line(error)
    return ""


def why_not(error: Exception, path: str, version: str) -> str:
    """Explain why ONNX Runtime does not load a model, and give the fix.

    Args:
        error: Error from ONNX Runtime; file names and signatures in its message are left out.
        path: File of the model.
        version: Version of ONNX Runtime.
    """
    text = str(error)
    newer = re.search(r"(?:IR version: |Opset )(\d+).*?(?:version: |till opset )(\d+)", text, re.DOTALL)
    if newer is not None:
        unit = "IR version" if "IR version" in text else "opset"
        return (
            f"is newer than ONNX Runtime {version}: {unit} {newer[1]}, but this version reads {newer[2]} at most; "
            "upgrade onnxruntime, or export the model again with a lower `opset_version`"
        )
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    # Remove source file, line and function from the message.
    text = re.sub(r"/\S+\.(?:cc|h|cpp):\d+ .*?\)(?: const)? ", "", text)
    text = text.replace(f"Load model from {path} failed:", "")
    return (
        f"cannot be loaded by ONNX Runtime {version} ({one_line(type(error)(text))}); "
        "check the file (onnx.checker.check_model), and the options of the session"
    )


def _full_name(place: str, name: str) -> str:
    if name not in SHORT and not re.fullmatch(r"\w+ExecutionProvider", name):
        raise UsageError(
            f"{place}: no provider `{name}`; there are {', '.join(SHORT)}, or ONNX Runtime's name of another "
            "provider, such as OpenVINOExecutionProvider"
        )
    return SHORT.get(name, name)
