"""The TensorRT target: runs an engine file on the GPU for which the file was built, using only TensorRT and CUDA's
driver.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from infercanary.command.settings import UsageError, convert
from infercanary.contract.profile import Profile
from infercanary.probe.deadline import clear_frames
from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets import BatchedTarget, Need, NoCuda, Unprofiled, register
from infercanary.probe.targets.engines import needs, outputs, tensorrt_profile
from infercanary.probe.targets.engines.cuda_tensors import StagedTensor, staged_run
from infercanary.probe.targets.engines.cuda_versions import driver_cuda, no_cuda, open_gpu, wheel_cuda
from infercanary.probe.targets.engines.digests import of_files
from infercanary.probe.targets.engines.environment import reported
from infercanary.probe.targets.engines.options import Seed, check_device, check_file
from infercanary.probe.targets.engines.tensorrt_plan import built_by, complaints_log, why_not
from infercanary.probe.targets.engines.tensors import Slot, drawn, matched, specs
from infercanary.probe.targets.libraries import imported
from infercanary.probe.timing import HostClock, Phase, inferences

_Number = Annotated[int, Meta(ge=0)]
_DTYPES = {name.upper(): name for name in ("bool", "int8", "int32", "int64", "uint8")}
_DTYPES |= {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}


@register("tensorrt")
class TensorRtTarget(BatchedTarget):
    """Runs a TensorRT engine on fixed inputs, on the probe's stream with the lowest priority.

    CUDA events on that stream delimit ``h2d``, ``compute`` and ``d2h``; copies use pinned memory. A repeat has as
    many inferences as take 100 µs on the device, because events resolve about 0.5 µs.
    """

    profiler = "same_model"

    def __init__(
        self,
        engine: str,
        inputs: Sequence[Any] | Mapping[str, Any] = (),
        device: str = "cuda",
        profile: int = 0,
        seed: int = 0,
    ) -> None:
        """Check the options, but load nothing yet.

        Args:
            engine: File from ``trtexec --saveEngine`` or from the builder.
            inputs: Specifications (``{"shape": [8, 3, 224, 224]}``) of values drawn from ``seed``: a list in the
                engine's order, or a mapping by name. Missing keys are taken from the engine; a dynamic shape is then
                the profile's optimum.
            device: ``cuda`` or ``cuda:N``.
            profile: Number of the engine's optimization profile.
            seed: Seed of the inputs.

        Raises:
            UsageError: An option is invalid.
        """
        if not isinstance(engine, str) or not engine:
            raise UsageError("engine: name a TensorRT engine file")
        self._ordinal = check_device(device, "cuda, cuda:N")
        convert(profile, _Number, "profile")
        convert(seed, Seed, "seed")
        self._path = Path(engine)
        self._specs = specs(inputs)
        self.device = device
        self._profile = profile
        self._seed = seed
        self._gpu: Device | None = None
        self._drop()

    def open(self) -> None:
        """Import TensorRT, load the engine, draw the inputs, and bind all tensors to memory on the device.

        Raises:
            UsageError: TensorRT is not installed, the engine cannot be loaded, or an input does not fit.
            Failure: TensorRT's libraries do not fit or are missing; or memory is insufficient.
            NoCuda: The GPU or the driver is missing, or engine, TensorRT and driver are incompatible;
                :attr:`cuda_missing` gives the reason.
        """
        self._trt: Any = imported(
            "tensorrt", "install the version that built the engine: pip install tensorrt==…"
        )
        weights = [needs.of_files("engine", [self._path])]
        self.ask_for_memory(weights)
        check_file("engine", self._path)
        plan = self._path.read_bytes()
        self.ask_for_memory(needs.on_device(weights))  # ask for memory before a context takes device memory
        asked = f"device: `{self.device}`"
        self.cuda_missing = ""
        try:
            self._gpu = open_gpu(asked, self._ordinal, f"tensorrt {self._trt.__version__}", self._built_for())
        except NoCuda as error:
            self.cuda_missing = error.reason
            raise no_cuda(asked, str(error), error.reason) from None
        with self._gpu.current():
            self._load(self._gpu, plan)
            self.clock = self._gpu.clock(is_inside=False)

    def run(self, phase: Phase) -> None:
        """Make the inferences of one repeat, with the copies to the device and back."""
        staged_run(phase, inferences(self.clock), self._inputs, self._enqueue, self._outputs)

    def values(self, result: Any) -> list[float]:
        """Return evenly spaced numbers of the last outputs. The last number is NaN if an output contains NaN or
        infinity.
        """
        return outputs.values([tensor.numbers() for tensor in self._outputs])

    def environment(self) -> dict[str, str]:
        """Return the versions of TensorRT that are installed and that built the engine, the engine's file, the GPU
        and its CUDA.
        """
        gpu: Any = self._gpu
        return reported(
            {
                "tensorrt": self._trt.__version__,
                "tensorrt_build_cuda": self._built_for,
                "tensorrt_built_by": self._built_by,
                "tensorrt_engine": self._path.name,
                "tensorrt_device": self.device,
                "tensorrt_cuda_device": lambda: gpu.name,
                "tensorrt_driver_cuda": driver_cuda,
            }
        )

    def identity(self) -> str:
        """Return the digest of the engine file."""
        return of_files([self._path])

    def settings(self) -> dict[str, object]:
        return {"inputs": self._specs, "profile": self._profile, "seed": self._seed}

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile repeats with TensorRT's own profiler, in a separate execution context.

        The context is separate, because a profiler cannot be removed from a context, and makes each enqueue wait.

        Raises:
            Unprofiled: A trace is requested, which TensorRT's profiler cannot write.
            RuntimeError: TensorRT makes no second context.
        """
        if trace is not None:
            raise Unprofiled("TensorRT's profiler writes no trace; leave --trace out, or use `nsys`")
        gpu: Any = self._gpu
        self.ask_for_memory([self._activations()])
        contexts: list[Any] = []  # emptied at the end, so that the context is released inside gpu.current()

        def run(phase: Phase) -> None:
            enqueue = functools.partial(self._enqueue, contexts[0])
            staged_run(phase, inferences(self.clock), self._inputs, enqueue, self._outputs)

        try:
            with gpu.current():
                contexts.append(self._make_context(gpu))
                for tensor_name, tensor in self._bound.items():
                    if tensor in self._inputs:
                        contexts[0].set_input_shape(tensor_name, tensor.memory.shape)
                    contexts[0].set_tensor_address(tensor_name, tensor.address)
            device = f"cuda:{self._ordinal}"
            return tensorrt_profile.profile_repeats(self._trt, contexts[0], self.clock, run, repeats, device)
        except BaseException as error:
            clear_frames(error)
            raise
        finally:
            with gpu.current():
                contexts.clear()

    def close(self) -> None:
        self.clock = HostClock()
        gpu, self._gpu = self._gpu, None
        if gpu is not None:
            gpu.close()
        self._drop()

    def _drop(self) -> None:
        """Release the tensors, then TensorRT's objects in reverse order of creation."""
        self._inputs: list[StagedTensor] = []
        self._outputs: list[StagedTensor] = []
        self._bound: dict[str, StagedTensor] = {}
        self._context: Any = None
        self._engine: Any = None
        self._runtime: Any = None
        self._log: Any = None

    def _load(self, gpu: Device, plan: bytes) -> None:
        trt = self._trt
        gpu.before_close(self._drop)
        self._log = complaints_log(trt)
        self._log.complaints.clear()
        self._built_by = built_by(plan)
        with suppress(AttributeError):  # TensorRT's lean runtime has no plugins
            trt.init_libnvinfer_plugins(self._log, "")
        self._runtime = trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            said = " ".join(self._log.complaints)
            why, is_of_another_version = why_not(said, self._built_by, trt.__version__)
            why = f"engine: `{self._path}` {why}"
            if is_of_another_version:
                self.cuda_missing = "version_mismatch"
                raise NoCuda(why, self.cuda_missing)
            raise UsageError(why)
        if self._profile >= self._engine.num_optimization_profiles:
            last = self._engine.num_optimization_profiles - 1
            raise UsageError(
                f"profile: the engine has no profile {self._profile}; its last profile is {last}"
            )
        self.ask_for_memory([self._activations()])
        self._context = self._make_context(gpu)
        self._bind(gpu)

    def _make_context(self, gpu: Device) -> Any:
        """Make an execution context with the optimization profile."""
        context = self._engine.create_execution_context()
        if context is None:
            raise RuntimeError(f"TensorRT makes no execution context: {self._complaint()}")
        if self._profile:
            context.set_optimization_profile_async(self._profile, gpu.stream.value)
            gpu.driver.call("cuStreamSynchronize", gpu.stream)
        return context

    def _bind(self, gpu: Device) -> None:
        engine, context = self._engine, self._context
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        is_input = {name: engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT for name in names}
        inputs = matched(self._specs, [self._slot(name) for name in names if is_input[name]])
        for wanted in inputs:
            if not context.set_input_shape(wanted.name, wanted.shape):
                raise UsageError(
                    f"{wanted.place}.shape: TensorRT refuses {list(wanted.shape)} ({self._complaint()}); choose one "
                    "in the engine's profile, or build the engine with --minShapes and --maxShapes"
                )
        if missing := context.infer_shapes():
            raise RuntimeError(f"TensorRT cannot infer shapes without {', '.join(missing)}")
        asked = [needs.of_input(wanted.place, wanted.shape, wanted.dtype) for wanted in inputs]
        self.ask_for_memory([*asked, *needs.on_device(asked)])
        for i, wanted in enumerate(inputs):
            tensor = self._bind_tensor(gpu, wanted.name, wanted.shape, wanted.dtype)
            drawn(wanted, self._seed, i, tensor.memory)
            self._inputs.append(tensor)
        for name in names:
            if not is_input[name]:
                dtype, shape = self._dtype("output", name), tuple(context.get_tensor_shape(name))
                if min(shape, default=0) < 0:
                    raise UsageError(
                        f"engine: the size of the output `{name}` depends on the data, which is not supported; "
                        "build the engine without that layer"
                    )
                self.ask_for_memory(needs.of_output(shape, dtype, on_device=True))
                self._outputs.append(self._bind_tensor(gpu, name, shape, dtype))

    def _bind_tensor(self, gpu: Device, name: str, shape: tuple[int, ...], dtype: str) -> StagedTensor:
        self._bound[name] = tensor = StagedTensor(gpu, shape, dtype)
        if not self._context.set_tensor_address(name, tensor.address):
            raise RuntimeError(f"TensorRT refuses the memory of {name}: {self._complaint()}")
        return tensor

    def _activations(self) -> Need:
        """Return the memory of an execution context, with workspace. TensorRT 10.1 renamed the attribute."""
        engine = self._engine
        size = getattr(engine, "device_memory_size_v2", 0) or getattr(engine, "device_memory_size", 0)
        fix = "build the engine with smaller shapes, or with less workspace"
        return Need("engine", size, "its execution context", fix, "device")

    def _slot(self, name: str) -> Slot:
        dtype = self._dtype("input", name)
        shape = tuple(size if size >= 0 else None for size in self._engine.get_tensor_shape(name))
        usual = (
            tuple(self._engine.get_tensor_profile_shape(name, self._profile)[1]) if None in shape else None
        )
        return Slot(name, shape, dtype, usual)

    def _dtype(self, kind: str, name: str) -> str:
        """Return a tensor's dtype. Raise an error for a tensor that is not in linear device memory."""
        engine, trt = self._engine, self._trt
        theirs = str(engine.get_tensor_dtype(name).name)
        layout = engine.get_tensor_format(name)
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            fault = "is a shape tensor in host memory, which is not supported; build the engine with a fixed shape"
        elif theirs not in _DTYPES:
            fault = (
                f"is {theirs}; build the engine with one of {', '.join(_DTYPES)} "
                "(trtexec --inputIOFormats, --outputIOFormats)"
            )
        elif layout != trt.TensorFormat.LINEAR:
            fault = (
                f"has the layout {layout.name}; build the engine with a linear layout "
                "(trtexec --inputIOFormats=fp32:chw, --outputIOFormats=fp32:chw)"
            )
        else:
            return _DTYPES[theirs]
        raise UsageError(f"engine: the {kind} `{name}` {fault}")

    def _enqueue(self, context: Any = None) -> None:
        gpu = self._gpu
        if gpu is None or not (context or self._context).execute_async_v3(gpu.stream.value):
            raise RuntimeError(f"TensorRT cannot enqueue the engine: {self._complaint()}")

    def _built_for(self) -> str:
        """Return the CUDA version for which the installed wheel was built; empty if unknown."""
        return wheel_cuda("tensorrt", self._trt.__version__)

    def _complaint(self) -> str:
        """Return the last error that TensorRT logged."""
        complaints = getattr(self._log, "complaints", ())
        return complaints[-1] if complaints else "TensorRT logs no reason"
