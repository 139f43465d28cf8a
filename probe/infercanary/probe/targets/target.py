"""The base class of a target. Three methods are required; all other methods have a default."""

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
    """A number that a run reports in addition to its timing, such as a time that the server measured."""

    metric: Metric
    """Gauge whose first label is ``canary``, declared in the target's module."""
    value: float
    labels: tuple[str, ...] = ()
    """Values of the labels after ``canary``."""


class Need(NamedTuple):
    """Memory that a target will soon take."""

    place: str
    """Key in the canary's settings: ``inputs[0]``, ``model``."""
    size: int
    """Bytes."""
    what: str
    """Description: ``[4, 3, 224, 224] float32``."""
    fix: str
    """Advice on how to need less memory: ``give a smaller shape``."""
    where: Literal["host", "device"] = "host"
    """``device`` means the memory of :attr:`Target.device`."""


class DeviceMemory(NamedTuple):
    """Device memory that the engine has allocated, in bytes."""

    in_use: int
    peak: int
    """Largest use since :meth:`Target.reset_memory_peak`."""


class Target(ABC):
    """A model, server or function that the probe runs and times. Calls never overlap, but may come from different
    threads.
    """

    clock: Clock = HostClock()
    """Clock that times a repeat; read after :meth:`open`."""
    device: str = ""
    """``cpu`` or ``cuda[:N]``: the controls run on this device. Empty if another process does the work."""
    cuda_missing: str = ""
    """Reason why requested CUDA is missing, one of ``canary_metrics.CUDA_MISSING_REASONS``; read after :meth:`open`."""
    reasons: Sequence[Reason] = ()
    """Reasons that the target itself can give for a failure. Their counters start at 0."""
    is_sweepable: bool = False
    """True if :meth:`copy_with_batch` is supported (docs/profiles.md)."""
    profiler: Literal["none", "same_model", "second_model"] = "none"
    """``none`` if :meth:`profile` is not supported; ``second_model`` if profiling loads the model a second time."""
    ask_for_memory: Callable[[Sequence[Need]], None] = staticmethod(lambda needs: None)
    """Function that the target calls before it takes much memory. The call raises :class:`Failure` (`out_of_memory`) if
    too little is left for all needs together. Set by the probe before :meth:`open`.
    """
    device_memory_left: Callable[[], int | None] = staticmethod(lambda: None)
    """Function that returns the bytes of device memory that the engine may take; None for no limit, as in a server's
    process. Set by the probe before :meth:`open`.
    """

    @abstractmethod
    def open(self) -> None:
        """Load the model, or prepare the other needs of :meth:`run`.

        Raises:
            UsageError: The user made a mistake; the command ``probe`` ends with this error.
            NoCuda: CUDA is missing; the probe continues and tries again.
            Failure: Any other known reason; the probe tries again.
        """

    @abstractmethod
    def run(self, phase: Phase) -> Any:
        """Make one inference, with its parts inside ``with phase("compute"): …``. :meth:`values` reads the result."""

    @abstractmethod
    def values(self, result: Any) -> Sequence[float]:
        """Convert a result to numbers, which the output check compares between runs.

        Returns:
            At most 1,024 numbers, always from the same positions. One number is NaN if the result is not finite.
        """

    def environment(self) -> Mapping[str, str]:
        """Return versions and settings of the engine that may change latency. Called after :meth:`open`."""
        return {}

    def close(self) -> None:
        """Release the resources that :meth:`open` took."""

    def identity(self) -> str:
        """Return an identifier of the model. Called after warm-up; a new identifier in the same image is an upgrade.

        Returns:
            Kind and value: a digest (``file-sha256:…``) or the server's own description. The same model has the same
            identifier on every host. Empty if unknown.
        """
        return ""

    def settings(self) -> Mapping[str, Any] | None:
        """Return the options that change the measured work. Runs with different settings are not compared.

        Returns:
            Setting → plain values and structs, without model, times, addresses, headers and keys. Empty and zero
            values count as missing, so that a new option does not change the settings of existing canaries. None if
            unknown.
        """
        return None

    def memory(self) -> DeviceMemory | None:
        """Return the device memory of the engine; None if unknown."""
        return None

    def reset_memory_peak(self) -> None:
        """Reset :attr:`DeviceMemory.peak`."""

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile repeats with the engine's own profiler (docs/profiles.md).

        Args:
            repeats: At least 1; none of the repeats is timed.
            trace: File for the profiler's trace, which Perfetto can open.

        Raises:
            Unprofiled: Profiling is not possible now.
        """
        raise Unprofiled("this target has no profiler (only torch, onnx and tensorrt have)")

    def calibrate(self) -> None:
        """Choose the number of inferences in a repeat. Called once, after the first run."""

    def is_busy(self) -> bool:
        """True if other work of this process occupies the device. A run then waits or is skipped."""
        return False

    def prepare(self) -> None:
        """Prepare the repeats of a run, for example connect to a server. Preparation is not timed."""

    def check(self, result: Any) -> None:
        """Raise :class:`Failure` if a result of :meth:`run` is malformed. Called after each repeat; the check is not
        timed.
        """

    def readings(self) -> Sequence[Reading]:
        """Return at most 64 numbers of the last run in addition to its timing."""
        return ()

    def copy_with_batch(self, batch: int) -> Target:
        """Make an open target of the same model for a sweep. Each copy runs in its own thread, in parallel with other
        copies.

        Args:
            batch: Samples in the inputs of the copy.

        Raises:
            Unsized: The target cannot run this number of samples.
        """
        raise Unsized("the target has no method `copy_with_batch`")

    @property
    def kind(self) -> str:
        """Name of the target's class, a part of the settings' digest."""
        return type(self).__name__

    @property
    def samples(self) -> int:
        """Number of samples in the target's inputs. Read after :meth:`open`."""
        return 1

    @property
    def output_tokens(self) -> int | None:
        """Number of tokens in the last answer; None if answers do not consist of tokens."""
        return None

    @property
    def server_address(self) -> tuple[str, int] | None:
        """Host and port of the server that does the work; None if this process does the work."""
        return None


class BatchedTarget(Target):
    """A target whose :meth:`run` makes ``clock.batch`` inferences; one inference if the clock has no ``batch``."""

    def calibrate(self) -> None:
        """Choose the number of inferences that take 100 µs on the device, because events have a resolution of about
        0.5 µs.
        """
        if isinstance(self.clock, CudaClock):
            self.clock.batch = inferences_of_100_us(self.clock, self.run)
