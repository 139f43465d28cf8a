"""Inputs and outputs of a session, bound to host memory, or to GPU memory with a copy in pinned host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Need
from infercanary.probe.targets.engines import needs, outputs
from infercanary.probe.targets.engines.cuda_tensors import StagedTensor, staged_run
from infercanary.probe.targets.engines.onnx_session import OnnxSession
from infercanary.probe.targets.engines.tensors import STORAGE, Input, Slot, drawn, readable
from infercanary.probe.timing import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {f"tensor({name})": name for name in STORAGE} | {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16; numpy has no bfloat16


def slots(session: Any) -> list[Slot]:
    """Return a session's inputs as the model declares them. An input without dimensions may have any shape."""
    for argument in session.get_inputs():
        if argument.type not in _DTYPES:
            raise UsageError(
                f"inputs: the model's input `{argument.name}` is a {argument.type}, for which no values can be "
                "drawn; use a model with tensors of numbers"
            )
    # ONNX Runtime reports no dimensions in two cases: for an unknown rank, and for a single number.
    return [
        Slot(each.name, tuple(each.shape) or None, _DTYPES[each.type], None if each.shape else ())
        for each in session.get_inputs()
    ]


class HostBinding:
    """Binds inputs to the arrays that hold them; ONNX Runtime allocates the outputs."""

    def __init__(self, session: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Bind the inputs to the memory of the arrays.

        Args:
            session: The ``onnxruntime.InferenceSession``.
            arrays: Name of an input → its values.
        """
        self._session = session
        self._arrays = arrays
        self._binding = session.io_binding()
        for argument in session.get_inputs():
            array, kind = arrays[argument.name], _element_type(_DTYPES[argument.type])
            self._binding.bind_input(argument.name, "cpu", 0, kind, list(array.shape), array.ctypes.data)
        for output in session.get_outputs():
            self._binding.bind_output(output.name)

    def run(self, phase: Phase) -> None:
        """Make one inference."""
        with phase("compute"):
            self._session.run_with_iobinding(self._binding)

    def values(self) -> list[float]:
        """Return numbers of the last run's outputs, from evenly spaced positions."""
        return outputs.values([_numbers(value) for value in self._binding.get_outputs()])


class DeviceBinding:
    """Binds inputs and outputs to memory on the device; copies from and to pinned memory."""

    def __init__(
        self,
        ort: Any,
        loaded: OnnxSession,
        inputs: Sequence[Input],
        seed: int,
        ask_for_memory: Callable[[Sequence[Need]], None],
    ) -> None:
        """Draw the inputs and bind them. A first run finds the sizes of the outputs.

        Args:
            ort: The module ``onnxruntime``.
            loaded: Session that runs on the stream of its device.
            inputs: Shape, dtype and range of each input.
            seed: Seed of the inputs.
            ask_for_memory: Called with the memory needs of an output and its host copy, before both are allocated.
        """
        self._session = session = loaded.session
        gpu: Any = loaded.gpu
        where = ("cuda", loaded.ordinal)
        with gpu.current():
            self.inputs = [StagedTensor(gpu, wanted.shape, wanted.dtype) for wanted in inputs]
            for i, (wanted, tensor) in enumerate(zip(inputs, self.inputs, strict=True)):
                drawn(wanted, seed, i, tensor.memory)
                tensor.upload()
            gpu.driver.call("cuStreamSynchronize", gpu.stream)

            def bind_inputs() -> Any:
                binding = session.io_binding()
                for wanted, tensor in zip(inputs, self.inputs, strict=True):
                    kind = _element_type(wanted.dtype)
                    binding.bind_input(wanted.name, *where, kind, list(wanted.shape), tensor.address)
                return binding

            first, self._binding = bind_inputs(), bind_inputs()
            for output in session.get_outputs():
                first.bind_output(output.name, *(where if output.type in _DTYPES else ()))
            session.run_with_iobinding(first)
            self.outputs = []
            for output, result in zip(session.get_outputs(), first.get_outputs(), strict=True):
                if output.type not in _DTYPES:
                    self._binding.bind_output(output.name)
                    continue
                shape, dtype = result.shape(), _DTYPES[output.type]
                ask_for_memory(needs.of_output(shape, dtype, on_device=True))
                tensor = StagedTensor(gpu, shape, dtype)
                self._binding.bind_output(output.name, *where, _element_type(dtype), shape, tensor.address)
                self.outputs.append(tensor)
            self.clock = gpu.clock(is_inside=False)
        self._run_options = ort.RunOptions()
        # The clock already waits for the last event on this stream. A second wait in ONNX Runtime would count as
        # `compute`.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(self, phase: Phase) -> None:
        """Run the inferences of one repeat, with the copies to the device and back."""
        staged_run(phase, self.clock.batch, self.inputs, self._enqueue, self.outputs)

    def values(self) -> list[float]:
        """Return numbers of the last run's outputs, from evenly spaced positions."""
        return outputs.values([tensor.numbers() for tensor in self.outputs])

    def _enqueue(self) -> None:
        self._session.run_with_iobinding(self._binding, self._run_options)


def _element_type(dtype: str) -> Any:
    import numpy as np

    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).type


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return an output in host memory; None if the output is not a tensor of numbers."""
    import numpy as np

    if not value.is_tensor() or value.data_type() not in _DTYPES:
        return None
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return readable(np.ndarray(shape, np.uint16, memoryview(memory)), "bfloat16")
