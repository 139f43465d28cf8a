"""The protocol of a target, and one protocol for each ability that a target may have besides.

Callers ask for an ability with ``isinstance(target, PreparesRuns)``: a target has it by having its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from infercanary.contract.profile import Profile
from infercanary.contract.report import Metric
from infercanary.probe.targets.failures import Reason
from infercanary.probe.timing import Clock, Phase


class Target(Protocol):
    """One thing to execute and time. Methods are called one at a time, from changing threads."""

    @property
    def clock(self) -> Clock:
        """What times a repeat; read after :meth:`open`."""
        ...

    def open(self) -> None:
        """Load whatever :meth:`run` needs.

        Raises:
            UsageError: The user made a mistake; the command ``probe`` ends with it.
            NoCuda: CUDA is missing; the probe goes on, and tries again.
            Failure: Anything else with a known reason; the probe tries again.
        """
        ...

    def run(self, phase: Phase) -> Any:
        """Make one inference.

        Args:
            phase: Marks the parts of the work: ``with phase("compute"): …``.

        Returns:
            The result, which :meth:`values` reads.
        """
        ...

    def values(self, result: Any) -> Sequence[float]:
        """Read a result as numbers, for the check that the output stays the same.

        Args:
            result: What :meth:`run` returned last.

        Returns:
            At most 1,024 numbers, from the same places each time. One is not finite if anything in the result is not.
        """
        ...

    def environment(self) -> Mapping[str, str]:
        """Report what of the engine may change latency; read after :meth:`open`.

        Returns:
            Component → version or setting.
        """
        ...

    def close(self) -> None:
        """Release what :meth:`open` took."""
        ...


class Reading(NamedTuple):
    """One number of a run that its timing does not hold, such as what a server counted by itself."""

    metric: Metric
    """A gauge whose first label is ``canary``, declared beside the target."""
    value: float
    labels: tuple[str, ...] = ()
    """The values of its other labels."""


@runtime_checkable
class RunsOnDevice(Protocol):
    """A target that knows where it computes: the controls of that device are run beside it."""

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda[:N]``."""
        ...


@runtime_checkable
class MayLackCuda(Protocol):
    """A target that was asked to run on CUDA, and may find none."""

    @property
    def cuda_missing(self) -> str:
        """Why there is no CUDA, one of ``failing.CUDA_MISSING_REASONS``; empty where there is."""
        ...


@runtime_checkable
class ReportsBusy(Protocol):
    """A target that knows whether the host keeps its device busy: a run then waits, or is skipped."""

    def is_busy(self) -> bool:
        """Say whether work of the host's is waiting or running on the device."""
        ...


@runtime_checkable
class Calibrates(Protocol):
    """A target that chooses how many inferences a repeat has."""

    def calibrate(self) -> None:
        """Choose the number; called once after the first run."""
        ...


@runtime_checkable
class PreparesRuns(Protocol):
    """A target with something to do before the repeats of each run, outside of what is timed."""

    def prepare(self) -> None:
        """Get ready for a run, such as by connecting to a server."""
        ...


@runtime_checkable
class ChecksResults(Protocol):
    """A target whose results may come from a server that failed: each of them is checked, not only the last."""

    def check(self, result: Any) -> None:
        """Refuse a result that is not of a known good form; called after each repeat, outside of what is timed.

        Args:
            result: What :meth:`Target.run` returned.

        Raises:
            Failure: It is not.
        """
        ...


@runtime_checkable
class GivesReadings(Protocol):
    """A target that publishes numbers of its own beside the timing."""

    def readings(self) -> Sequence[Reading]:
        """Return the last run's, 64 at most; called after its repeats.

        Returns:
            Readings in the units of their metrics; empty where the run had none.
        """
        ...


@runtime_checkable
class NamesReasons(Protocol):
    """A target that raises :class:`Failure` with reasons of its own, so that they are counted from 0 on."""

    @property
    def reasons(self) -> Sequence[Reason]:
        """Those beside the reasons that any target has."""
        ...


