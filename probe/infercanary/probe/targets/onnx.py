"""The ONNX Runtime target: runs an ``.onnx`` file only on the requested execution providers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import psutil
from msgspec import Meta

from infercanary.command.extras import advice
from infercanary.command.settings import UsageError, convert
from infercanary.contract.profile import Profile
from infercanary.probe.targets import BatchedTarget, Unprofiled, Unsized, register
from infercanary.probe.targets.engines import needs, onnx_profile
from infercanary.probe.targets.engines.cuda_versions import driver_cuda
from infercanary.probe.targets.engines.digests import of_files, onnx_files
from infercanary.probe.targets.engines.environment import reported
from infercanary.probe.targets.engines.onnx_binding import DeviceBinding, HostBinding, slots
from infercanary.probe.targets.engines.onnx_providers import (
    ON_CUDA,
    full_names,
    read_provider_options,
    read_texts,
)
from infercanary.probe.targets.engines.onnx_session import OnnxSession
from infercanary.probe.targets.engines.options import Seed, check_file
from infercanary.probe.targets.engines.tensors import common_size, drawn, matched, repeated, specs
from infercanary.probe.targets.libraries import imported
from infercanary.probe.timing import HostClock, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

ExecutionMode = Literal["sequential", "parallel"]
Optimization = Literal["all", "extended", "basic", "disabled"]

_Threads = Annotated[int, Meta(ge=0, le=4096)]
_ERRORS = 3


@register("onnx")
class OnnxTarget(BatchedTarget):
    """Runs an ONNX model with ONNX Runtime on fixed inputs.

    On ``cuda`` or ``tensorrt``, inputs and outputs are bound to memory on the device, and ONNX Runtime
    runs on the probe's stream with the lowest priority. CUDA events on that stream delimit ``h2d``, ``compute`` and
    ``d2h``; ``compute`` includes time in which the device waits, for example for nodes on the CPU. A repeat has
    enough inferences to last 100 µs. With any other provider the host's clock times the whole run as ``compute``: the
    CPU needs no copies, and the copies of another accelerator are included.
    """

    profiler = "second_model"
    is_sweepable = True
    _bound: Any
    _arrays: dict[str, NDArray[Any]]

    def __init__(
        self,
        model: str,
        inputs: Sequence[Any] | Mapping[str, Any] = (),
        providers: Sequence[str] | str = ("cpu",),
        provider_options: Mapping[str, Mapping[str, Any]] | None = None,
        intra_op_threads: int = 0,
        inter_op_threads: int = 0,
        execution_mode: ExecutionMode = "sequential",
        graph_optimization: Optimization = "all",
        session_config: Mapping[str, Any] | None = None,
        seed: int = 0,
        cpu_fallback: bool = False,
    ) -> None:
        """Check the options, but load nothing yet.

        Args:
            model: A file: ``.onnx`` or ``.ort``.
            inputs: Specifications (``{"shape": [1, 3, 224, 224]}``) of values drawn from ``seed``: a list in the
                model's order, or a mapping by name. A shape or dtype that the model fixes may be left out.
            providers: Providers in order of preference: ``cpu``, ``cuda``, ``tensorrt``, or ONNX Runtime's name of
                another provider.
            provider_options: Provider → its options, such as ``{"cuda": {"device_id": 1}}``.
            intra_op_threads: Threads within a node; 0 for ONNX Runtime's default, one for each core of the host.
            inter_op_threads: Threads for nodes in ``parallel`` execution, with the same default.
            execution_mode: ``parallel`` runs nodes concurrently on the inter-op threads.
            graph_optimization: Level of ONNX Runtime's changes to the model's graph.
            session_config: Further entries of the session, such as ``{"session.intra_op.allow_spinning": "0"}``.
            seed: Seed of the inputs.
            cpu_fallback: True to run on the CPU if a requested accelerator is missing. By default that is an error,
                because the canary would measure something else; ONNX Runtime itself falls back silently.

        Raises:
            UsageError: An option is invalid.
        """
        if not isinstance(model, str) or not model:
            raise UsageError("model: name an .onnx file")
        convert(intra_op_threads, _Threads, "intra_op_threads")
        convert(inter_op_threads, _Threads, "inter_op_threads")
        convert(execution_mode, ExecutionMode, "execution_mode")  # type: ignore[arg-type]
        convert(graph_optimization, Optimization, "graph_optimization")  # type: ignore[arg-type]
        convert(seed, Seed, "seed")
        self._path = Path(model)
        self._specs = specs(inputs)
        self._asked = full_names(providers)
        self._provider_options = read_provider_options(self._asked, provider_options)
        self._threads = intra_op_threads, inter_op_threads
        self._execution_mode = execution_mode
        self._graph_optimization = graph_optimization
        self._session_config = read_texts("session_config", session_config)
        self._seed = seed
        self._loaded = OnnxSession(model, self._asked, self._provider_options, cpu_fallback)
        on_cuda = not {*ON_CUDA}.isdisjoint(self._asked)
        self.device = f"cuda:{self._loaded.ordinal}" if on_cuda else "cpu"
        self._is_copy = False
        self._drop()

    @property
    def session(self) -> Any:
        """The ``onnxruntime.InferenceSession``, which exists after :meth:`open`."""
        return self._loaded.session

    def open(self) -> None:
        """Import ONNX Runtime, load the model on its providers, draw the inputs and bind them.

        Raises:
            UsageError: ONNX Runtime is not installed, the model or a provider cannot be loaded, or an input does not
                fit.
            Failure: ONNX Runtime's libraries do not fit or are missing; or memory is insufficient.
            NoCuda: CUDA is missing; :attr:`cuda_missing` gives the reason.
        """
        self._ort: Any = imported("onnxruntime", f"{advice('onnx')}, or onnxruntime-gpu for a GPU")
        check_file("model", self._path)
        self.ask_for_memory([needs.of_files("model", [self._path])])  # before onnx_files() reads the file
        weights = [needs.of_files("model", onnx_files(self._path))]
        self.ask_for_memory(weights)
        if not {*ON_CUDA}.isdisjoint({*self._asked}.intersection(self._ort.get_available_providers())):
            # ask for memory before a context takes device memory
            self.ask_for_memory(needs.on_device(weights))
        loaded = self._loaded
        try:
            loaded.open(self._ort, self.session_options, self.device_memory_left)
        finally:
            self.cuda_missing = loaded.cuda_missing
        inputs = matched(self._specs, slots(loaded.session))
        asked = [needs.of_input(wanted.place, wanted.shape, wanted.dtype) for wanted in inputs]
        self.ask_for_memory([*asked, *(needs.on_device(asked) if loaded.gpu else ())])
        if loaded.gpu is None:
            self._bind({wanted.name: drawn(wanted, self._seed, i) for i, wanted in enumerate(inputs)})
            return
        # release the binding before the device, because it refers to the session
        loaded.gpu.before_close(self._drop)
        self._bound = DeviceBinding(self._ort, loaded, inputs, self._seed, self.ask_for_memory)
        self.clock = self._bound.clock

    def run(self, phase: Phase) -> None:
        """Make one inference; on CUDA, make a batch of inferences with the copies to the device and back."""
        self._bound.run(phase)

    def values(self, result: None) -> list[float]:
        """Return evenly spaced numbers of the last output. The last number is NaN if the output contains NaN or
        infinity.
        """
        found: list[float] = self._bound.values()
        return found

    def environment(self) -> dict[str, str]:
        """Return ONNX Runtime's version, the providers that ran the model, threads, and session options."""
        ort, loaded = self._ort, self._loaded
        gpu: Any = loaded.gpu
        options = loaded.session.get_session_options()
        # the default thread number of ONNX Runtime, which ignores the container's limits
        cores = psutil.cpu_count(logical=False)
        inter_op = 1 if self._execution_mode == "sequential" else options.inter_op_num_threads
        return reported(
            {
                "onnxruntime": ort.__version__,
                "onnx_build_cuda": lambda: ort.cuda_version or "none (CPU-only build)",
                "onnx_provider": loaded.first_used,
                "onnx_nodes": lambda: ", ".join(f"{name} {n}" for name, n in sorted(loaded.nodes().items())),
                "onnx_on_cpu": loaded.operators_on_cpu,
                "onnx_provider_options": lambda: _listed(self._provider_options.get(loaded.first_used(), {})),
                "onnx_device": self.device if gpu else "cpu",
                "onnx_driver_cuda": gpu and driver_cuda,
                "onnx_cuda_device": lambda: gpu.name,
                "onnx_intra_op_threads": options.intra_op_num_threads or cores,
                "onnx_inter_op_threads": inter_op or cores,
                "onnx_execution_mode": self._execution_mode,
                "onnx_graph_optimization": self._graph_optimization,
                "onnx_session_config": _listed(self._session_config),
                "onnx_model": self._path.name,
            }
        )

    def identity(self) -> str:
        """Return the digest of the model's file and of the files with the model's weights."""
        return of_files(onnx_files(self._path))

    def settings(self) -> dict[str, object]:
        return {
            "inputs": self._specs,
            "providers": self._asked,
            "provider_options": {
                provider: {key: value for key, value in options.items() if key != "device_id"}
                for provider, options in self._provider_options.items()
            },
            "threads": self._threads if any(self._threads) else None,
            "execution_mode": "" if self._execution_mode == "sequential" else self._execution_mode,
            "graph_optimization": "" if self._graph_optimization == "all" else self._graph_optimization,
            "session_config": self._session_config,
            "seed": self._seed,
        }

    def close(self) -> None:
        """Release the session and its memory. A copy keeps the session open, because the session belongs to the
        original.
        """
        self.clock = HostClock()
        if not self._is_copy:
            self._loaded.close()  # with a device, this calls _drop() inside its context
        self._drop()

    @property
    def samples(self) -> int:
        """First dimension of the inputs; 1 if the inputs have no common first dimension. Read after :meth:`open`."""
        return common_size(array.shape for array in self._arrays.values()) or 1

    def copy_with_batch(self, batch: int) -> OnnxTarget:
        """Make a target that uses the same session and repeats this target's samples. Only possible on the CPU.

        Raises:
            Unsized: The target runs on CUDA, or the inputs have no common first dimension.
        """
        if self._loaded.gpu is not None:
            raise Unsized(
                "on CUDA, inputs and outputs are bound to memory of one size; sweep the model on the CPU"
            )
        self.ask_for_memory(needs.of_batch(self._arrays.values(), batch, self.samples))
        other = copy.copy(self)
        other._is_copy = True
        other._bind(
            {
                name: repeated(array, batch) if batch != self.samples else array.copy()
                for name, array in self._arrays.items()
            }
        )
        return other

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile repeats of a second session with ONNX Runtime's own profiler. Only possible on the CPU.

        Raises:
            Unprofiled: The target runs on CUDA, where the profiler times the launch of a node instead of its kernels.
        """
        if self._loaded.gpu is not None:
            raise Unprofiled(
                "on CUDA, ONNX Runtime's profiler times only kernel launches; profile the model with `nsys`"
            )
        self.ask_for_memory([needs.of_files("model", onnx_files(self._path))])

        def load(prefix: str) -> Any:
            options = self.session_options()
            options.enable_profiling = True
            options.profile_file_prefix = prefix
            return self._loaded.load_again(options)

        def make_work(session: Any) -> Callable[[], float]:
            bound, clock = HostBinding(session, self._arrays), HostClock()
            return lambda: clock.measure(bound.run)[0].wall

        return onnx_profile.profile_repeats(load, make_work, repeats, trace)

    def session_options(self) -> Any:
        """Make the ``onnxruntime.SessionOptions`` for loading the model. Subclasses may extend them."""
        ort = self._ort
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads
        options.execution_mode = getattr(ort.ExecutionMode, f"ORT_{self._execution_mode.upper()}")
        level = self._graph_optimization.upper()
        name = "ORT_DISABLE_ALL" if level == "DISABLED" else f"ORT_ENABLE_{level}"
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)
        # Suppress warnings about nodes on the CPU, because the component `onnx_nodes` reports these nodes.
        options.log_severity_level = _ERRORS
        # Older versions of ONNX Runtime ignore this entry.
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in self._session_config.items():
            options.add_session_config_entry(key, value)
        return options

    def _bind(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._bound, self.clock = HostBinding(self._loaded.session, arrays), HostClock()

    def _drop(self) -> None:
        self._bound, self._arrays = None, {}


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
