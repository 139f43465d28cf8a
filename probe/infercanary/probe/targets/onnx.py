"""The ONNX Runtime target: an ``.onnx`` file on the execution providers that were asked for, and on no others."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from infercanary.command.extras import advice
from infercanary.command.paths import unreadable
from infercanary.command.settings import UsageError
from infercanary.contract.profile import Profile
from infercanary.probe.deadline import clear_frames
from infercanary.probe.targets import Target, Unprofiled, Unsized, register
from infercanary.probe.targets.engines import needs, onnx_profile
from infercanary.probe.targets.engines.cuda_tensors import StagedClock
from infercanary.probe.targets.engines.digests import beside_onnx, of_files
from infercanary.probe.targets.engines.environment import reported
from infercanary.probe.targets.engines.onnx_binding import DeviceBinding, HostBinding, slots
from infercanary.probe.targets.engines.onnx_providers import ON_CUDA, full_names, options_of, texts
from infercanary.probe.targets.engines.onnx_session import OnnxSession
from infercanary.probe.targets.engines.tensors import common_size, drawn, matched, repeated, specs
from infercanary.probe.targets.libraries import imported
from infercanary.probe.timing import Clock, HostClock, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXECUTION_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}
_OPTIMIZATION = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disabled": "ORT_DISABLE_ALL",
}
_ERRORS = 3
_MOST_THREADS = 4096
_TOPOLOGY = Path("/sys/devices/system/cpu")


@register("onnx")
class OnnxTarget(Target):
    """Runs an ONNX model with ONNX Runtime on fixed inputs.

    With ``cuda`` or ``tensorrt`` first, inputs and outputs are bound to memory on the device, ONNX Runtime runs on a
    stream of the probe's with the lowest priority, and ``h2d``, ``compute`` and ``d2h`` are between CUDA events on it;
    ``compute`` then also holds what the device waits for, such as nodes that run on the CPU. A repeat is as many
    inferences as take 100 µs. With any other provider the host's clock times the whole run as ``compute``: on the CPU
    there are no copies, and what another accelerator copies is part of it.
    """

    profiler = "second_model"
    is_sweepable = True

    def __init__(
        self,
        model: str,
        inputs: Sequence[Any] | Mapping[str, Any] = (),
        providers: Sequence[str] | str = ("cpu",),
        provider_options: Mapping[str, Mapping[str, Any]] | None = None,
        intra_op_threads: int = 0,
        inter_op_threads: int = 0,
        execution_mode: Literal["sequential", "parallel"] = "sequential",
        graph_optimization: Literal["all", "extended", "basic", "disabled"] = "all",
        session_config: Mapping[str, Any] | None = None,
        seed: int = 0,
        cpu_fallback: bool = False,
    ) -> None:
        """Check the options; nothing is loaded yet.

        Args:
            model: A file: ``.onnx``, or ``.ort``.
            inputs: Specifications (``{"shape": [1, 3, 224, 224]}``) drawn from ``seed``: a list in the model's order,
                or a mapping by name. What the model fixes (a shape, the dtype) may be left out.
            providers: In order of preference: ``cpu``, ``cuda``, ``tensorrt``, or ONNX Runtime's name of another one.
            provider_options: Provider → its options, such as ``{"cuda": {"device_id": 1}}``.
            intra_op_threads: 0 is ONNX Runtime's default, one for each core of the host.
            inter_op_threads: The same, for ``parallel`` execution.
            execution_mode: ``parallel`` runs nodes side by side, on the inter-op threads.
            graph_optimization: How far ONNX Runtime changes the model's graph.
            session_config: Further entries of the session, such as ``{"session.intra_op.allow_spinning": "0"}``.
            seed: Inputs are drawn from it.
            cpu_fallback: Whether to run on the CPU where an accelerator was asked for and is missing. By default that
                is refused, while ONNX Runtime would do it silently: it would be a canary of something else.

        Raises:
            UsageError: An option cannot be meant so.
        """
        if not isinstance(model, str) or not model:
            raise UsageError("model: name an .onnx file")
        for key, threads in {
            "intra_op_threads": intra_op_threads,
            "inter_op_threads": inter_op_threads,
        }.items():
            if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= _MOST_THREADS:
                raise UsageError(
                    f"{key}: `{threads}` is not a number of threads; 0 is ONNX Runtime's default"
                )
        _require_one_of("execution_mode", execution_mode, _EXECUTION_MODES)
        _require_one_of("graph_optimization", graph_optimization, _OPTIMIZATION)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**62:
            raise UsageError(f"seed: `{seed}` is not a whole number from 0 on")
        self._path = model
        self._specs = specs(inputs)
        asked = full_names(providers)
        self._provider_options = options_of(asked, provider_options)
        self._threads = intra_op_threads, inter_op_threads
        self._execution_mode = execution_mode
        self._graph_optimization = graph_optimization
        self._session_config = texts("session_config", session_config)
        self._seed = seed
        self._asked = asked
        self._loaded = OnnxSession(model, asked, self._provider_options, cpu_fallback)
        on_cuda = any(provider in ON_CUDA for provider in asked)
        self.device = f"cuda:{self._loaded.ordinal}" if on_cuda else "cpu"
        """Where it was asked to run."""
        self.clock: Clock = HostClock()
        self._is_copy = False
        self._arrays: dict[str, NDArray[Any]] = {}
        self._dtypes: dict[str, str] = {}
        self._bound: HostBinding | DeviceBinding | None = None

    @property
    def cuda_missing(self) -> str:  # type: ignore[override]
        """Why there is no CUDA where it was asked for; empty where there is."""
        return self._loaded.cuda_missing

    @property
    def session(self) -> Any:
        """The ``onnxruntime.InferenceSession``; read after :meth:`open`."""
        return self._loaded.session

    def open(self) -> None:
        """Import ONNX Runtime, load the model on its providers, draw the inputs and bind them.

        Raises:
            UsageError: ONNX Runtime is not installed, the model or a provider cannot be loaded, or an input does not
                fit.
            Failure: ONNX Runtime's libraries do not fit, or are not there; or memory does not suffice.
            NoCuda: There is no CUDA; :attr:`cuda_missing` says why.
        """
        self._ort: Any = imported("onnxruntime", f"{advice('onnx')}, or onnxruntime-gpu for a GPU")
        onnxruntime = self._ort
        if why := unreadable(self._path):
            raise UsageError(f"model: {why}; check the path (it starts at {Path.cwd()})")
        path = Path(self._path)
        self.ask_for_memory(
            [needs.of_files("model", [path])]
        )  # before it is searched for what lies beside it
        weights = [needs.of_files("model", [path, *beside_onnx(path)])]
        self.ask_for_memory(weights)
        built_with = onnxruntime.get_available_providers()
        if any(provider in ON_CUDA and provider in built_with for provider in self._asked):
            self.ask_for_memory(needs.on_device(weights))  # before there is a context
        loaded = self._loaded
        try:
            loaded.open(onnxruntime, self.session_options, self.device_memory_left)
            inputs = matched(self._specs, slots(loaded.session, path))
            asked = [needs.of_input(each.place, each.shape, each.dtype) for each in inputs]
            self.ask_for_memory(asked if loaded.gpu is None else [*asked, *needs.on_device(asked)])
            if loaded.gpu is None:
                self._bind(
                    {each.name: drawn(each, self._seed, i) for i, each in enumerate(inputs)},
                    {each.name: each.dtype for each in inputs},
                )
            else:
                loaded.require_our_stream()
                loaded.gpu.before_close(self._drop)  # the binding holds the session
                self._bound = DeviceBinding(
                    onnxruntime,
                    loaded.session,
                    loaded.gpu,
                    loaded.ordinal,
                    inputs,
                    self._seed,
                    self.ask_for_memory,
                )
                self.clock = self._bound.clock
        except BaseException as error:
            clear_frames(error)
            self.close()
            raise

    def run(self, phase: Phase) -> None:
        """Make one inference; on CUDA a batch of them, with the copies to the device and back."""
        assert self._bound is not None, "open() comes first"
        self._bound.run(phase)

    def values(self, result: None) -> list[float]:
        """Return evenly spread places of all tensors of the last output; NaN if anything in them is not finite."""
        assert self._bound is not None, "open() comes first"
        return self._bound.values()

    def environment(self) -> dict[str, str]:
        """Report ONNX Runtime's version and build, what really ran the model, threads, and the session's switches."""
        ort, loaded = self._ort, self._loaded
        commit = re.search(r"git-commit-id=(\w+)", ort.get_build_info())
        build = re.search(r"build type=(\w+)", ort.get_build_info())
        options = loaded.session.get_session_options()
        gpu = loaded.gpu
        return reported(
            {
                "onnxruntime": lambda: ort.__version__,
                "onnx_build": lambda: " ".join(found[1] for found in (commit, build) if found),
                "onnx_build_cuda": lambda: ort.cuda_version or "none (CPU-only build)",
                "onnx_provider": loaded.ran_by,
                "onnx_nodes": lambda: ", ".join(f"{name} {n}" for name, n in sorted(loaded.nodes().items())),
                "onnx_on_cpu": loaded.left_to_the_cpu,
                "onnx_available_providers": lambda: ", ".join(ort.get_available_providers()),
                "onnx_provider_options": lambda: _listed(self._provider_options.get(loaded.ran_by(), {})),
                "onnx_device": lambda: "cpu" if gpu is None else self.device,
                "onnx_driver_cuda": lambda: None if gpu is None else gpu.cuda_version,
                "onnx_cuda_device": lambda: None if gpu is None else gpu.name,
                "onnx_intra_op_threads": lambda: options.intra_op_num_threads or _physical_cores() or None,
                "onnx_inter_op_threads": lambda: self._inter_op_threads() or None,
                "onnx_execution_mode": lambda: self._execution_mode,
                "onnx_graph_optimization": lambda: self._graph_optimization,
                "onnx_session_config": lambda: _listed(self._session_config),
                "onnx_model": lambda: Path(self._path).name,
                "onnx_producer": lambda: loaded.session.get_modelmeta().producer_name,
            }
        )

    def identity(self) -> str:
        """Digest the file, and those beside it that hold its weights."""
        path = Path(self._path)
        return of_files([path, *beside_onnx(path)])

    def settings(self) -> dict[str, object]:
        """List the inputs, the providers and the session's options."""
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
        """Release the session and its memory; a copy leaves the session to the target that it is of."""
        self.clock = HostClock()
        if self._loaded.gpu is None:  # with a device, its close() drops them inside its context
            self._drop()
        if not self._is_copy:
            self._loaded.close()
        self._drop()

    def calibrate(self) -> None:
        """On CUDA, choose how many inferences a repeat has. Called once it has run."""
        if isinstance(self.clock, StagedClock):
            self.clock.calibrate(self.run)

    @property
    def samples(self) -> int:
        """The first dimension of the inputs; 1 where they have none in common. Read after :meth:`open`."""
        return common_size(self._arrays.values()) or 1

    def copy_with_batch(self, batch: int) -> OnnxTarget:
        """Make a target of the same session, on the CPU only.

        Args:
            batch: How many samples its inputs hold: this one's again and again.

        Raises:
            Unsized: It runs on CUDA, or its inputs have no first dimension in common.
        """
        if self._loaded.gpu is not None:
            raise Unsized(
                "on CUDA its inputs and outputs are bound to memory of one size; sweep it on the CPU"
            )
        common = common_size(self._arrays.values())
        if batch != self.samples and common is None:
            raise Unsized("its inputs have no first dimension in common")
        shapes = [
            (batch, *array.shape[1:]) if common and array.ndim else array.shape
            for array in self._arrays.values()
        ]
        self.ask_for_memory(needs.of_a_load(shapes, self._dtypes.values()))
        other = copy.copy(self)
        other._is_copy = True
        arrays = {
            name: repeated(array, batch) if common else array.copy() for name, array in self._arrays.items()
        }
        other._bind(arrays, self._dtypes)
        return other

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile some repeats of a second session with ONNX Runtime's own profiler, on the CPU only.

        Raises:
            Unprofiled: It runs on CUDA: there the profiler times the launch of a node, not its kernels.
        """
        if self._loaded.gpu is not None:
            raise Unprofiled("on CUDA ONNX Runtime's profiler times launches; profile it with `nsys`")
        path = Path(self._path)
        self.ask_for_memory([needs.of_files("model", [path, *beside_onnx(path)])])

        def session(prefix: str) -> Any:
            options = self.session_options()
            options.enable_profiling = True
            options.profile_file_prefix = prefix
            return self._loaded.another(options)

        def work_of(session: Any) -> Callable[[], float]:
            bound = HostBinding(session, self._arrays, self._dtypes)
            return lambda: bound.clock.measure(bound.run)[0].wall

        return onnx_profile.profiled(session, work_of, repeats, trace)

    def session_options(self) -> Any:
        """Make the ``onnxruntime.SessionOptions`` that the model is loaded with; to be extended in a subclass.

        Returns:
            New options at each call.
        """
        ort = self._ort
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads
        options.execution_mode = getattr(ort.ExecutionMode, _EXECUTION_MODES[self._execution_mode])
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, _OPTIMIZATION[self._graph_optimization]
        )
        # `onnx_nodes` reports the nodes that are left to the CPU: no warnings about them.
        options.log_severity_level = _ERRORS
        # Older versions ignore it.
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in self._session_config.items():
            options.add_session_config_entry(key, value)
        return options

    def _bind(self, arrays: dict[str, NDArray[Any]], dtypes: dict[str, str]) -> None:
        self._arrays, self._dtypes = arrays, dtypes
        self._bound = HostBinding(self._loaded.session, arrays, dtypes)
        self.clock = self._bound.clock

    def _drop(self) -> None:
        self._bound = None
        self._arrays, self._dtypes = {}, {}

    def _inter_op_threads(self) -> int:
        if self._execution_mode == "sequential":
            return 1
        return int(self._loaded.session.get_session_options().inter_op_num_threads) or _physical_cores()


def _require_one_of(key: str, value: object, known: Mapping[str, str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{key}: `{value}` is none of {', '.join(known)}")


def _physical_cores() -> int:
    """Return ONNX Runtime's default number of threads: one for each core of the host, whatever the container's limits.

    It is 0 where that is not known. https://onnxruntime.ai/docs/performance/tune-performance/threading.html
    """
    cores = set()
    for cpu in _TOPOLOGY.glob("cpu[0-9]*/topology"):
        with suppress(OSError):
            cores.add(tuple((cpu / name).read_text() for name in ("physical_package_id", "core_id")))
    return len(cores)


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
