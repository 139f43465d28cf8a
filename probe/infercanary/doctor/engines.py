"""The engines in this Python, and what each needs. Each is imported, as a probe would."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from infercanary.command.extras import advice
from infercanary.doctor.ability import Ability, Machine, absent, check, limited, ok, refused
from infercanary.probe.deadline import one_line
from infercanary.probe.targets.engines.cuda_versions import unfit_driver, wheel_cuda

_IMPORT_SECONDS = 120.0
"""torch with CUDA reads gigabytes from a cold disk."""


def _imported(name: str, needed: str) -> Any:
    """The module; an Ability where it fails, or there is none, with what that is needed for."""
    if find_spec(name) is None:
        return absent(f"not installed: {needed}")
    try:
        return import_module(name)
    except Exception as error:
        return refused(
            f"importing it fails: {one_line(error)}", "reinstall it, for this Python and this driver"
        )


@check("engines", "torch", seconds=_IMPORT_SECONDS)
def _torch(machine: Machine) -> Ability:
    needed = f"targets `torch` and `matmul` need it ({advice('torch')})"
    if isinstance(torch := _imported("torch", needed), Ability):
        return torch
    built = torch.version.cuda
    found = f"torch {torch.__version__}, {f'CUDA {built}' if built else 'without CUDA'}"
    if built and (why := unfit_driver(f"torch {torch.__version__}", built)):
        return refused(why, found=found)
    if torch.cuda.is_available():
        return ok(f"{found}, {torch.cuda.device_count()} devices")
    if built:
        return limited(found, "it sees no device, so canaries on `cuda` do not open; `cpu` works")
    return ok(f"{found}: canaries on `cpu`")


@check("engines", "torch.compile")
def _compile(machine: Machine) -> Ability:
    if find_spec("torch") is None:
        return absent("no torch")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    has_triton = find_spec("triton") is not None
    if compiler is None:
        return limited(
            "", "no C compiler, which torch.compile needs", "install gcc, or leave mode: compile out"
        )
    if not has_triton:
        return limited(compiler, "no Triton: mode `compile` works on `cpu` only", "install triton for CUDA")
    return ok(f"{compiler} and Triton")


@check("engines", "onnxruntime", seconds=_IMPORT_SECONDS)
def _onnxruntime(machine: Machine) -> Ability:
    needed = f"the target `onnx` needs it ({advice('onnx')}, or onnxruntime-gpu)"
    if isinstance(engine := _imported("onnxruntime", needed), Ability):
        return engine
    providers = engine.get_available_providers()
    found = f"onnxruntime {engine.__version__}: {', '.join(providers)}"
    built = getattr(engine, "cuda_version", "") if "CUDAExecutionProvider" in providers else ""
    if built and (why := unfit_driver(f"onnxruntime {engine.__version__}", built)):
        return refused(why, found=found)
    return ok(found)


@check("engines", "tensorrt", seconds=_IMPORT_SECONDS)
def _tensorrt(machine: Machine) -> Ability:
    if isinstance(engine := _imported("tensorrt", "the target `tensorrt` needs it"), Ability):
        return engine
    version = engine.__version__
    if why := unfit_driver(f"tensorrt {version}", wheel_cuda("tensorrt", version)):
        return refused(why, found=f"tensorrt {version}")
    return ok(f"tensorrt {version}")
