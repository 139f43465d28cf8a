"""Shared code of targets that compute with torch: the device, its clock and its stream."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from infercanary.probe.targets import BatchedTarget, NoCuda
from infercanary.probe.targets.engines import outputs, torch_model, torch_profile
from infercanary.probe.timing import CudaClock, HostClock


class TorchDeviceTarget(BatchedTarget):
    """A target on one of torch's devices. With ``cpu_fallback``, the target runs on the CPU if CUDA is missing."""

    clock: HostClock | CudaClock
    _torch: Any
    _device: Any

    def values(self, result: Any) -> list[float]:
        """Return evenly spaced numbers of the result. The last number is NaN if the result contains NaN or infinity."""
        with self._stream():
            return outputs.values(result)

    def is_busy(self) -> bool:
        """True if work of this process is waiting or running on the device's default stream."""
        return self._on_cuda and not self._torch.cuda.default_stream(self._device).query()

    @property
    def _on_cuda(self) -> bool:
        return self._device.type == "cuda"  # type: ignore[no-any-return]

    def _open_device(self, cpu_fallback: bool = False) -> None:
        """Import torch, and set the device.

        Raises:
            NoCuda: torch has no CUDA; :attr:`cuda_missing` gives the reason.
        """
        self._torch = torch_profile.import_torch()
        self._device = self._torch.device(self.device)
        self.cuda_missing = ""
        if self._on_cuda:
            try:
                torch_model.require_cuda(self._torch, self._device)
            except NoCuda as error:
                self.cuda_missing = error.reason
                if not cpu_fallback:
                    raise
                self._device = self._torch.device("cpu")

    def _make_clock(self) -> None:
        self.clock = CudaClock(self._torch.cuda, self._device) if self._on_cuda else HostClock()

    def _stream(self) -> AbstractContextManager[Any]:
        """Return a context in which the clock's stream is torch's current stream. Other streams do not wait for this
        stream.
        """
        clock = self.clock
        return self._torch.cuda.stream(clock.stream) if isinstance(clock, CudaClock) else nullcontext()
