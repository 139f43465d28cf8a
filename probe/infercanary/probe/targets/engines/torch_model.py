"""Functions of the PyTorch target that use torch: loading models, making inputs, and reading torch's settings.

The functions receive ``torch`` as an argument, because this module does not import torch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from infercanary.command.settings import UsageError, convert
from infercanary.probe.deadline import one_line
from infercanary.probe.targets.engines.cuda_versions import CHECK_DRIVER, driver_cuda, no_cuda, unfit_driver
from infercanary.probe.targets.engines.environment import reported
from infercanary.probe.targets.engines.options import check_file
from infercanary.probe.targets.engines.tensors import TensorSpec, pieces
from infercanary.probe.targets.registry import factory_at

AutocastDtype = Literal["bfloat16", "float16"]
"""Dtypes for ``torch.autocast``, on CPU and CUDA."""

_FILES = (".pt", ".ts", ".torchscript", ".pt2")


def is_file(source: object) -> bool:
    """True if a model's source is the name of a model file."""
    return isinstance(source, str) and Path(source).suffix in _FILES


def load(torch: Any, source: str | Callable[..., Any], device: Any, seed: int) -> Callable[..., Any]:
    """Load a model in evaluation mode.

    Args:
        torch: The module.
        source: ``package.module:factory``, a TorchScript file, a ``torch.export`` file, or the model itself.
        device: The ``torch.device`` to which the model is moved.
        seed: Seed of weights that the factory draws.

    Raises:
        UsageError: There is no such model, or the model cannot be loaded.
    """
    if not isinstance(source, str):
        return source
    if is_file(source):
        return _load_file(torch, source, device)
    if ":" not in source:
        raise UsageError(
            f"model: `{source}` is neither package.module:factory nor a {', '.join(_FILES)} file"
        )
    factory = factory_at("model", source)
    with torch.random.fork_rng(devices=[]):  # keep the random state of the process and its GPUs unchanged
        torch.default_generator.manual_seed(seed)
        model = factory()
    if not callable(model):
        raise UsageError(f"model: `{source}()` returned a {type(model).__name__}, which cannot be called")
    made: Callable[..., Any] = model.to(device).eval() if isinstance(model, torch.nn.Module) else model
    return made


def read_inputs(inputs: Any) -> list[Any]:
    """Read the option ``inputs``: specifications, tensors, or a single tensor.

    Raises:
        UsageError: An entry is neither a specification with a shape nor a tensor.
    """
    given = [inputs] if hasattr(inputs, "dtype") else convert(inputs, list[Any], "inputs")
    for i, entry in enumerate(given):
        if not hasattr(entry, "dtype"):
            given[i] = spec = convert(entry, TensorSpec, f"inputs[{i}]")
            if spec.shape is None:
                raise UsageError(f"inputs[{i}]: the required key `shape` is missing")
    return given


def drawn(torch: Any, spec: TensorSpec, index: int, seed: int, is_pinned: bool = False) -> Any:
    """Draw an input: normal numbers for a floating dtype, else integers in ``[0, high)``.

    Args:
        torch: The module.
        spec: Specification with a shape; the default dtype is float32.
        index: Position of the input: each input has its own stream of numbers.
        seed: Seed of the target; the process's random state stays unchanged.
        is_pinned: True if the tensor will be copied to a GPU.

    Returns:
        A tensor on the CPU, drawn in pieces to save memory.

    Raises:
        UsageError: torch lacks the dtype, or cannot make the tensor.
    """
    name = spec.dtype or "float32"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"inputs[{index}].dtype: torch has no dtype `{name}`; it has float32, bfloat16, int64, …"
        )
    generator = torch.Generator().manual_seed(seed + index)
    is_real = dtype.is_floating_point or dtype.is_complex
    try:
        made = torch.empty(spec.shape or (), dtype=dtype, pin_memory=is_pinned)
        flat = made.view(-1)
        for start, end in pieces(flat.numel()):
            draw = torch.randn if is_real else partial(torch.randint, 0, spec.high)
            flat[start:end].copy_(draw((end - start,), generator=generator))
    except Exception as error:
        if is_pinned and "CUDA" in str(error):  # an error of the GPU is no mistake in the settings
            raise
        raise UsageError(f"inputs[{index}]: torch cannot make the tensor: {one_line(error)}") from None
    return made


def limit_memory(torch: Any, device: Any, left: Callable[[], int | None]) -> None:
    """Limit torch's allocator to the remaining device memory. Beyond this limit, torch raises its out-of-memory
    error.
    """
    # mem_get_info makes the CUDA context first, so that left() excludes the context's memory.
    _, total = torch.cuda.mem_get_info(device)
    if (size := left()) is not None:
        held = torch.cuda.memory_reserved(device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, (held + size) / total), device)


