"""Tensors of GPU targets that do not use torch: a copy in pinned host memory and a copy on the device."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets.engines.tensors import STORAGE, readable
from infercanary.probe.timing import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StagedTensor:
    """A tensor in pinned host memory and on the device. Both copies exist until the device is closed.

    Call everything except :attr:`address`, :attr:`memory` and :meth:`numbers` inside ``with device.current()``.
    """

    def __init__(self, device: Device, shape: Sequence[int], dtype: str) -> None:
        """Allocate both copies.

        Args:
            device: Device of the second copy.
            shape: Any shape; may have no elements.
            dtype: numpy's name, or ``bfloat16``.

        Raises:
            CudaError: The allocation failed, for example because memory is insufficient.
        """
        import numpy as np

        self._device = device
        self._dtype = dtype
        storage = np.dtype(STORAGE[dtype])
        self._size = math.prod(shape) * storage.itemsize
        room = max(1, self._size)  # at least one byte, because CUDA cannot allocate 0 bytes
        self._on_device = device.allocate(room)
        self._pinned = device.pinned(room)
        memory = (ctypes.c_uint8 * room).from_address(self._pinned.value or 0)
        self.memory: NDArray[Any] = np.ndarray(tuple(shape), storage, memoryview(memory))
        """The tensor's copy on the host; valid until the device is closed."""
        self.address = self._on_device.value

    def upload(self) -> None:
        """Enqueue the copy from the host to the device."""
        self._device.driver.call(
            "cuMemcpyHtoDAsync_v2", self._on_device, self._pinned, self._size, self._device.stream
        )

    def download(self) -> None:
        """Enqueue the copy from the device to the host."""
        self._device.driver.call(
            "cuMemcpyDtoHAsync_v2", self._pinned, self._on_device, self._size, self._device.stream
        )

    def numbers(self) -> NDArray[Any]:
        """Return the copy on the host as numbers; valid until the device is closed.

        Returns:
            An array with the tensor's shape and memory; for bfloat16, a new array of float32.
        """
        return readable(self.memory, self._dtype)


def staged_run(
    phase: Phase,
    batch: int,
    inputs: Sequence[StagedTensor],
    compute: Callable[[], None],
    outputs: Sequence[StagedTensor],
) -> None:
    """Make ``batch`` inferences phase by phase: first all copies to the device, then all computations, then all
    copies back.

    Args:
        phase: Marks the phases.
        batch: Number of inferences.
        inputs: Tensors to copy to the device.
        compute: Function that enqueues one inference on the device's stream.
        outputs: Tensors to copy back.
    """
    with phase("h2d"):
        for _ in range(batch):
            for tensor in inputs:
                tensor.upload()
    with phase("compute"):
        for _ in range(batch):
            compute()
    with phase("d2h"):
        for _ in range(batch):
            for tensor in outputs:
                tensor.download()
