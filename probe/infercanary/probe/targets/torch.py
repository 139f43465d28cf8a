"""The PyTorch target: runs a model object, a ``module:attribute`` factory, a TorchScript or a ``torch.export`` file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from infercanary.command.settings import UsageError, convert
from infercanary.contract.profile import Profile
from infercanary.probe.targets import DeviceMemory, Need, Unsized, register
from infercanary.probe.targets.engines import needs, outputs, torch_model, torch_profile
from infercanary.probe.targets.engines.digests import of_files
from infercanary.probe.targets.engines.options import Seed, check_device
from infercanary.probe.targets.engines.tensors import TensorSpec, common_size
from infercanary.probe.targets.engines.torch_target import TorchDeviceTarget
from infercanary.probe.targets.engines.torch_weights import digest_of
from infercanary.probe.timing import CudaClock, Phase

Mode = Literal["eager", "compile", "graph"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]

_CAPTURE_WARM_UPS = 5


@register("torch")
class TorchTarget(TorchDeviceTarget):
    """Runs a PyTorch model on fixed inputs under ``torch.inference_mode()``.

    In a server's own process, with the server's model object::

        TorchTarget(model, [{"shape": [1, 3, 224, 224]}])

    On CUDA a repeat has as many inferences as take 100 µs on the device, because events resolve about 0.5 µs. A run
    is postponed while this process has work on the device's default stream. Work of another process, or on other
    streams, does not postpone a run: the tag ``gpu_busy`` marks such runs.
    """

    profiler = "same_model"
    is_sweepable = True
    _loaded: Any  # the loaded model, which holds the weights; a graph only contains their addresses
    _model: Any
    _device_inputs: list[Any]
    _host_inputs: list[Any]
    _host_outputs: list[Any]

    def __init__(
        self,
        model: str | Callable[..., Any],
        inputs: Sequence[Any] | Any,
        device: str = "cpu",
        mode: Mode = "eager",
        compile_mode: CompileMode | None = None,
        autocast: torch_model.AutocastDtype | None = None,
        seed: int = 0,
        cpu_fallback: bool = False,
    ) -> None:
        """Check the options. :meth:`open` imports torch.

        Args:
            model: A callable, for example the server's own model object, which is neither moved nor switched to eval
                mode; or text: ``package.module:factory``, a TorchScript file (``.pt``, ``.ts``), a ``torch.export``
                file (``.pt2``).
            inputs: Tensors, or specifications (``{"shape": [1, 3, 224, 224], "dtype": "float32"}``), one for each
                argument of the model.
            device: ``cpu``, ``cuda`` or ``cuda:N``: device of the inputs, and of a model that is loaded here.
            mode: ``eager``, ``compile`` (``torch.compile``), or ``graph`` (captured once as a CUDA graph, then
                replayed). To find out if launches or the GPU are slow, run one canary in each mode: a graph has hardly
                any launches.
            compile_mode: Mode of ``torch.compile``; only for ``mode: compile``.
            autocast: Lower precision for ``torch.autocast`` around each inference: ``bfloat16`` or ``float16``. Off
                by default.
            seed: Seed of the inputs, and of weights that torch draws on the CPU in a factory. The factory must seed
                numpy and other libraries itself: otherwise each start has new weights and counts as a new model.
            cpu_fallback: True to run on the CPU if CUDA is requested and torch has none (a CPU-only wheel). By
                default that is an error, because the canary would measure something else. :attr:`cuda_missing` gives
                the reason.

        Raises:
            UsageError: An option is invalid.
        """
        if not callable(model) and not (isinstance(model, str) and model):
            raise UsageError(
                "model: name `package.module:factory` or a .pt, .ts or .pt2 file, or pass the model"
            )
        check_device(device)
        convert(mode, Mode, "mode")  # type: ignore[arg-type]
        if mode == "graph" and device == "cpu":
            raise UsageError("mode: `graph` (a CUDA graph) needs `device: cuda`")
        convert(compile_mode or "default", CompileMode, "compile_mode")  # type: ignore[arg-type]
        if compile_mode and mode != "compile":
            raise UsageError(f"compile_mode: only for `mode: compile`, but the mode is `{mode}`")
        convert(autocast or "float16", torch_model.AutocastDtype, "autocast")  # type: ignore[arg-type]
        convert(seed, Seed, "seed")
        self._source = model
        self._inputs = torch_model.read_inputs(inputs)
        self.device = device
        self._mode = mode
        self._compile_mode = (compile_mode or "default") if mode == "compile" else None
        self._autocast = autocast
        self._seed = seed
        self._cpu_fallback = cpu_fallback
        self._is_copy = False
        self._drop()

    def open(self) -> None:
        """Import torch, load the model, make the inputs.

        Raises:
            UsageError: torch is not installed, the model cannot be loaded, or an input cannot be made.
            Failure: torch's libraries do not fit or are missing; or memory is insufficient.
            NoCuda: torch has no CUDA; :attr:`cuda_missing` gives the reason.
        """
        self.ask_for_memory(self._needs())
        self._open_device(self._cpu_fallback and self._mode != "graph")
        torch = self._torch
        if self._on_cuda:
            self.ask_for_memory(needs.on_device([*self._needs(), *self._needs(drawn=False)]))
            torch_model.limit_memory(torch, self._device, self.device_memory_left)
        host_inputs = [
            torch_model.drawn(torch, entry, i, self._seed, self._on_cuda)
            if isinstance(entry, TensorSpec)
            else entry
            for i, entry in enumerate(self._inputs)
        ]
        self._loaded = self._model = torch_model.load(torch, self._source, self._device, self._seed)
        if self._compile_mode:
            self._model = torch.compile(self._model, mode=self._compile_mode)
        if self._autocast:
            # With a graph, do not cache casts: a cast weight kept from the capture would lie in the graph's own
            # memory.
            caches = self._mode != "graph"
            self._model = torch_model.autocasting(torch, self._model, self._device, self._autocast, caches)
        self._place(host_inputs)
        if isinstance(self.clock, CudaClock) and self._mode == "graph":
            self._model = self._captured(self._model, self.clock.stream)

    def run(self, phase: Phase) -> Any:
        """Make one forward pass; on CUDA, make a batch of passes with the copies to the device and back."""
        with self._torch.inference_mode():
            if isinstance(self.clock, CudaClock):
                return self._run_cuda(phase, range(self.clock.batch))
            with phase("compute"):
                return self._model(*self._device_inputs)

    def environment(self) -> dict[str, str]:
        """Return the versions of torch, CUDA and cuDNN, build flags, device, threads and settings that change
        kernels.
        """
        return torch_model.environment(
            self._torch, self._device, self._mode, self._compile_mode, self._autocast
        )

    def identity(self) -> str:
        """Return the digest of the file; if the model is not a file, the digest of the weights; empty without
        weights.
        """
        if torch_model.is_file(self._source):
            return of_files([Path(str(self._source))])
        with self._stream():
            return digest_of(self._torch, self._loaded)

    def settings(self) -> dict[str, object]:
        """Return the inputs, and the options that change the computation."""
        return {
            "inputs": [
                e if isinstance(e, TensorSpec) else (list(e.shape), str(e.dtype)) for e in self._inputs
            ],
            "device": self.device.partition(":")[0],
            "mode": "" if self._mode == "eager" else self._mode,
            "compile_mode": self._compile_mode,
            "autocast": self._autocast,
            "seed": self._seed,
        }

    def close(self) -> None:
        self._drop()
        if self._is_copy and self._on_cuda:
            # torch's allocator keeps the memory of the largest batch for the copy's stream. That stream no longer
            # exists, so no other work can use the memory.
            self._torch.cuda.empty_cache()

    @property
    def samples(self) -> int:
        """First dimension of the inputs; 1 if the inputs have no common first dimension. Read after :meth:`open`."""
        return common_size(t.shape for t in self._device_inputs) or 1

    def copy_with_batch(self, batch: int) -> TorchTarget:
        """Make a target of the same model whose inputs repeat this target's samples.

        Raises:
            Unsized: The model is a CUDA graph, would be compiled again, or the inputs have no common first dimension.
        """
        if self._mode == "graph":
            raise Unsized(
                "a CUDA graph has the size with which it was captured; sweep the model in eager mode"
            )
        if batch != self.samples and self._mode == "compile":
            # Dynamo keeps each compiled version with the model's code, up to torch._dynamo.config.recompile_limit.
            raise Unsized(
                "torch.compile would compile the model again while the server runs; add a canary with that shape"
            )
        inputs = self._host_inputs or self._device_inputs
        asked = needs.of_batch(inputs, batch, self.samples)
        if self._on_cuda:
            asked += needs.on_device(asked)
            torch_model.limit_memory(self._torch, self._device, self.device_memory_left)
        self.ask_for_memory(asked)
        other = copy.copy(self)
        other._is_copy = True
        with self._torch.no_grad():
            # Each copy has its own memory, because shared inputs would stay in the CPU's or GPU's caches.
            is_repeated = batch != self.samples
            other._place(
                [torch_model.repeated(self._torch, t, batch) if is_repeated else t.clone() for t in inputs]
            )
        return other

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile repeats with torch's own profiler: operators, and on CUDA their kernels."""
        device = str(self._device)
        return torch_profile.profile_repeats(self._torch, self.clock, self.run, repeats, device, trace)

    def reset_memory_peak(self) -> None:
        """Reset the memory peak, for the whole process."""
        if self._on_cuda:
            self._torch.cuda.reset_peak_memory_stats(self._device)

    def memory(self) -> DeviceMemory | None:
        """Return the bytes that torch has allocated on the device; None on the CPU."""
        if not self._on_cuda:
            return None
        cuda, device = self._torch.cuda, self._device
        return DeviceMemory(cuda.memory_allocated(device), cuda.max_memory_allocated(device))

    def _drop(self) -> None:
        self._loaded = self._model = None
        self._device_inputs, self._host_inputs, self._host_outputs = [], [], []

    def _needs(self, drawn: bool = True) -> list[Need]:
        """Return the memory of drawn inputs and of the model's file; with ``drawn=False``, the memory of given
        tensors.
        """
        asked = [
            needs.of_input(f"inputs[{i}]", tuple(entry.shape or ()), str(entry.dtype or "float32"))
            for i, entry in enumerate(self._inputs)
            if isinstance(entry, TensorSpec) == drawn
        ]
        if drawn and torch_model.is_file(self._source):
            asked.append(needs.of_files("model", [Path(str(self._source))]))
        return asked

    def _place(self, host_inputs: list[Any]) -> None:
        """Put the inputs on the device, and make the device's clock."""
        self._make_clock()
        if not self._on_cuda:
            self._device_inputs = host_inputs
            return
        self._host_inputs = [t.cpu().pin_memory() for t in host_inputs]
        # Use the probe's stream, because the server's work may still use memory of the server's stream. Fill the
        # inputs now, because a graph is captured before the first copy.
        with self._stream():
            self._device_inputs = [t.to(self._device, non_blocking=True) for t in self._host_inputs]
        self._host_outputs = []

    def _captured(self, model: Callable[..., Any], stream: Any) -> Callable[..., Any]:
        """Capture the model with the device inputs as a CUDA graph. Return a function that replays the graph."""
        torch = self._torch
        # Warm up on a side stream, and then capture there:
        # https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(_CAPTURE_WARM_UPS):
                model(*self._device_inputs)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = model(*self._device_inputs)

        def replay(*_: Any) -> Any:
            graph.replay()
            return result

        return replay

    def _run_cuda(self, phase: Phase, batch: range) -> Any:
        with phase("h2d"):
            for _ in batch:
                for device, host in zip(self._device_inputs, self._host_inputs, strict=True):
                    device.copy_(host, non_blocking=True)
        with phase("compute"):
            for _ in batch:
                result = self._model(*self._device_inputs)
        if outputs.pending(result):
            return result  # nothing was computed, so the caller rejects this result
        leaves = list(outputs.leaves(result))
        tensors = [leaf for leaf in leaves if isinstance(leaf, self._torch.Tensor)]
        if [(t.shape, t.dtype) for t in tensors] != [(t.shape, t.dtype) for t in self._host_outputs]:
            self.ask_for_memory([need for t in tensors for need in needs.of_output(t.shape, str(t.dtype))])
            self._host_outputs = [
                self._torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True) for t in tensors
            ]
        with phase("d2h"):
            for _ in batch:
                for host, device in zip(self._host_outputs, tensors, strict=True):
                    host.copy_(device, non_blocking=True)
        return [*self._host_outputs, *(leaf for leaf in leaves if not isinstance(leaf, self._torch.Tensor))]
