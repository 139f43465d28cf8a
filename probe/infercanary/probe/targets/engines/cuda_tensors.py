"""Tensors of GPU targets without torch: pinned on the host, and on the device."""

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
    """One tensor twice, in pinned host memory and on the device, until the device is closed.

    All but :attr:`address`, :attr:`memory` and :meth:`numbers` is called inside ``with device.current()``.
    """

    def __init__(self, device: Device, shape: Sequence[int], dtype: str) -> None:
        """Allocate both.

        Args:
            device: Where one copy lies.
            shape: Any; it may have no elements.
            dtype: By numpy's name, or ``bfloat16``.

        Raises:
            CudaError: Memory is short, for example.
        """
        import numpy as np

        self._device = device
        self._dtype = dtype
        storage = np.dtype(STORAGE[dtype])
        self._size = math.prod(shape) * storage.itemsize
        room = max(1, self._size)  # there is no memory of no bytes
        self._on_device = device.allocate(room)
        self._pinned = device.pinned(room)
        memory = (ctypes.c_uint8 * room).from_address(self._pinned.value or 0)
        self.memory: NDArray[Any] = np.ndarray(tuple(shape), storage, memoryview(memory))
        """The host's side, until the device is closed."""
        self.address: int = self._on_device.value

    def upload(self) -> None:
        """Enqueue the copy to the device."""
        self._device.driver.call(
            "cuMemcpyHtoDAsync_v2", self._on_device, self._pinned, self._size, self._device.stream
        )

    def download(self) -> None:
        """Enqueue the copy to the host."""
        self._device.driver.call(
            "cuMemcpyDtoHAsync_v2", self._pinned, self._on_device, self._size, self._device.stream
        )

    def numbers(self) -> NDArray[Any]:
        """Return the host's side as numbers; they are valid until the device is closed.

        Returns:
            An array of the tensor's shape, which shares its memory (bfloat16 is a copy as float32).
        """
        return readable(self.memory, self._dtype)


def staged_run(
    phase: Phase,
    batch: int,
    inputs: Sequence[StagedTensor],
    compute: Callable[[], None],
    outputs: Sequence[StagedTensor],
) -> None:
    """Make ``batch`` inferences, phase by phase: all copies to the device, all computing, all copies back.

    Args:
        phase: Marks the phases.
        batch: How many inferences.
        inputs: What is copied to the device.
        compute: Enqueues one inference on the device's stream.
        outputs: What is copied back.
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
