"""A session's inputs and outputs, bound to memory: the host's, or a GPU's with pinned memory on the host beside it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infercanary.command.settings import UsageError
from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets import Need
from infercanary.probe.targets.engines import needs
from infercanary.probe.targets.engines.cuda_tensors import StagedClock, StagedTensor, staged_run
from infercanary.probe.targets.engines.onnx_file import with_rank
from infercanary.probe.targets.engines.tensors import Input, Slot, drawn, places, readable
from infercanary.probe.timing import HostClock, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {
    f"tensor({theirs})": ours
    for theirs, ours in {
        "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16", "bool": "bool",
        "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
        "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    }.items()
}  # fmt: skip
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16: numpy has no such type to name


def slots(session: Any, path: Path) -> list[Slot]:
    """Return a session's inputs as it declares them.

    Args:
        session: An ``onnxruntime.InferenceSession``.
        path: The file of its model.

    Returns:
        One slot for each input, in the model's order.

    Raises:
        UsageError: One of them is no tensor of numbers.
    """
    found = []
    for argument in session.get_inputs():
        if argument.type not in _DTYPES:
            raise UsageError(
                f"inputs: the model's input `{argument.name}` is a {argument.type}, which cannot be drawn; "
                "give a model that takes tensors of numbers"
            )
        found.append(Slot(argument.name, tuple(argument.shape), _DTYPES[argument.type]))
    if all(slot.shape for slot in found):
        return found
    # ONNX Runtime reports an unknown rank as it does a single number: with no dimensions.
    ranked = with_rank(path)
    if ranked is None:
        return [slot if slot.shape else slot._replace(shape=None, usual=()) for slot in found]
    return [slot if slot.shape or slot.name in ranked else slot._replace(shape=None) for slot in found]


class HostBinding:
    """Inputs bound where they lie; the outputs' memory is left to ONNX Runtime."""

    def __init__(self, session: Any, arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str]) -> None:
        """Bind them.

        Args:
            session: The ``onnxruntime.InferenceSession``.
            arrays: Input → its numbers; their memory is what is bound.
            dtypes: Input → its dtype.
        """
        self.clock = HostClock()
        self._session = session
        self._arrays = arrays
        self._binding = session.io_binding()
        for name, array in arrays.items():
            _bind_input(self._binding, ("cpu", 0), name, array.shape, dtypes[name], array.ctypes.data)
        for output in session.get_outputs():
            self._binding.bind_output(output.name)

    def run(self, phase: Phase) -> None:
        """Make one inference.

        Args:
            phase: Times ``compute``.
        """
        with phase("compute"):
            self._session.run_with_iobinding(self._binding)

    def values(self) -> list[float]:
        """Return evenly spread places of the last outputs, and NaN if anything in them is not finite.

        Returns:
            At most 1,024 numbers; empty where no output holds numbers.
        """
        return places(
            numbers for each in self._binding.get_outputs() if (numbers := _numbers(each)) is not None
        )


class DeviceBinding:
    """Inputs and outputs bound to memory on the device, with copies from and to pinned memory."""

    def __init__(
        self,
        ort: Any,
        session: Any,
        gpu: Device,
        ordinal: int,
        inputs: Sequence[Input],
        seed: int,
        ask_for_memory: Callable[[Sequence[Need]], None],
    ) -> None:
        """Draw the inputs and bind them, after a first run that finds out how large the outputs are.

        Args:
            ort: The module ``onnxruntime``.
            session: Its ``InferenceSession``, which runs on the device's stream.
            gpu: The device.
            ordinal: CUDA's number of it.
            inputs: What each of them holds.
            seed: They are drawn from it.
            ask_for_memory: Called before an output gets its memory on the device, and its copy on the host.
        """
        self._session = session
        where = ("cuda", ordinal)
        with gpu.current():
            self.inputs = [StagedTensor(gpu, wanted.shape, wanted.dtype) for wanted in inputs]
            staged = list(zip(inputs, self.inputs, strict=True))
            for i, (wanted, tensor) in enumerate(staged):
                drawn(wanted, seed, i, tensor.memory)
                tensor.upload()
            gpu.driver.call("cuStreamSynchronize", gpu.stream)
            first = session.io_binding()
            for wanted, tensor in staged:
                _bind_input(first, where, wanted.name, wanted.shape, wanted.dtype, tensor.address)
            on_device = [output.name for output in session.get_outputs() if output.type in _DTYPES]
            for output in session.get_outputs():
                if output.name in on_device:
                    first.bind_output(output.name, *where)
                else:
                    first.bind_output(output.name)
            session.run_with_iobinding(first)
            self._binding = session.io_binding()
            for wanted, tensor in staged:
                _bind_input(self._binding, where, wanted.name, wanted.shape, wanted.dtype, tensor.address)
            self.outputs = []
            for output, found in zip(session.get_outputs(), first.get_outputs(), strict=True):
                if output.name not in on_device:
                    self._binding.bind_output(output.name)
                    continue
                dtype = _DTYPES[output.type]
                asked = [needs.of_output(found.shape(), dtype)]
                ask_for_memory([*asked, *needs.on_device(asked)])
                tensor = StagedTensor(gpu, found.shape(), dtype)
                self._binding.bind_output(
                    output.name, *where, _element_type(dtype), found.shape(), tensor.address
                )
                self.outputs.append(tensor)
        self._run_options = ort.RunOptions()
        # The clock waits for the last event on this stream; that ONNX Runtime waits as well would be in `compute`.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.clock = StagedClock(gpu)

    def run(self, phase: Phase) -> None:
        """Make as many inferences as the clock's batch, with the copies to the device and back.

        Args:
            phase: Times ``h2d``, ``compute`` and ``d2h``.
        """
        staged_run(phase, self.clock.batch, self.inputs, self._enqueue, self.outputs)

    def values(self) -> list[float]:
        """Return evenly spread places of the last outputs, and NaN if anything in them is not finite.

        Returns:
            At most 1,024 numbers; empty where no output holds numbers.
        """
        return places(tensor.numbers() for tensor in self.outputs)

    def _enqueue(self) -> None:
        self._session.run_with_iobinding(self._binding, self._run_options)


def _bind_input(
    binding: Any, where: tuple[str, int], name: str, shape: Sequence[int], dtype: str, address: int
) -> None:
    binding.bind_input(name, *where, _element_type(dtype), list(shape), address)


def _element_type(dtype: str) -> Any:
    import numpy as np

    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).type


def _numbers(value: Any) -> NDArray[Any] | None:
    """An output in the host's memory; None where it is no tensor of numbers."""
    import numpy as np

    if not value.is_tensor() or value.data_type() not in _DTYPES:
        return None
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return readable(np.ndarray(shape, np.uint16, memoryview(memory)), "bfloat16")
