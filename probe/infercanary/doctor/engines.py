"""Checks of the inference engines installed for this Python. Each check imports its engine, as a probe does."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from infercanary.command.extras import advice
from infercanary.doctor.ability import Ability, Machine, check, limited, ok, refused
from infercanary.probe.samplers import Unavailable
from infercanary.probe.targets.engines.cuda_versions import unfit_driver, wheel_cuda

_IMPORT_SECONDS = 120.0
"""Deadline of an import: torch with CUDA reads gigabytes, which may not be in the page cache."""


def _imported(name: str, needed: str) -> Any:
    if find_spec(name) is None:
        raise Unavailable(f"not installed: {needed}")
    return import_module(name)


def _fitting(engine: str, built: str, found: str) -> Ability:
    """Return "OK", or "limited" if the driver is too old for the engine's CUDA version.

    Args:
        built: CUDA version for which the engine was built; empty for none.
    """
    why = unfit_driver(engine, built) if built else ""
    return refused(why, found=found) if why else ok(found)


@check("engines", "torch", seconds=_IMPORT_SECONDS)
def _torch(machine: Machine) -> Ability:
    torch = _imported("torch", f"targets `torch` and `matmul` need torch ({advice('torch')})")
    built = torch.version.cuda or ""
    engine = f"torch {torch.__version__}"
    found = f"{engine}, {f'CUDA {built}' if built else 'without CUDA'}"
    answer = _fitting(engine, built, found)
    if built and answer.state == "OK" and not torch.cuda.is_available():
        return limited(found, "torch sees no GPU, so canaries run only on `cpu`")
    return answer


@check("engines", "torch.compile", needs="torch")
def _compile(machine: Machine) -> Ability:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return limited(
            "", "no C compiler, which torch.compile needs", "install gcc, or do not use mode: compile"
        )
    if find_spec("triton") is None:
        return limited(compiler, "no Triton: mode `compile` works on `cpu` only", "install triton for CUDA")
    return ok(f"{compiler} and Triton")


@check("engines", "onnxruntime", seconds=_IMPORT_SECONDS)
def _onnxruntime(machine: Machine) -> Ability:
    onnxruntime = _imported(
        "onnxruntime", f"the target `onnx` needs ONNX Runtime ({advice('onnx')}, or onnxruntime-gpu)"
    )
    engine = f"onnxruntime {onnxruntime.__version__}"
    providers = onnxruntime.get_available_providers()
    built = getattr(onnxruntime, "cuda_version", "") if "CUDAExecutionProvider" in providers else ""
    return _fitting(engine, built, f"{engine}: {', '.join(providers)}")


@check("engines", "tensorrt", seconds=_IMPORT_SECONDS)
def _tensorrt(machine: Machine) -> Ability:
    version = _imported("tensorrt", "the target `tensorrt` needs TensorRT").__version__
    engine = f"tensorrt {version}"
    return _fitting(engine, wheel_cuda("tensorrt", version), engine)
