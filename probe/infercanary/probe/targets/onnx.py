"""The ONNX Runtime target: an ``.onnx`` file on the execution providers that were asked for, and on no others."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from infercanary.command.settings import UsageError
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml import visible_gpus
from infercanary.probe.targets import NoCuda, Unsized, register
from infercanary.probe.targets.cuda_driver import Device, NoSuchGpu
from infercanary.probe.targets.cuda_tensors import StagedClock, StagedTensor, let_frames_go, staged_run
from infercanary.probe.targets.onnx_providers import (
    CPU,
    ON_CUDA,
    device_id,
    full_names,
    library_fault,
    options_of,
    short_name,
    texts,
    why_not,
)
from infercanary.probe.targets.tensors import (
    Slot,
    common_size,
    drawn,
    matched,
    places,
    readable,
    repeated,
    specs,
)
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
_DTYPES = {
    f"tensor({theirs})": ours
    for theirs, ours in {
        "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16", "bool": "bool",
        "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
        "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    }.items()
}  # fmt: skip
_ERRORS = 3
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16: numpy has no such type to name
_MOST_THREADS = 4096
_TOPOLOGY = Path("/sys/devices/system/cpu")


@register("onnx")
class OnnxTarget:
    """Runs an ONNX model with ONNX Runtime on fixed inputs.

    ``model``      a file: ``.onnx``, or ``.ort``.
    ``inputs``     specifications (``{"shape": [1, 3, 224, 224]}``) drawn from ``seed``: a list in the model's order, or
                   a mapping by name. What the model fixes (a shape, the dtype) may be left out.
    ``providers``  in order of preference: ``cpu``, ``cuda``, ``tensorrt``, or ONNX Runtime's name of another one.
    ``provider_options``  provider → its options, such as ``{"cuda": {"device_id": 1}}``.
    ``intra_op_threads``, ``inter_op_threads``  0: ONNX Runtime's default, which is one for each core of the host.
    ``execution_mode``  ``sequential``, or ``parallel``: nodes side by side, on the inter-op threads.
    ``graph_optimization``  ``all``, ``extended``, ``basic`` or ``disabled``.
    ``session_config``  further entries of the session, such as ``{"session.intra_op.allow_spinning": "0"}``.
    ``cpu_fallback``  whether to run on the CPU where an accelerator was asked for and is not to be had. By default that
                   is refused, while ONNX Runtime would do it silently: it would be a canary of something else.

    With ``cuda`` or ``tensorrt`` first, inputs and outputs are bound to memory on the device, ONNX Runtime runs on a
    stream of the probe's with the lowest priority, and ``h2d``, ``compute`` and ``d2h`` are between CUDA events on it;
    in ``compute`` is then also what the device waits for, such as nodes on the CPU amid the model. A repeat is as many
    inferences as take 100 µs. With any other provider the host's clock times the whole run as ``compute``: on the CPU
    there are no copies, and what another accelerator copies is in it.
    """

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
        self._asked = full_names(providers)
        self._provider_options = options_of(self._asked, provider_options)
        self._threads = intra_op_threads, inter_op_threads
        self._execution_mode = execution_mode
        self._graph_optimization = graph_optimization
        self._session_config = texts("session_config", session_config)
        self._seed = seed
        self._cpu_fallback = cpu_fallback
        self._ordinal = device_id(self._provider_options)
        on_cuda = any(provider in ON_CUDA for provider in self._asked)
        self.device = f"cuda:{self._ordinal}" if on_cuda else "cpu"
        """Where it was asked to run."""
        self.cuda_missing = ""
        """Why there is no CUDA where it was asked for: ``cpu_only_build``, ``no_libraries`` or ``no_device``."""
        self.clock: Clock = HostClock()
        self._gpu: Device | None = None
        self._inputs: list[StagedTensor] = []
        self._outputs: list[StagedTensor] = []
        self._drop()

    def open(self) -> None:
        """Import ONNX Runtime, load the model on its providers, draw the inputs and bind them."""
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                f"onnxruntime cannot be imported ({error}); install infercanary[onnx], or onnxruntime-gpu for a GPU"
            ) from None
        self._ort = onnxruntime
        if not Path(self._path).is_file():
            raise UsageError(f"model: no file `{self._path}`; check the path (it starts at {Path.cwd()})")
        self.cuda_missing = ""
        try:
            self._open_session()
            inputs = matched(self._specs, self._slots())
            arrays = {each.name: drawn(each, self._seed, i) for i, each in enumerate(inputs)}
            dtypes = {each.name: each.dtype for each in inputs}
            if self._gpu is not None:
                self._stage(self._gpu, arrays, dtypes)
            else:
                self._bind(arrays, dtypes)
        except BaseException as error:
            let_frames_go(error)
            self.close()
            raise

    def run(self, phase: Phase) -> Any:
        """One inference; on CUDA with the copies to the device and back."""
        if self._gpu is None:
            with phase("compute"):
                self._session.run_with_iobinding(self._binding)
            return None
        staged_run(phase, getattr(self.clock, "batch", 1), self._inputs, self._enqueue, self._outputs)
        return None

    def values(self, result: Any) -> list[float]:
        """Evenly spread places of all tensors of the last output, and a NaN if anything in them is not finite."""
        if self._gpu is not None:
            return places(tensor.numbers() for tensor in self._outputs)
        return places(
            numbers for each in self._binding.get_outputs() if (numbers := _numbers(each)) is not None
        )

    def environment(self) -> dict[str, str]:
        """ONNX Runtime's version and build, what really ran the model, threads, and the session's switches."""
        ort, session = self._ort, self._session
        commit = re.search(r"git-commit-id=(\w+)", ort.get_build_info())
        build = re.search(r"build type=(\w+)", ort.get_build_info())
        options = session.get_session_options()
        nodes = self._nodes()
        told: dict[str, Callable[[], Any]] = {
            "onnxruntime": lambda: ort.__version__,
            "onnx_build": lambda: " ".join(found[1] for found in (commit, build) if found),
            "onnx_build_cuda": lambda: ort.cuda_version or "none (CPU-only build)",
            "onnx_provider": self._ran_by,
            "onnx_nodes": lambda: ", ".join(f"{name} {n}" for name, n in sorted(nodes.items())),
            "onnx_available_providers": lambda: ", ".join(ort.get_available_providers()),
            "onnx_provider_options": lambda: _listed(self._provider_options.get(self._ran_by(), {})),
            "onnx_device": lambda: self.device if self._gpu is not None else "cpu",
            "onnx_cuda_device": lambda: self._gpu.name if self._gpu is not None else "",
            "onnx_intra_op_threads": lambda: options.intra_op_num_threads or _physical_cores(),
            "onnx_inter_op_threads": self._inter_op_threads,
            "onnx_execution_mode": lambda: self._execution_mode,
            "onnx_graph_optimization": lambda: self._graph_optimization,
            "onnx_session_config": lambda: _listed(self._session_config),
            "onnx_model": lambda: _digest(self._path),
            "onnx_producer": lambda: session.get_modelmeta().producer_name,
        }
        known = {}
        for component, tell in told.items():
            # Told as it is found: an older ONNX Runtime does not tell everything.
            with suppress(Exception):
                if text := str(tell() or ""):
                    known[component] = text
        return known

    def close(self) -> None:
        """Let go of the session and of its memory."""
        self._inputs, self._outputs = [], []
        self.clock = HostClock()
        gpu, self._gpu = self._gpu, None
        if gpu is not None:
            gpu.close()
        self._drop()

    def calibrate(self) -> None:
        """On CUDA, set how many inferences a repeat has. Called once it has run."""
        if isinstance(self.clock, StagedClock):
            self.clock.calibrate(self.run)

    @property
    def samples(self) -> int:
        """The first dimension of the inputs; 1 where they have none in common. Read after :meth:`open`."""
        return common_size(self._arrays.values()) or 1

    def sized(self, batch: int) -> OnnxTarget:
        """The same session with inputs of its own, which repeat this one's up to ``batch`` samples: on the CPU only.

        Raises :class:`~infercanary.probe.targets.Unsized`.
        """
        if self._gpu is not None:
            raise Unsized(
                "on CUDA its inputs and outputs are bound to memory of one size; sweep it on the CPU"
            )
        common = common_size(self._arrays.values())
        if batch != self.samples and common is None:
            raise Unsized("its inputs have no first dimension in common")
        other = copy.copy(self)
        other.clock = HostClock()
        arrays = {
            name: repeated(array, batch) if common else array.copy() for name, array in self._arrays.items()
        }
        other._bind(arrays, self._dtypes)
        return other

    def session_options(self) -> Any:
        """The ``onnxruntime.SessionOptions`` that the model is loaded with; to be extended in a subclass."""
        ort = self._ort
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads
        options.execution_mode = getattr(ort.ExecutionMode, _EXECUTION_MODES[self._execution_mode])
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, _OPTIMIZATION[self._graph_optimization]
        )
        options.log_severity_level = _ERRORS  # that some nodes are left to the CPU is told by `onnx_nodes`
        # Unknown to older versions, which heed it not.
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in self._session_config.items():
            options.add_session_config_entry(key, value)
        return options

    def _drop(self) -> None:
        self._binding: Any = None
        self._session: Any = None
        self._arrays: dict[str, NDArray[Any]] = {}
        self._dtypes: dict[str, str] = {}

    def _open_session(self) -> None:
        """Load the model on what was asked for, or by leave on what there is of it."""
        providers = self._to_be_had()
        try:
            self._load(providers)
        except UsageError:
            # Some providers raise where ONNX Runtime cannot load their libraries; others are left out.
            faulty = [provider for provider in providers if library_fault(self._ort, provider)]
            if not faulty:
                raise
        else:
            faulty = [provider for provider in providers if provider not in self._session.get_providers()]
        for provider in faulty:
            why = library_fault(self._ort, provider) or "the log above says why"
            cuda = getattr(self._ort, "cuda_version", "") if provider in ON_CUDA else ""
            mend = f"install the libraries that it was built for{f' (CUDA {cuda})' if cuda else ''}"
            self._miss("no_libraries", f"ONNX Runtime cannot start {provider}: {why}; {mend}", provider)
        if faulty:
            left = [provider for provider in providers if provider not in faulty]
            if self._gpu is not None and not any(provider in ON_CUDA for provider in left):
                self._gpu.close()  # and the session with it
                self._gpu = None
            self._load(left)
        if self._gpu is not None:
            self.cuda_missing = ""  # without TensorRT it may run on CUDA alone
        nodes = self._nodes()
        if nodes and not self._cpu_fallback and not nodes[self._asked[0]]:
            where = ", ".join(f"{n} on {name}" for name, n in sorted(nodes.items()))
            raise UsageError(
                f"providers: none of the model's nodes runs on {self._asked[0]} ({where}): it lacks their operators or "
                "dtypes; convert the model, or name the provider that runs it first"
            )

    def _to_be_had(self) -> list[str]:
        """Those providers that this build has, and a device for; the device is then open."""
        available = self._ort.get_available_providers()
        providers = [provider for provider in self._asked if self._is_built_with(provider, available)]
        if (first := next((provider for provider in providers if provider in ON_CUDA), None)) is None:
            return providers
        try:
            self._gpu = Device(self._ordinal)
        except NoSuchGpu as error:
            raise UsageError(
                f"provider_options: device_id {self._ordinal} was asked for, but {error}; count from 0 the GPUs "
                "that the container has"
            ) from None
        except Unavailable as error:
            mend = "check the driver, and that the container was started with the GPU"
            self._miss("no_device", f"{error}; {mend}", first)
            return [provider for provider in providers if provider not in ON_CUDA]
        self._gpu.before_close(self._drop)  # the session has its stream
        # CUDA may come as wheels, which only ONNX Runtime knows how to find; what it says goes where logs go.
        if (
            find_spec("nvidia") is not None
            and (preload := getattr(self._ort, "preload_dlls", None)) is not None
        ):
            with redirect_stdout(sys.stderr):
                preload()
        return providers

    def _is_built_with(self, provider: str, available: Sequence[str]) -> bool:
        if provider in available:
            return True
        ort = self._ort
        mend = (
            "install onnxruntime-gpu in its place" if provider in ON_CUDA else "install a build that has it"
        )
        self._miss(
            "cpu_only_build",
            f"onnxruntime {ort.__version__} is a build without {provider} (it has {', '.join(available)}); {mend}",
            provider,
        )
        return False

    def _miss(self, reason: str, why: str, provider: str) -> None:
        """A provider that was asked for is not to be had: refused, or with leave noted."""
        if provider in ON_CUDA:
            self.cuda_missing = reason
        if self._cpu_fallback:
            return
        lacking = NoCuda if provider in ON_CUDA else UsageError
        here = ", ".join(visible_gpus()) if provider in ON_CUDA else ""
        seen = f" and NVML sees {here}" if here else ""
        raise lacking(
            f"providers: `{short_name(provider)}` was asked for{seen}, but {why}, or set `providers: [cpu]`"
        )

    def _load(self, providers: Sequence[str]) -> None:
        """Make the session, without ONNX Runtime's own fallback, which prints on standard output."""
        with_options = [
            (provider, self._provider_options.get(provider, {}) | self._stream_option(provider))
            for provider in providers or [CPU]
        ]
        with self._gpu.current() if self._gpu is not None else nullcontext():
            self._session = None
            try:
                self._session = self._ort.InferenceSession(
                    self._path, sess_options=self.session_options(), providers=with_options, enable_fallback=0
                )
            except Exception as error:
                why = why_not(error, self._path, self._ort.__version__)
                raise UsageError(f"model: `{self._path}` {why}") from None

    def _stream_option(self, provider: str) -> dict[str, str]:
        if self._gpu is None or provider not in ON_CUDA:
            return {}
        return {"device_id": str(self._ordinal), "user_compute_stream": str(self._gpu.stream.value)}

    def _slots(self) -> list[Slot]:
        slots = []
        for argument in self._session.get_inputs():
            if argument.type not in _DTYPES:
                raise UsageError(
                    f"inputs: the model's input `{argument.name}` is a {argument.type}, which cannot be drawn; "
                    "give a model that takes tensors of numbers"
                )
            slots.append(Slot(argument.name, tuple(argument.shape), _DTYPES[argument.type]))
        return slots

    def _bind(self, arrays: dict[str, NDArray[Any]], dtypes: dict[str, str]) -> None:
        """Bind the inputs where they lie, and leave the outputs' memory to ONNX Runtime."""
        self._arrays, self._dtypes = arrays, dtypes  # the arrays' memory is what is bound
        self._binding = self._session.io_binding()
        for name, array in arrays.items():
            self._bind_input(self._binding, name, array.shape, dtypes[name], array.ctypes.data)
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name)

    def _stage(self, gpu: Device, arrays: dict[str, NDArray[Any]], dtypes: dict[str, str]) -> None:
        """Bind inputs and outputs to memory on the device, and find out by a first run how large the outputs are."""
        self._require_stream()
        with gpu.current():
            staged = {name: StagedTensor(gpu, array.shape, dtypes[name]) for name, array in arrays.items()}
            for name, tensor in staged.items():
                tensor.fill(arrays[name])
                tensor.upload()
            gpu.driver.call("cuStreamSynchronize", gpu.stream)
            first = self._session.io_binding()
            for name, tensor in staged.items():
                self._bind_input(first, name, arrays[name].shape, dtypes[name], tensor.address)
            on_device = [o.name for o in self._session.get_outputs() if o.type in _DTYPES]
            for output in self._session.get_outputs():
                if output.name in on_device:
                    first.bind_output(output.name, "cuda", self._ordinal)
                else:
                    first.bind_output(output.name)
            self._session.run_with_iobinding(first)
            self._binding = self._session.io_binding()
            for name, tensor in staged.items():
                self._bind_input(self._binding, name, arrays[name].shape, dtypes[name], tensor.address)
            outputs = []
            for output, found in zip(self._session.get_outputs(), first.get_outputs(), strict=True):
                if output.name not in on_device:
                    self._binding.bind_output(output.name)
                    continue
                dtype = _DTYPES[output.type]
                tensor = StagedTensor(gpu, found.shape(), dtype)
                self._binding.bind_output(
                    output.name, "cuda", self._ordinal, _element_type(dtype), found.shape(), tensor.address
                )
                outputs.append(tensor)
        self._inputs, self._outputs = list(staged.values()), outputs
        self._run_options = self._ort.RunOptions()
        # The clock waits for the last event on this stream; that ONNX Runtime waits as well would be in `compute`.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.clock = StagedClock(gpu)

    def _require_stream(self) -> None:
        """Whether it runs on our stream: events on another would time nothing."""
        for provider, options in self._session.get_provider_options().items():
            if provider in ON_CUDA and options.get("has_user_compute_stream") != "1":
                raise UsageError(
                    f"providers: onnxruntime {self._ort.__version__} does not say that {provider} runs on the stream "
                    "that it was given (user_compute_stream); install onnxruntime-gpu 1.18 or newer"
                )

    def _bind_input(self, binding: Any, name: str, shape: Sequence[int], dtype: str, address: int) -> None:
        where = ("cuda", self._ordinal) if self._gpu is not None else ("cpu", 0)
        binding.bind_input(name, *where, _element_type(dtype), list(shape), address)

    def _enqueue(self) -> None:
        self._session.run_with_iobinding(self._binding, self._run_options)

    def _nodes(self) -> Counter[str]:
        """Provider → how many of the model's nodes it runs; empty where this version does not tell."""
        nodes: Counter[str] = Counter()
        with suppress(Exception):
            for part in self._session.get_provider_graph_assignment_info():
                nodes[part.ep_name] += len(part.get_nodes())
        return nodes

    def _ran_by(self) -> str:
        """The first of the session's providers that has nodes to run."""
        nodes = self._nodes()
        registered: list[str] = self._session.get_providers()
        return next((provider for provider in registered if nodes[provider]), registered[0])

    def _inter_op_threads(self) -> int:
        if self._execution_mode == "sequential":
            return 1
        return int(self._session.get_session_options().inter_op_num_threads) or _physical_cores()


def _require_one_of(key: str, value: object, known: Mapping[str, str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{key}: `{value}` is none of {', '.join(known)}")


def _element_type(dtype: str) -> Any:
    import numpy as np

    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).type


def _numbers(value: Any) -> NDArray[Any] | None:
    """An output in the host's memory, None where it is no tensor of numbers."""
    import numpy as np

    if not value.is_tensor() or value.data_type() not in _DTYPES:
        return None
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return readable(np.ndarray(shape, np.uint16, memoryview(memory)), "bfloat16")


def _physical_cores() -> int:
    """How many threads ONNX Runtime has by default: one for each core of the host, whatever the container's limits.

    0 where that is not known. https://onnxruntime.ai/docs/performance/tune-performance/threading.html
    """
    cores = set()
    for cpu in _TOPOLOGY.glob("cpu[0-9]*/topology"):
        with suppress(OSError):
            cores.add(tuple((cpu / name).read_text() for name in ("physical_package_id", "core_id")))
    return len(cores)


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items()))


def _digest(path: str) -> str:
    """The file's name and the start of its SHA-256: another model is another latency."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"{Path(path).name} {digest.hexdigest()[:12]}"