@runtime_checkable
class Resizable(Protocol):
    """A target that can be swept (docs/sweeps.md)."""

    def sized(self, batch: int) -> Target:
        """Make an open target of the same model; it is run beside others, each in a thread of its own, then closed.

        Args:
            batch: How many samples its inputs hold.

        Returns:
            An open target, which the caller closes; this one stays open.

        Raises:
            Unsized: It cannot be run with so many.
        """
        ...


@runtime_checkable
class Profilable(Protocol):
    """A target whose engine has a profiler of its own (docs/profiles.md)."""

    profile_loads: bool
    """Whether the model is loaded once more for that."""

    def profiled(self, repeats: int, trace: Path | None = None) -> Profile:
        """Profile some repeats, apart from those that are timed; in a thread that runs nothing of the target besides.

        Args:
            repeats: How many, 1 or more.
            trace: Where the profiler's trace is written, for Perfetto; None for nowhere.

        Returns:
            Which operators the time went to.

        Raises:
            Unprofiled: It cannot be done now.
        """
        ...


@runtime_checkable
class CountsSamples(Protocol):
    """A target whose own inputs may hold more than one sample."""

    @property
    def samples(self) -> int:
        """The number of samples; read after ``open()``."""
        ...


@runtime_checkable
class CountsOutput(Protocol):
    """A target whose answers have a length: a longer one takes more time, whatever the image."""

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the last answer; None before there is one."""
        ...


@runtime_checkable
class CallsServer(Protocol):
    """A target whose work another process does."""

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the server."""
        ...


@runtime_checkable
class CountsMemory(Protocol):
    """A target whose engine knows how much device memory it has allocated."""

    def memory_in_use(self) -> int | None:
        """Return how many bytes that is now; None where it is not known."""
        ...


class Need(NamedTuple):
    """Memory that a target is about to take."""

    place: str
    """In the canary's settings: ``inputs[0]``, ``model``."""
    size: int
    """Bytes."""
    what: str
    """In words: ``[4, 3, 224, 224] float32``."""
    fix: str
    """What would make it less: ``give a smaller shape``."""
    where: Literal["host", "device"] = "host"
    """The device is the target's: :attr:`RunsOnDevice.device`."""


@runtime_checkable
class AsksForMemory(Protocol):
    """A target that asks before it takes what is known to be large, so that nothing else in the container pays."""

    ask_for_memory: Callable[[Sequence[Need]], None]
    """Set by the probe before :meth:`Target.open`; it raises :class:`Failure` (`out_of_memory`) where too little is
    left for all of them together."""


@runtime_checkable
class BoundsDeviceMemory(Protocol):
    """A target whose engine takes a limit on its device memory, for what is not known beforehand."""

    device_memory_left: Callable[[], int | None]
    """Set by the probe before :meth:`Target.open`: the bytes that may be taken now; None where nothing bounds them, as
    in a server's process, whose engine serves too."""


@runtime_checkable
class TracksPeakMemory(Protocol):
    """A target whose engine counts the device memory that it allocates."""

    def reset_peak_memory(self) -> None:
        """Begin to count anew."""
        ...

    def peak_memory(self) -> int | None:
        """Return the most bytes in use since then; None where that is not known.

        Returns:
            Bytes on the device.
        """
        ...


@runtime_checkable
class IdentifiesModel(Protocol):
    """A target that knows which model it runs: other weights are then an upgrade, also in the same image."""

    def model_identity(self) -> str:
        """Identify the model; called after :meth:`Target.open` and the warm-up, outside of what is timed.

        Returns:
            A digest, or what a server reports, with what it is of before it (``file-sha256:…``); the same wherever the
            same model runs. Empty where that is not known.
        """
        ...


@runtime_checkable
class ListsSettings(Protocol):
    """A target that knows what of its options changes what is measured: runs of other settings are not compared."""

    def measured_settings(self) -> Mapping[str, Any]:
        """List them; read after :meth:`Target.open`.

        Returns:
            Setting → plain values and structs. Not the model, which has an identity of its own; not times, addresses,
            headers and keys. What is empty or zero counts as left out: an option that is added later must be so by
            default, or all runs before it are another canary's.
        """
        ...
