"""A matrix product by torch's own library, ``torch.mm``, in each precision that the device computes natively.

The control `gpu_fma` is the probe's own scalar code, so that no image can change it. This target is its counterpart:
it measures the operation that takes most of a model's time, with the image's library and with Tensor Cores if the GPU
has them.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from infercanary.command.settings import UsageError, convert
from infercanary.contract.report import Metric
from infercanary.probe.targets import Need, Reading, register
from infercanary.probe.targets.engines import torch_model
from infercanary.probe.targets.engines.options import Seed, check_device
from infercanary.probe.targets.engines.tensors import TensorSpec
from infercanary.probe.targets.engines.torch_target import TorchDeviceTarget
from infercanary.probe.timing import Phase

FLOPS = Metric(
    "infercanary_matmul_flops_per_second",
    "gauge",
    "Floating-point operations per second of torch's matrix product, by precision, in the last runs.",
    ("canary", "precision"),
    reading="Compare each rate with its earlier values. A precision that the device can only emulate has no series.",
)
UNUSED = Metric(
    "infercanary_matmul_tensorcores_unused",
    "gauge",
    "1 if half precision is less than 1.2 times as fast as float32 on a GPU with Tensor Cores, else 0.",
    ("canary",),
    reading="1 is an alert: the image's torch or cuBLAS has no kernel for this GPU. Install a build for this GPU.",
)

ADVICE = "half precision is no faster than float32: Tensor Cores are not in use; install a torch built for this GPU"
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
PRECISIONS = get_args(Precision)
_DTYPES = {"tf32": "float32"}
"""Precision → dtype of the operands, for precisions that are not dtypes."""
_SIZE = {"cpu": 1024, "cuda": 4096}
_Size = Annotated[int, Meta(ge=16, le=32768)]
_RECENT = 5
_FIRST_BFLOAT16 = (8, 0)
_FIRST_TENSOR_CORES = (7, 0)
# Tensor Cores make half precision at least twice as fast as float32: 71 compared with 36 TFLOP/s on a GeForce RTX
# 3090, 312 compared with 19.5 on an A100 (NVIDIA's white papers on GA102, appendix A, and on the A100).
_FASTER = 1.2
# Values of oneDNN's limit on instructions that exclude bfloat16, and CPU features (Linux, x86-64 and AArch64) that
# include bfloat16: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
_CPUS = Path("/proc/cpuinfo")
_BFLOAT16_FEATURES = {"amx_bf16", "avx512_bf16", "bf16"}


@register("matmul")
def matmul(
    size: int | None = None, device: str = "cpu", precision: str | None = None, seed: int = 0
) -> MatmulTarget:
    """Make the target for a separate process of the probe, where changing torch's TF32 setting affects no other code.

    Args:
        size: Rows and columns; for this and the other arguments see :class:`MatmulTarget`.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        precision: Precision that is timed.
        seed: Seed of the operands.
    """
    return MatmulTarget(size, device, precision, seed, own_process=True)


class MatmulTarget(TorchDeviceTarget):
    """Multiplies two square matrices. One precision is the canary's latency; readings report the other precisions.

    Operands stay on the device, so nothing is copied: the phase is ``compute``, on CUDA also ``launch`` and
    ``queue``. On CUDA a repeat has as many products as take 100 µs.
    """

    def __init__(
        self,
        size: int | None = None,
        device: str = "cpu",
        precision: str | None = None,
        seed: int = 0,
        *,
        own_process: bool = False,
    ) -> None:
        """Check the options. :meth:`open` imports torch.

        Args:
            size: Rows and columns; by default 1,024 on a CPU and 4,096 on a GPU.
            device: ``cpu``, ``cuda`` or ``cuda:N``.
            precision: Precision that is timed, one of :data:`PRECISIONS`. The default is the usual precision of
                models: half on a GPU, float32 on a CPU.
            seed: Seed of the operands.
            own_process: True if torch's switch between float32 and TF32 may be changed during a product. The switch
                holds for the whole process: in a server, concurrent requests could be computed in the wrong
                precision. If False, only the process's current setting is measured.

        Raises:
            UsageError: An option is invalid.
        """
        check_device(device)
        self.size = _SIZE[device.partition(":")[0]] if size is None else size
        convert(self.size, _Size, "size")
        convert(precision or "float32", Precision, "precision")  # type: ignore[arg-type]
        convert(seed, Seed, "seed")
        self.device = device
        self.precision = precision or ""
        """Timed precision; without the option, known after :meth:`open`."""
        self.precisions: tuple[str, ...] = ()
        """Measured precisions, known after :meth:`open`."""
        self._given = precision
        self._seed = seed
        self._own_process = own_process
        self._operands: dict[str, tuple[Any, Any, Any]] = {}
        self._seconds: dict[str, deque[float]] = {}

    def open(self) -> None:
        """Import torch, find the available precisions, and fill the operands with random numbers.

        Raises:
            UsageError: torch is not installed, or the device lacks the requested precision.
            Failure: torch's libraries are incompatible or missing, or memory is insufficient.
            NoCuda: torch has no CUDA; :attr:`cuda_missing` gives the reason.
        """
        self._open_device()
        torch = self._torch
        self._make_clock()
        self._has_tensor_cores = self._on_cuda and has_tensor_cores(torch, self._device)
        if self._on_cuda:
            self.precisions = self._gpu_precisions()
        else:
            self.precisions = ("float32", "bfloat16") if has_native_bfloat16(torch) else ("float32",)
        self.precision = self._given or self.precisions[-1 if self._on_cuda else 0]
        if self.precision not in self.precisions:
            raise UsageError(
                f"precision: `{self.precision}` is not native for torch {torch.__version__} on {self.device}; "
                f"there is {', '.join(self.precisions)}"
            )
        self._seconds = {name: deque(maxlen=_RECENT) for name in self.precisions}
        self.ask_for_memory(self._needs())
        if self._on_cuda:
            torch_model.limit_memory(torch, self._device, self.device_memory_left)
        spec = TensorSpec(shape=(self.size, self.size))
        drawn = [torch_model.drawn(torch, spec, i, self._seed) for i in range(2)]
        with self._stream():
            for name in self._dtypes():
                a, b = (matrix.to(self._device, getattr(torch, name)) for matrix in drawn)
                self._operands[name] = a, b, torch.empty_like(a)

    def run(self, phase: Phase) -> Any:
        """Multiply in the timed precision."""
        return self._product(self.precision, phase)

    def calibrate(self) -> None:
        """Choose the number of products in a repeat, and measure each precision. Called after the first run."""
        super().calibrate()
        for _ in range(_RECENT):
            self._measure_precisions()

    def readings(self) -> list[Reading]:
        """Return the rates of all precisions and, on a GPU with Tensor Cores, 1 if the Tensor Cores seem unused (else
        0).
        """
        self._measure_precisions()
        seconds = {name: median(recent) for name, recent in self._seconds.items()}
        flops = 2.0 * self.size**3
        found = [Reading(FLOPS, flops / took, (name,)) for name, took in seconds.items() if took]
        half, single = seconds[self.precisions[-1]], seconds.get("float32")
        if self._has_tensor_cores and single and half:
            found.append(Reading(UNUSED, float(single / half < _FASTER)))
        return found

    def environment(self) -> Mapping[str, str]:
        """Return the components of the torch target, and the product's size and precisions."""
        return torch_model.environment(self._torch, self._device, "eager") | {
            "matmul_size": str(self.size),
            "matmul_precision": self.precision,
            "matmul_precisions": " ".join(self.precisions),
        }

    def settings(self) -> Mapping[str, Any]:
        return {
            "device": self.device.partition(":")[0],
            "size": self.size,
            "precision": self.precision,
            "seed": self._seed,
        }

    def close(self) -> None:
        self._operands = {}

    def _dtypes(self) -> set[str]:
        return {_DTYPES.get(name, name) for name in self.precisions}

    def _needs(self) -> list[Need]:
        """Return the memory of two drawn matrices and, for each dtype, of two operands and their product."""
        elements = self.size**2
        multiplied = 3 * elements * sum(4 if name == "float32" else 2 for name in self._dtypes())
        drawn = Need(
            "size", 2 * 4 * elements, f"matrices of {self.size} × {self.size}", "give a smaller size"
        )
        if not self._on_cuda:  # on the CPU, the drawn float32 matrices also serve as operands
            return [drawn._replace(size=multiplied)]
        return [drawn, drawn._replace(size=multiplied, where="device")]

    def _gpu_precisions(self) -> tuple[str, ...]:
        """Return the GPU's precisions, single first and half last."""
        torch, capability = self._torch, self._torch.cuda.get_device_capability(self._device)
        single: tuple[str, ...] = ("float32",)
        if torch.version.cuda is not None and capability >= _FIRST_BFLOAT16:
            if self._own_process:
                single = "float32", "tf32"
            elif _uses_tf32(torch):
                single = ("tf32",)
        with torch.cuda.device(self._device):
            # Exclude emulation: by default, torch also returns True if it would compute bfloat16 as float32.
            is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return *single, "bfloat16" if is_native else "float16"

    def _measure_precisions(self) -> None:
        """Measure each precision once. The caller takes the median of several calls, so one contended measurement
        does no harm.
        """
        for name, recent in self._seconds.items():
            timing, _ = self.clock.measure(partial(self._product, name))
            recent.append(timing.phases["compute"])

    def _product(self, precision: str, phase: Phase) -> Any:
        torch = self._torch
        a, b, out = self._operands[_DTYPES.get(precision, precision)]
        switches = self._own_process and "tf32" in self.precisions
        switched = _tf32(torch, precision == "tf32") if switches else nullcontext()
        with torch.inference_mode(), switched, phase("compute"):
            for _ in range(self.clock.batch):
                torch.mm(a, b, out=out)
        return out


