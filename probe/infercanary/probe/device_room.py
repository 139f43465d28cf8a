"""How much device memory this process may still take, and the refusal of what is known not to fit, before it is taken.

A server on the same GPU fails where its own allocation does. What is free is read by NVML: to ask CUDA needs a context,
which takes hundreds of megabytes itself. It is read only where something is about to be opened, never around a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from infercanary.probe.gpu.cuda_driver import CudaError, has_context
from infercanary.probe.room import Bound, Left, left, refusal
from infercanary.probe.samplers import Unavailable
from infercanary.probe.shortage import of_device, readable
from infercanary.probe.targets import Failure, Need

LEAST_RESERVE = 256 << 20
RESERVE_SHARE = 0.02
CONTEXT = 768 << 20
"""Bytes that a context with an engine's kernels is taken to need: on an H200 with driver 580 a bare context took 524
MiB, and torch's first product 192 more. It depends on GPU, driver and engine, and is not known before it is made; what
is more than that comes out of the reserve."""
BESIDE = 80 << 20
"""Bytes that the driver takes for a canary in a process that has a context already: 72 MiB for the first one on an
H200, none of them by torch's allocator. Later ones were not measured, and are taken to need as much."""
CONTROLS = 144 << 20
"""Bytes that the controls allocate on a GPU, once a canary is open there: those of :mod:`.targets.controls.cuda`."""


class DeviceRoom:
    """Says what is left on a device, and refuses what does not fit. Devices are ``cuda`` or ``cuda:N``.

    Args:
        reserve: Bytes that are never taken; by default ``LEAST_RESERVE`` or, if that is more, ``RESERVE_SHARE`` of all.
        memory: Reads how many bytes of a GPU are in use, and how many there are, by CUDA's number of it.
    """

    def __init__(
        self, reserve: int | None = None, memory: Callable[[int], tuple[int, int] | None] = of_device
    ) -> None:
        self._reserve = reserve
        self._memory = memory

    def used(self, device: str) -> int | None:
        """Read how many bytes are in use, by whomever.

        Args:
            device: Which.

        Returns:
            Them; None where it is not known.
        """
        found = self._memory(_ordinal(device))
        return None if found is None else found[0]

    def left(self, device: str) -> Left | None:
        """Read what may still be taken; callable from any thread.

        Args:
            device: Which.

        Returns:
            It; None where it is not known.
        """
        if (found := self._memory(_ordinal(device))) is None:
            return None
        used, total = found
        bound = Bound(f"the {readable(total)} of {device}", total, used)
        return left([bound], self._reserve, LEAST_RESERVE, RESERVE_SHARE)

    def first(self, device: str) -> list[Need]:
        """What is taken there besides the target's own: by this process's context, if it has none yet, and by controls.

        Args:
            device: Which.

        Returns:
            A need.
        """
        size, what = CONTEXT + CONTROLS, "a CUDA context, with the controls,"
        with suppress(Unavailable, CudaError):
            if has_context(_ordinal(device)):
                size, what = BESIDE + CONTROLS, "what the driver and the controls take"
        return [Need("device", size, what, "choose another GPU", "device")]

    def require(self, canary: str, device: str, needs: Sequence[Need]) -> None:
        """Refuse what does not fit together.

        Args:
            canary: Whose needs they are.
            device: Where.
            needs: What is about to be taken there, all of it.

        Raises:
            Failure: `out_of_memory`, in a line that names the place in the settings.
        """
        if not needs or (room := self.left(device)) is None:
            return
        if why := refusal(canary, needs, room, "free device memory"):
            raise Failure("out_of_memory", why)


def _ordinal(device: str) -> int:
    return int(device.partition(":")[2] or 0)
