"""A matrix product by the framework's own library, ``torch.mm``, in each precision that the device computes in.

The control `gpu_fma` is scalar code of our own on purpose: no image can change it. This target is its counterpart: what
models spend their time in, by the library that the image has, on Tensor Cores where there are any.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from infercanary.command.settings import UsageError
from infercanary.contract.report import Metric
from infercanary.probe.targets import Need, NoCuda, Reading, Target, register
from infercanary.probe.targets.engines import needs, torch_model, torch_profile
from infercanary.probe.targets.engines.environment import seen_by_nvml
from infercanary.probe.targets.engines.tensors import TensorSpec
from infercanary.probe.timing import CudaClock, HostClock, Phase, Timing, inferences_of_100_us

T = TypeVar("T")

FLOPS = Metric(
    "infercanary_matmul_flops_per_second",
    "gauge",
    "Floating-point operations per second of torch's matrix product, by precision, in the last runs.",
    ("canary", "precision"),
    reading="Compare it with its own earlier values. A precision that the device can only emulate has no series.",
)
UNUSED = Metric(
    "infercanary_matmul_tensorcores_unused",
    "gauge",
    "1 if half precision is less than 1.2 times as fast as float32 on a GPU with Tensor Cores, else 0.",
    ("canary",),
    reading="1 is an alert: the image's torch or cuBLAS has no kernel for this GPU. Install a build for it.",
)

ADVICE = "half precision is no faster than float32: Tensor Cores are not in use; install a torch built for this GPU"
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
_DTYPES = {"tf32": "float32"}
"""The dtype of the operands, where the precision is not its name."""
_SIZE = {"cpu": 1024, "cuda": 4096}
_MOST = 32768
_RECENT = 5
_MAX_VALUES = 1024
_FIRST_BFLOAT16 = (8, 0)
_FIRST_TENSOR_CORES = (7, 0)
# Tensor Cores make half precision twice as fast as float32 or more: 71 beside 36 TFLOP/s on a GeForce RTX 3090, 312
# beside 19.5 on an A100 (NVIDIA's white papers on GA102, appendix A, and on the A100).
_FASTER = 1.2
# oneDNN's levels of instructions without bfloat16, and the CPU's own names of what has it (Linux, x86-64 and AArch64):
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
_BFLOAT16_FEATURES = {"amx_bf16", "avx512_bf16", "bf16"}


@register("matmul")
def matmul(
    size: int | None = None, device: str = "cpu", precision: str | None = None, seed: int = 0
) -> MatmulTarget:
    """Make the target for a process of the probe's own, in which torch's switch for TF32 may be used.

    Args:
        size: See :class:`MatmulTarget`, as of all the others.
        device: Where it computes.
        precision: The one that is timed.
        seed: Of the operands.

    Returns:
        The target, not open.
    """
    return MatmulTarget(size, device, precision, seed, own_process=True)


class MatmulTarget(Target):
    """Multiplies two square matrices. One precision is the canary's latency; the others are readings beside it.

    Operands stay on the device: there is nothing to copy, so the phases are ``compute`` and on CUDA ``launch`` and
    ``queue``. A repeat on CUDA is as many products as take 100 µs.
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
        """Check the options; torch is imported by :meth:`open`.

        Args:
            size: Rows and columns; by default 1,024 on a CPU and 4,096 on a GPU.
            device: ``cpu``, ``cuda`` or ``cuda:N``.
            precision: The one that is timed, of :data:`PRECISIONS`: by default what models use, which is half precision
                on a GPU and float32 on a CPU.
            seed: The operands are drawn from it.
            own_process: Whether torch's switch between float32 and TF32 may be set around a product. It is the whole
                process's: in a server, requests beside it could be computed with the other precision. Without it the
                product in single precision is that which the process has, under its own name.

        Raises:
            UsageError: An option cannot be meant so.
        """
        if size is not None and not (
            isinstance(size, int) and not isinstance(size, bool) and 16 <= size <= _MOST
        ):
            raise UsageError(f"size: `{size}` is not a whole number from 16 to {_MOST}")
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device, re.ASCII):
            raise UsageError(f"device: `{device}` is none of cpu, cuda, cuda:N")
        if precision not in (None, *PRECISIONS):
            raise UsageError(f"precision: `{precision}` is none of {', '.join(PRECISIONS)}")
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**62:
            raise UsageError(f"seed: `{seed}` is not a whole number from 0 on")
        self.device = device
        self.size = size if size is not None else _SIZE[device.partition(":")[0]]
        self.precision = precision or ""
        """The one that is timed; where it was not given, known after :meth:`open`."""
        self.precisions: tuple[str, ...] = ()
        """Those that are measured; known after :meth:`open`."""
        self.cuda_missing = ""
        """``cpu_only_build``, ``version_mismatch`` or ``no_device`` where CUDA was asked for and torch has none."""
        self.clock: _KeepingClock = _KeepingClock(HostClock())
        self._given = precision
        self._seed = seed
        self._own_process = own_process
        self._operands: dict[str, tuple[Any, Any, Any]] = {}
        self._seconds: dict[str, deque[float]] = {}
        self._has_tensor_cores = False

    def open(self) -> None:
        """Import torch, find out which precisions there are, and draw the operands.

        Raises:
            UsageError: torch is not installed, or the device does not have the precision that was asked for.
            Failure: torch's libraries do not fit, or are not there; or memory does not suffice.
            NoCuda: torch has no CUDA; :attr:`cuda_missing` says why.
        """
        self._torch = torch_profile.imported_torch()
        torch, self._device = self._torch, self._torch.device(self.device)
        if self._device.type == "cuda":
            self.cuda_missing, why = torch_model.why_no_cuda(torch, self._device)
            if self.cuda_missing:
                raise NoCuda(
                    f"device: `{self.device}` was asked for{seen_by_nvml()}, but {why}, or set `device: cpu`"
                )
            self.clock = _KeepingClock(CudaClock(torch.cuda, self._device))
            self._has_tensor_cores = has_tensor_cores(torch, self._device)
            single, half = self._of_gpu()
        else:
            single, half = ("float32",), "bfloat16" if has_native_bfloat16(torch) else ""
        self.precisions = (*single, half) if half else single
        self.precision = self._given or (half if self._device.type == "cuda" else single[0])
        if self.precision not in self.precisions:
            raise UsageError(
                f"precision: `{self.precision}` is not one that torch {torch.__version__} computes in natively on "
                f"{self.device} here; there is {', '.join(self.precisions)}"
            )
        self._seconds = {name: deque(maxlen=_RECENT) for name in self.precisions if name != self.precision}
        self.ask_for_memory(self._needs())
        if self._device.type == "cuda":
            torch_model.bound(torch, self._device, self.device_memory_left)
        drawn = [
            torch_model.drawn(torch, TensorSpec(shape=(self.size, self.size)), i, self._seed)
            for i in range(2)
        ]
        with self._stream():
            for name in {_DTYPES.get(name, name) for name in self.precisions}:
                a, b = (matrix.to(self._device, getattr(torch, name)) for matrix in drawn)
                self._operands[name] = a, b, torch.empty_like(a)

    def prepare(self) -> None:
        """Begin a run: its rate is that of its own repeats."""
        self.clock.seconds.clear()

    def run(self, phase: Phase) -> Any:
        """Multiply, in the precision that is timed."""
        return self._product(self.precision, phase)

    def calibrate(self) -> None:
        """Choose how many products a repeat has, and measure each other precision a few times; called after a run."""
        if isinstance(self.clock.clock, CudaClock):
            self.clock.clock.batch = inferences_of_100_us(self.clock.clock, self.run)
        for _ in range(_RECENT):
            self._measure_others()

    def is_busy(self) -> bool:
        """Say whether work of the host's is waiting or running on the device's default stream."""
        return self._device.type == "cuda" and not self._torch.cuda.default_stream(self._device).query()

    def values(self, result: Any) -> list[float]:
        """Return evenly spread places of the product, and NaN if anything in it is not finite."""
        with self._stream():
            flat = result.reshape(-1)
            chosen: list[float] = flat[:: -(-flat.numel() // _MAX_VALUES)].double().tolist()
            if not bool(self._torch.isfinite(flat).all()):
                chosen[-1] = float("nan")
        return chosen

    def readings(self) -> Sequence[Reading]:
        """Return the rates of all precisions, and whether half precision is no faster than single on Tensor Cores."""
        self._measure_others()
        seconds = {name: median(recent) for name, recent in self._seconds.items()}
        if self.clock.seconds:
            seconds[self.precision] = median(self.clock.seconds)
        flops = 2.0 * self.size**3
        found = [
            Reading(FLOPS, flops / seconds[name], (name,)) for name in self.precisions if seconds.get(name)
        ]
        half = next((seconds[name] for name in ("bfloat16", "float16") if seconds.get(name)), None)
        single = seconds.get("float32")
        if self._has_tensor_cores and single and half:
            found.append(Reading(UNUSED, float(single / half < _FASTER)))
        return found

    def environment(self) -> Mapping[str, str]:
        """Report what the torch target does, and the product's size and precisions."""
        own = {
            "matmul_size": str(self.size),
            "matmul_precision": self.precision,
            "matmul_precisions": " ".join(self.precisions),
        }
        return torch_model.environment(self._torch, self._device, "eager") | {
            k: v for k, v in own.items() if v
        }

    def settings(self) -> Mapping[str, Any]:
        """List the device, the size, the precision that is timed and the seed."""
        return {
            "device": self.device.partition(":")[0],
            "size": self.size,
            "precision": self.precision,
            "seed": self._seed,
        }

    def close(self) -> None:
        """Drop the operands."""
        self._operands = {}

    def _needs(self) -> list[Need]:
        """Two matrices that are drawn; where they are multiplied their copies of each precision, and the products."""
        shape = self.size, self.size
        size = 2 * needs.of_input("size", shape, "float32").size
        drawn = Need("size", size, f"matrices of {self.size} × {self.size}", "give a smaller size")
        sizes = {
            name: needs.of_input("size", shape, name).size
            for name in {_DTYPES.get(name, name) for name in self.precisions}
        }
        if self._device.type == "cpu":  # what is drawn in float32 is not copied
            more = sum(one if name == "float32" else 3 * one for name, one in sizes.items())
            return [drawn._replace(size=drawn.size + more)]
        return [drawn, drawn._replace(size=3 * sum(sizes.values()), where="device")]

    def _of_gpu(self) -> tuple[tuple[str, ...], str]:
        """The GPU's precisions: single, and half."""
        torch, capability = self._torch, self._torch.cuda.get_device_capability(self._device)
        is_ampere = torch.version.cuda is not None and capability >= _FIRST_BFLOAT16
        if not self._own_process:
            single: tuple[str, ...] = ("tf32",) if is_ampere and _uses_tf32(torch) else ("float32",)
        else:
            single = ("float32", "tf32") if is_ampere else ("float32",)
        with torch.cuda.device(self._device):
            # Without emulation: torch also says yes where it would compute bfloat16 as float32.
            return single, "bfloat16" if torch.cuda.is_bf16_supported(
                including_emulation=False
            ) else "float16"

    def _measure_others(self) -> None:
        """Once each: the median of several runs is not moved by what disturbs one."""
        for name, recent in self._seconds.items():
            timing, _ = self.clock.clock.measure(partial(self._product, name))
            recent.append(timing.phases["compute"])

    def _product(self, precision: str, phase: Phase) -> Any:
        torch = self._torch
        a, b, out = self._operands[_DTYPES.get(precision, precision)]
        switched = (
            _tf32(torch, precision == "tf32")
            if self._own_process and "tf32" in self.precisions
            else nullcontext()
        )
        with torch.inference_mode(), switched, phase("compute"):
            for _ in range(self.clock.batch):
                torch.mm(a, b, out=out)
        return out

    def _stream(self) -> AbstractContextManager[Any]:
        clock = self.clock.clock
        if isinstance(clock, CudaClock):
            stream: AbstractContextManager[Any] = self._torch.cuda.stream(clock.stream)
            return stream
        return nullcontext()


class _KeepingClock:
    """A clock that keeps how long each repeat computed.

    Args:
        clock: What times.
    """

    def __init__(self, clock: HostClock | CudaClock) -> None:
        self.clock = clock
        self.seconds: list[float] = []

    @property
    def batch(self) -> int:
        """How many products a repeat has."""
        return self.clock.batch

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`~infercanary.probe.timing.Clock`."""
        timing, result = self.clock.measure(run)
        if (seconds := timing.phases.get("compute")) is not None:
            self.seconds.append(seconds)
        return timing, result


def has_native_bfloat16(
    torch: Any, variables: Mapping[str, str] = os.environ, cpus: Path = Path("/proc/cpuinfo")
) -> bool:
    """Whether torch computes in bfloat16 on this CPU by instructions for it; else it emulates that, orders slower.

    An image may forbid what the CPU has: by a variable, or by a torch without oneDNN. To time it would be no answer: in
    a container with less CPU than threads, products in float32 may take as long.

    Args:
        torch: The module.
        variables: Of the environment.
        cpus: What the kernel says of the CPUs.
    """
    allowed = variables.get("ONEDNN_MAX_CPU_ISA", variables.get("DNNL_MAX_CPU_ISA", "")).upper()
    if allowed in _WITHOUT_BFLOAT16 or not torch.backends.mkldnn.is_available():
        return False
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpus.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return False
    return found is not None and not _BFLOAT16_FEATURES.isdisjoint(found[1].split())


def has_tensor_cores(torch: Any, device: Any) -> bool:
    """Whether a GPU has Tensor Cores: those of compute capability 7.0 and later, but for Turing's smaller ones.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities; of 7.5 only those called RTX, and the
    T4, have them (a GTX 1650 has not).

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
    """Whether this process computes products of float32 in TF32."""
    switch = torch.backends.cuda.matmul
    now = getattr(switch, "fp32_precision", None)
    return bool(switch.allow_tf32) if now is None else now == "tf32"


@contextmanager
def _tf32(torch: Any, on: bool) -> Iterator[None]:
    """Set torch's switch for a moment. Of two interfaces only the newer may be used where there is one (torch 2.9)."""
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