def has_native_bfloat16(torch: Any) -> bool:
    """True if the CPU has bfloat16 instructions and torch uses them. Emulation is slower by orders of magnitude.

    An environment variable, or a torch without oneDNN, can disable the instructions. Timing a product
    would not show emulation reliably: with more threads than CPUs, float32 may take as long.

    Args:
        torch: The module.
    """
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    if allowed in _WITHOUT_BFLOAT16 or not torch.backends.mkldnn.is_available():
        return False
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", _CPUS.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return False
    return found is not None and not _BFLOAT16_FEATURES.isdisjoint(found[1].split())


def has_tensor_cores(torch: Any, device: Any) -> bool:
    """True if a GPU has Tensor Cores: compute capability 7.0 or later, without the Turing GPUs that lack Tensor
    Cores.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities; of capability 7.5, only RTX models
    and the T4 have Tensor Cores (a GTX 1650 has none).

    Args:
        torch: The module.
        device: The ``torch.device``.
    """
    if torch.version.cuda is None:
        return False
    capability = torch.cuda.get_device_capability(device)
    if capability == (7, 5):
        return re.search(r"RTX|\bT4G?\b", torch.cuda.get_device_name(device)) is not None
    return bool(capability >= _FIRST_TENSOR_CORES)


def _uses_tf32(torch: Any) -> bool:
    """True if this process computes float32 products in TF32."""
    switch = torch.backends.cuda.matmul
    now = getattr(switch, "fp32_precision", None)
    return bool(switch.allow_tf32) if now is None else now == "tf32"


@contextmanager
def _tf32(torch: Any, on: bool) -> Iterator[None]:
    """Change torch's TF32 setting in the ``with`` block."""
    switch = torch.backends.cuda.matmul
    is_newer = hasattr(switch, "fp32_precision")
    name = "fp32_precision" if is_newer else "allow_tf32"
    wanted = ("tf32" if on else "ieee") if is_newer else on
    before = getattr(switch, name)
    setattr(switch, name, wanted)
    try:
        yield
    finally:
        setattr(switch, name, before)
