"""The PyTorch target: a model object, a ``module:attribute`` factory, a TorchScript or a ``torch.export`` file."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from infercanary.command.settings import UsageError, convert
from infercanary.probe.deadline import one_line
from infercanary.probe.samplers.nvml import visible_gpus
from infercanary.probe.targets import NoCuda, Unsized, attribute, register
from infercanary.probe.targets.tensors import TensorSpec
from infercanary.probe.timing import CudaClock, HostClock, Phase

_MAX_VALUES = 1024
_BATCH_SECONDS = 100e-6
_BATCH_TRIES = 5
_MAX_BATCH = 1000
_FILES = (".pt", ".ts", ".torchscript", ".pt2")


@register("torch")
class TorchTarget:
    """Runs a PyTorch model on fixed inputs under ``torch.inference_mode()``.

    ``model``   a callable (the server's own model object: it is neither moved nor switched to eval), or text:
                ``package.module:factory``, a TorchScript file (``.pt``, ``.ts``), a ``torch.export`` file (``.pt2``).
    ``inputs``  tensors, or specifications (``{"shape": [1, 3, 224, 224], "dtype": "float32"}``) drawn from ``seed``.
    ``device``  ``cpu``, ``cuda`` or ``cuda:N``: where the inputs go, and a model that is loaded here.
    ``mode``    ``eager``, ``compile`` (``torch.compile``), or ``graph`` (captured once as a CUDA graph, then replayed).
                The same model as three canaries tells a slow launch from a slow GPU: the graph has hardly any launches.

    ``cpu_fallback``  whether to run on the CPU where CUDA was asked for and torch has none (a CPU-only wheel). By
                default that is refused: it would be a canary of something else. ``cuda_missing`` says why.

    On CUDA a repeat is as many inferences as take 100 µs on the device: events resolve about 0.5 µs. A run is put off
    while this process has work on the device's default stream; a server in another process, or on streams of its own,
    is not seen by that: its load is in the runs' tag ``gpu_busy``.
    """

    def __init__(
        self,
        model: str | Callable[..., Any],
        inputs: Sequence[Any] | Any,
        device: str = "cpu",
        mode: Literal["eager", "compile", "graph"] = "eager",
        seed: int = 0,
        cpu_fallback: bool = False,
    ) -> None:
        if not callable(model) and not (isinstance(model, str) and model):
            raise UsageError(
                "model: name `package.module:factory` or a .pt, .ts or .pt2 file, or pass the model"
            )
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise UsageError(f"device: `{device}` is none of cpu, cuda, cuda:N")
        if mode not in ("eager", "compile", "graph"):
            raise UsageError(f"mode: `{mode}` is none of eager, compile, graph")
        if mode == "graph" and device == "cpu":
            raise UsageError("mode: `graph` is a CUDA graph; it needs `device: cuda`")
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**62:
            raise UsageError(f"seed: `{seed}` is not a whole number from 0 on")
        if isinstance(inputs, (str, bytes, Mapping)) or not hasattr(inputs, "__len__"):
            raise UsageError(
                "inputs: a list is needed, one entry for each argument of the model, each with `shape`"
            )
        self._source = model
        # A tensor has a length too: it is one input.
        entries = [inputs] if hasattr(inputs, "dtype") else list(inputs)
        self._inputs = [
            convert(e, TensorSpec, f"inputs[{i}]") if isinstance(e, Mapping) else e
            for i, e in enumerate(entries)
        ]
        for i, entry in enumerate(self._inputs):
            if isinstance(entry, TensorSpec):
                if entry.shape is None:
                    raise UsageError(f"inputs[{i}]: the required key `shape` is missing")
            elif not hasattr(entry, "dtype"):
                raise UsageError(f"inputs[{i}]: neither a tensor nor a mapping with `shape`")
        self.device = device
        self._mode = mode
        self._seed = seed
        self._cpu_fallback = cpu_fallback
        self.cuda_missing = ""
        """``cpu_only_build`` or ``no_device`` where CUDA was asked for and torch has none; read after :meth:`open`."""
        self.clock: HostClock | CudaClock = HostClock()
        self._is_copy = False
        self._captured_model: Any = None  # a graph has only the addresses of its weights: they must stay
        self._device_inputs: list[Any] = []
        self._host_inputs: list[Any] = []
        self._host_outputs: list[Any] = []

    def open(self) -> None:
        """Import torch, load the model, make the inputs."""
        try:
            import torch
        except ImportError as error:
            raise UsageError(f"torch cannot be imported ({error}); install infercanary[torch]") from None
        self._torch = torch
        self._device = torch.device(self.device)
        if self._device.type == "cuda":
            self._require_cuda()
            if self.cuda_missing:
                self._device = torch.device("cpu")
        host_inputs = [self._tensor(i, entry) for i, entry in enumerate(self._inputs)]
        model = self._load()
        self._model = torch.compile(model) if self._mode == "compile" else model
        self._place(host_inputs)
        if isinstance(self.clock, CudaClock) and self._mode == "graph":
            self._captured_model, self._model = model, self._captured(model, self.clock.stream)

    def run(self, phase: Phase) -> Any:
        """One forward pass; on CUDA with the copies to the device and back."""
        with self._torch.inference_mode():
            return self._run(phase)

    def values(self, result: Any) -> list[float]:
        """Evenly spread places of all tensors in the result, and a NaN if anything in them is not finite."""
        torch = self._torch
        tensors = [t.detach() for t in _tensors(torch, result)]
        # Not one large tensor of them all: a language model's logits are gigabytes as doubles.
        flat = [(torch.view_as_real(t) if t.is_complex() else t).reshape(-1) for t in tensors]
        step = max(1, -(-sum(t.numel() for t in flat) // _MAX_VALUES))
        chosen: list[float] = []
        skip = 0
        for t in flat:
            chosen += t[skip::step].double().tolist()
            skip = (skip - t.numel()) % step
        if chosen and not all(bool(torch.isfinite(t).all()) for t in flat if t.is_floating_point()):
            chosen[-1] = float("nan")
        return chosen

    def environment(self) -> dict[str, str]:
        """torch, CUDA and cuDNN versions, build flags, device, threads and the switches that change kernels."""
        torch = self._torch
        flags = re.findall(r"\b(BLAS_INFO|LAPACK_INFO|BUILD_TYPE|USE_\w+)=([^,\s]+)", torch.__config__.show())
        told: dict[str, Callable[[], Any]] = {
            "torch": lambda: torch.__version__,
            "torch_cuda": lambda: torch.version.cuda or "none (CPU-only build)",
            "torch_git": lambda: str(torch.version.git_version)[:12],
            "torch_build": lambda: " ".join(f"{k}={v}" for k, v in sorted(flags) if v not in ("OFF", "0")),
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability,
            "torch_intra_op_threads": torch.get_num_threads,
            "torch_inter_op_threads": torch.get_num_interop_threads,
            "torch_float32_matmul_precision": torch.get_float32_matmul_precision,
            "torch_deterministic": torch.are_deterministic_algorithms_enabled,
            "torch_mkldnn": lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
            "torch_device": lambda: self._device,
            "torch_mode": lambda: self._mode,
        }
        if torch.version.cuda and torch.backends.cudnn.is_available():
            told["torch_cudnn"] = torch.backends.cudnn.version
        if self._device.type == "cuda":
            told |= {
                "torch_cuda_device": lambda: torch.cuda.get_device_name(self._device),
                "torch_cuda_capability": lambda: "{}.{}".format(
                    *torch.cuda.get_device_capability(self._device)
                ),
                "torch_cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
                "torch_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
            }
        found = {}
        for component, tell in told.items():
            # torch refuses to tell some switches where the host mixed its old and its new names for them.
            with suppress(Exception):
                value = tell()
                found[component] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def close(self) -> None:
        """Drop the model and the buffers."""
        self._model = self._captured_model = None
        self._device_inputs = self._host_inputs = self._host_outputs = []
        if self._is_copy and self._device.type == "cuda":
            # What the largest batch took on a stream that is gone: nobody else's allocations can use it.
            self._torch.cuda.empty_cache()

    @property
    def samples(self) -> int:
        """The first dimension of the inputs; 1 where they have none in common. Read after :meth:`open`."""
        return self._common_size() or 1

    def sized(self, batch: int) -> TorchTarget:
        """The same model with inputs of its own, which repeat this one's up to ``batch`` samples.

        Raises :class:`Unsized`.
        """
        if self._mode == "graph":
            raise Unsized(
                "a CUDA graph has the one size that it was captured with; sweep the same model in eager mode"
            )
        common = self._common_size()
        if batch != self.samples:
            if self._mode == "compile":
                # Dynamo keeps what it compiles with the model's code, up to torch._dynamo.config.recompile_limit.
                raise Unsized(
                    "torch.compile would compile the model again, beside what serves; add a canary of that shape"
                )
            if common is None:
                raise Unsized("its inputs have no first dimension in common")
        other = copy.copy(self)
        other._is_copy = True
        inputs = self._host_inputs if self._device.type == "cuda" else self._device_inputs
        times = -(-batch // (common or 1))
        with self._torch.no_grad():
            # Memory of their own: inputs that are shared would stay in the caches.
            other._place(
                [_repeated(t, times)[:batch].clone() if common and t.dim() else t.clone() for t in inputs]
            )
        return other

    def reset_peak_memory(self) -> None:
        """Forget the most memory that was allocated on the device, also for whoever else asks in this process."""
        if self._device.type == "cuda":
            self._torch.cuda.reset_peak_memory_stats(self._device)

    def peak_memory(self) -> int | None:
        """The most bytes that were allocated on the device since then; None on the CPU."""
        if self._device.type != "cuda":
            return None
        return int(self._torch.cuda.max_memory_allocated(self._device))

    def _common_size(self) -> int | None:
        sizes = {int(t.shape[0]) for t in self._device_inputs if t.dim()}
        return max(sizes) if len(sizes) == 1 and 0 not in sizes else None

    def _place(self, host_inputs: list[Any]) -> None:
        """Put the inputs where the model runs, with a clock for it."""
        if self._device.type != "cuda":
            self.clock = HostClock()
            self._device_inputs = host_inputs
            self._run = self._run_cpu
            return
        self.clock = CudaClock(self._torch.cuda, self._device)
        self._host_inputs = [t.cpu().pin_memory() for t in host_inputs]
        # On that stream: memory of the host's own may still be read by work that it has enqueued. And filled, because
        # a graph is captured from runs before the first copy.
        with self._torch.cuda.stream(self.clock.stream):
            self._device_inputs = [t.to(self._device, non_blocking=True) for t in self._host_inputs]
        self._host_outputs = []
        self._run = self._run_cuda

    def _run_cpu(self, phase: Phase) -> Any:
        with phase("compute"):
            return self._model(*self._device_inputs)

    def is_busy(self) -> bool:
        """Whether work of the host's is waiting or running on the device's default stream."""
        return self._device.type == "cuda" and not self._torch.cuda.default_stream(self._device).query()

    def calibrate(self) -> None:
        """Set how many inferences a repeat has: as many as take 100 µs on the device. Called once it has run."""
        if self._device.type != "cuda":
            return
        compute = min(self.clock.measure(self.run)[0].phases["compute"] for _ in range(_BATCH_TRIES))
        self.clock.batch = max(1, min(_MAX_BATCH, math.ceil(_BATCH_SECONDS / max(compute, 1e-7))))

    def _captured(self, model: Callable[..., Any], stream: Any) -> Callable[..., Any]:
        """``model`` on the device inputs as a CUDA graph; its call replays it."""
        torch = self._torch
        # As PyTorch's notes on CUDA graphs have it: warm up on a side stream first, then capture there.
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(_BATCH_TRIES):
                model(*self._device_inputs)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                outputs = model(*self._device_inputs)

        def replay(*_: Any) -> Any:
            graph.replay()
            return outputs

        return replay

    def _run_cuda(self, phase: Phase) -> Any:
        batch = range(self.clock.batch)
        with phase("h2d"):
            for _ in batch:
                for device, host in zip(self._device_inputs, self._host_inputs, strict=True):
                    device.copy_(host, non_blocking=True)
        with phase("compute"):
            for _ in batch:
                result = self._model(*self._device_inputs)
        outputs = list(_tensors(self._torch, result))
        if not _same_shapes(outputs, self._host_outputs):
            self._host_outputs = [
                self._torch.empty(o.shape, dtype=o.dtype, device="cpu", pin_memory=True) for o in outputs
            ]
        with phase("d2h"):
            for _ in batch:
                for host, device in zip(self._host_outputs, outputs, strict=True):
                    host.copy_(device, non_blocking=True)
        return self._host_outputs

    def _load(self) -> Any:
        if not isinstance(self._source, str):
            return self._source
        torch = self._torch
        if Path(self._source).suffix in _FILES:
            if not Path(self._source).is_file():
                raise UsageError(
                    f"model: no file `{self._source}`; check the path (it starts at {Path.cwd()})"
                )
            try:
                if self._source.endswith(".pt2"):
                    return torch.export.load(self._source).module().to(self._device)
                return torch.jit.load(self._source, map_location=self._device).eval()
            except Exception as error:
                raise UsageError(
                    f"model: `{self._source}` cannot be loaded ({one_line(error)}); "
                    "save it with torch.jit.save (.pt, .ts) or torch.export.save (.pt2)"
                ) from None
        if ":" not in self._source:
            raise UsageError(
                f"model: `{self._source}` is neither package.module:factory nor a {', '.join(_FILES)} file"
            )
        try:
            factory = attribute(self._source)
        except UsageError as error:
            raise UsageError(f"model: {error}") from None
        if not callable(factory):
            raise UsageError(
                f"model: `{self._source}` is not callable; name a function or class that makes the model"
            )
        with torch.random.fork_rng(devices=[]):  # the host's random state is not touched, nor the GPUs'
            torch.default_generator.manual_seed(self._seed)
            model = factory()
        if not callable(model):
            raise UsageError(
                f"model: `{self._source}()` gave a {type(model).__name__}, which cannot be called"
            )
        return model.to(self._device).eval() if isinstance(model, torch.nn.Module) else model

    def _tensor(self, index: int, entry: Any) -> Any:
        if not isinstance(entry, TensorSpec):
            return entry
        torch = self._torch
        name = entry.dtype or "float32"
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError(
                f"inputs[{index}].dtype: torch has no dtype `{name}`; it has float32, bfloat16, int64, …"
            )
        # Own generator and stream of numbers per input: the host's random state is not touched.
        generator = torch.Generator().manual_seed(self._seed + index)
        try:
            if dtype.is_floating_point or dtype.is_complex:
                return torch.randn(entry.shape, generator=generator).to(dtype)
            return torch.randint(0, entry.high, entry.shape, generator=generator).to(dtype)
        except Exception as error:
            raise UsageError(f"inputs[{index}]: torch cannot make it: {one_line(error)}") from None

    def _require_cuda(self) -> None:
        torch = self._torch
        self.cuda_missing = ""
        if not torch.cuda.is_available():
            self.cuda_missing = "cpu_only_build" if torch.version.cuda is None else "no_device"
            if self._cpu_fallback and self._mode != "graph":
                return
            why = (
                f"torch {torch.__version__} is a CPU-only build; install a CUDA build of torch"
                if torch.version.cuda is None
                else f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no device; "
                "check the driver, and that the container was started with the GPU"
            )
            here = ", ".join(visible_gpus())
            seen = f" and NVML sees {here}" if here else ""
            raise NoCuda(f"device: `{self.device}` was asked for{seen}, but {why}, or set `device: cpu`")
        if self._device.index is not None and self._device.index >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(
                f"device: `{self.device}` was asked for; the last that torch sees is `cuda:{last}`"
            )


def _tensors(torch: Any, result: Any) -> Iterator[Any]:
    """All tensors in nested tuples, lists and mappings (Hugging Face outputs are mappings), in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _tensors(torch, value)
    elif isinstance(result, (tuple, list)):
        for value in result:
            yield from _tensors(torch, value)


def _repeated(tensor: Any, times: int) -> Any:
    """Along its first dimension."""
    return tensor.repeat(times, *[1] * (tensor.dim() - 1))


def _same_shapes(outputs: list[Any], buffers: list[Any]) -> bool:
    return [(o.shape, o.dtype) for o in outputs] == [(b.shape, b.dtype) for b in buffers]