def autocasting(
    torch: Any, model: Callable[..., Any], device: Any, dtype: str, caches: bool
) -> Callable[..., Any]:
    """Return the model under ``torch.autocast``, which uses a lower precision in operations where that is safe.

    Args:
        torch: The module.
        model: Callable that takes the inputs.
        device: The ``torch.device`` of the model.
        dtype: An ``AutocastDtype``.
        caches: True to cast a weight only once if an inference uses the weight twice.

    Raises:
        UsageError: torch does not compute in this dtype on this device. torch itself only warns and uses full
            precision.
    """
    wanted = getattr(torch, dtype)

    def cast(*inputs: Any) -> Any:
        with torch.autocast(device.type, dtype=wanted, cache_enabled=caches):
            return model(*inputs)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.autocast(device.type, dtype=wanted)
    except (RuntimeError, Warning) as error:
        raise UsageError(f"autocast: torch cannot use {dtype} on {device}: {one_line(error)}") from None
    return cast


def repeated(torch: Any, tensor: Any, size: int) -> Any:
    """Return a copy that is repeated until its first dimension is ``size``. A single number is only copied."""
    return tensor[torch.arange(size, device=tensor.device) % len(tensor)] if tensor.dim() else tensor.clone()


def environment(
    torch: Any, device: Any, mode: str, compile_mode: str | None = None, autocast: str | None = None
) -> dict[str, str]:
    """Return the versions of torch, CUDA and cuDNN, build flags, device, threads and settings that change kernels.

    Args:
        torch: The module.
        device: The ``torch.device`` of the model.
        mode: ``eager``, ``compile`` or ``graph``.
        compile_mode: Mode of ``torch.compile``; None if nothing is compiled.
        autocast: Dtype of autocast; None if autocast is off.
    """
    flags = re.findall(r"\b(BLAS_INFO|LAPACK_INFO|BUILD_TYPE|USE_\w+)=([^,\s]+)", torch.__config__.show())
    components = {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda or "none (CPU-only build)",
        "torch_build": " ".join(f"{k}={v}" for k, v in sorted(flags) if v not in ("OFF", "0")),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability,
        "torch_intra_op_threads": torch.get_num_threads,
        "torch_inter_op_threads": torch.get_num_interop_threads,
        "torch_float32_matmul_precision": partial(_matmul_precision, torch),
        "torch_deterministic": torch.are_deterministic_algorithms_enabled,
        "torch_mkldnn": lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "torch_device": str(device),
        "torch_mode": mode,
        "torch_compile_mode": compile_mode,
        "torch_autocast": autocast,
        "torch_cudnn": lambda: (
            torch.backends.cudnn.version()
            if torch.version.cuda and torch.backends.cudnn.is_available()
            else ""
        ),
    }
    if device.type == "cuda":
        components |= {
            "torch_driver_cuda": driver_cuda,
            "torch_cuda_device": lambda: torch.cuda.get_device_name(device),
            "torch_cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        }
    return reported(components)


def _matmul_precision(torch: Any) -> str:
    try:
        precision: str = torch.get_float32_matmul_precision()
    except RuntimeError:  # the process made this setting through the newer interface of torch 2.9
        precision = torch.backends.cuda.matmul.fp32_precision
    return precision


def require_cuda(torch: Any, device: Any) -> None:
    """Raise an error if torch cannot run on this GPU.

    Raises:
        NoCuda: torch is a CPU-only build, or sees no GPU, or the driver is too old.
        UsageError: There are GPUs, but none with this number.
    """
    asked = f"device: `{device}`"
    if torch.cuda.is_available():
        last = torch.cuda.device_count() - 1
        if device.index is not None and device.index > last:
            raise UsageError(f"{asked} was requested, but the last GPU that torch sees is `cuda:{last}`")
        return
    name, built_for = f"torch {torch.__version__}", torch.version.cuda
    if built_for is None:
        reason, why = "cpu_only_build", f"{name} is a CPU-only build; install a CUDA build of torch"
    elif why := unfit_driver(name, built_for):
        reason = "version_mismatch"
    else:
        reason, why = "no_device", f"{name} (CUDA {built_for}) sees no device; {CHECK_DRIVER}"
    raise no_cuda(asked, f"{why}, or set `device: cpu`", reason)


def _load_file(torch: Any, path: str, device: Any) -> Callable[..., Any]:
    check_file("model", path)
    model: Callable[..., Any]
    try:
        if path.endswith(".pt2"):
            model = torch.export.load(path).module().to(device)
        else:
            model = torch.jit.load(path, map_location=device).eval()
    except Exception as error:
        raise UsageError(
            f"model: `{path}` cannot be loaded ({one_line(error)}); "
            "save the model with torch.jit.save (.pt, .ts) or torch.export.save (.pt2)"
        ) from None
    return model
