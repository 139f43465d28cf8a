"""The base class of a target: three methods are needed, and everything else has a default."""

# ruff: noqa: B027 -- empty methods are defaults

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from infercanary.contract.profile import Profile
from infercanary.contract.report import Metric
from infercanary.probe.targets.failures import Reason, Unprofiled, Unsized
from infercanary.probe.timing import Clock, CudaClock, HostClock, Phase, inferences_of_100_us


class Reading(NamedTuple):
    """One number of a run besides its timing, such as a server's own count."""

    metric: Metric
    """A gauge whose first label is ``canary``, declared beside the target."""
    value: float
    labels: tuple[str, ...] = ()
    """Values of its other labels."""


class Need(NamedTuple):
    """Memory that a target is about to take."""

    place: str
    """In the canary's settings: ``inputs[0]``, ``model``."""
    size: int
    """Bytes."""
    what: str
    """In words: ``[4, 3, 224, 224] float32``."""
    fix: str
    """How to need less: ``give a smaller shape``."""
    where: Literal["host", "device"] = "host"
    """The device is :attr:`Target.device`."""


class DeviceMemory(NamedTuple):
    """Device memory that the engine has allocated, in bytes."""

    in_use: int
    peak: int
    """Since :meth:`Target.reset_memory_peak`."""


def _take(needs: Sequence[Need]) -> None:
    """Take memory without asking: nothing watches it."""


def _no_limit() -> int | None:
    return None


class Target(ABC):
    """One thing to execute and time. Methods are called one at a time, from changing threads."""

    clock: Clock = HostClock()
    """Times a repeat; read after :meth:`open`."""
    device: str = ""
    """``cpu`` or ``cuda[:N]``: its controls run beside it. Empty where another process does the work."""
    cuda_missing: str = ""
    """Why CUDA was asked for and is missing, one of ``failing.CUDA_MISSING_REASONS``; read after :meth:`open`."""
    reasons: Sequence[Reason] = ()
    """Reasons of its own failures; they are counted from 0 on."""
    is_sweepable: bool = False
    """Whether :meth:`copy_with_batch` makes targets (docs/sweeps.md)."""
    profiler: Literal["none", "same_model", "second_model"] = "none"
    """Whether :meth:`profile` works, and whether it loads the model a second time."""
    ask_for_memory: Callable[[Sequence[Need]], None] = staticmethod(_take)
    """Called by the target before it takes much memory; raises :class:`Failure` (`out_of_memory`) if too little is left
    for all needs together. The probe sets it before :meth:`open`."""
    device_memory_left: Callable[[], int | None] = staticmethod(_no_limit)
    """Bytes of device memory that the engine may take; None for no limit, as in a server's process. The probe sets it
    before :meth:`open`."""

    @abstractmethod
    def open(self) -> None:
        """Load the model, or whatever :meth:`run` needs.

        Raises:
            UsageError: The user made a mistake; the command ``probe`` ends with it.
            NoCuda: CUDA is missing; the probe goes on, and tries again.
            Failure: Anything else with a known reason; the probe tries again.
        """

    @abstractmethod
    def run(self, phase: Phase) -> Any:
        """Make one inference, its parts marked by ``with phase("compute"): …``; :meth:`values` reads the result."""

    @abstractmethod
    def values(self, result: Any) -> Sequence[float]:
        """Read a result as numbers, for the check that the output stays the same.

        Returns:
            At most 1,024 numbers, from the same positions each time; one of them is NaN if the result is not finite.
        """

    def environment(self) -> Mapping[str, str]:
        """Report versions and settings of the engine that may change latency; read after :meth:`open`."""
        return {}

    def close(self) -> None:
        """Release what :meth:`open` took."""

    def identity(self) -> str:
        """Identify the model, so that other weights in one image are an upgrade; called after the warm-up.

        Returns:
            A digest, or the words of a server, after the kind of it (``file-sha256:…``); the same wherever the same
            model runs. Empty where it is not known.
        """
        return ""

    def settings(self) -> Mapping[str, Any] | None:
        """List the options that change what is measured: runs of other settings are not compared.

        Returns:
            Setting → plain values and structs, without the model, times, addresses, headers and keys. Empty and zero
            count as left out, so that a new option changes no older canary. None where they are not known.
        """
        return None

    def memory(self) -> DeviceMemory | None:
        """Return the device memory of the engine; None where it is not known."""
        return None

    def reset_memory_peak(self) -> None:
        """Begin to count :attr:`DeviceMemory.peak` anew."""

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile repeats with the engine's own profiler (docs/profiles.md).

        Args:
            repeats: 1 or more; none of them is timed.
            trace: File of the profiler's trace, for Perfetto.

        Raises:
            Unprofiled: It cannot be done now.
        """
        raise Unprofiled("its target has no profiler (torch, onnx and tensorrt have)")

    def calibrate(self) -> None:
        """Choose how many inferences a repeat has; called once after the first run."""

    def is_busy(self) -> bool:
        """Say whether the host keeps the device busy: a run then waits, or is skipped."""
        return False

    def prepare(self) -> None:
        """Get ready for the repeats of a run, such as by connecting to a server; not timed."""

    def check(self, result: Any) -> None:
        """Refuse a malformed result of :meth:`run` with a :class:`Failure`; called after each repeat, not timed."""

    def readings(self) -> Sequence[Reading]:
        """Return numbers of the last run besides its timing, 64 at most."""
        return ()

    def copy_with_batch(self, batch: int) -> Target:
        """Make an open target of the same model for a sweep; it runs beside others, each in a thread of its own.

        Args:
            batch: Samples in its inputs.

        Raises:
            Unsized: It cannot be run with so many.
        """
        raise Unsized("it has no method `copy_with_batch`")

    @property
    def kind(self) -> str:
        """Name of its class, a part of the settings' digest."""
        return type(self).__name__

    @property
    def samples(self) -> int:
        """Samples in its inputs; read after :meth:`open`."""
        return 1

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the last answer; None where answers have no length."""
        return None

    @property
    def server_address(self) -> tuple[str, int] | None:
        """Host and port of the server that does the work; None where this process does."""
        return None


class BatchedTarget(Target):
    """A target whose :meth:`run` makes as many inferences as the ``batch`` of its clock."""

    def calibrate(self) -> None:
        """Choose as many inferences as take 100 µs on the device, which resolves about 0.5 µs."""
        if isinstance(self.clock, CudaClock):
            self.clock.batch = inferences_of_100_us(self.clock, self.run)
