"""The GPU tests, a step for each file; and what only a stand-in can show: a lost GPU, MIG."""

from __future__ import annotations

from collections.abc import Callable

from gpu_claims.claim import Measured
from gpu_claims.step import ROOT, NotRun, Place, run_pytest, step


def _row(what: str, passed: int, failed: int, note: str, *, is_decided: bool) -> list[Measured]:
    return [
        Measured(
            what,
            "0 failed",
            failed,
            failed,
            failed,
            most=0.0,
            note=f"{passed} passed; {note}",
            decided=is_decided,
        )
    ]


def _step(path: str) -> Callable[[Place], list[Measured]]:
    def measure(place: Place) -> list[Measured]:
        passed, failed, skipped, note = run_pytest([path], "-m", "gpu")
        if not passed and not failed:
            raise NotRun(f"{skipped} tests skipped: {note}")
        return _row(f"{path} passes", passed, failed, note, is_decided=True)

    return measure


for _path in sorted((ROOT / "tests/gpu").glob("test_*.py")):
    step(f"tests-{_path.stem.removeprefix('test_')}", f"tests/gpu/{_path.name}", needs_gpu=True)(
        _step(f"tests/gpu/{_path.name}")
    )


def _stand_in(name: str, about: str, path: str, chosen: str) -> None:
    def measure(place: Place) -> list[Measured]:
        passed, failed, skipped, note = run_pytest([path], "-k", chosen)
        if failed:
            raise RuntimeError(f"{failed} tests failed: {note}")
        if not passed:
            raise NotRun(f"{skipped} tests skipped: {note}")
        # It shows our code, and nothing of the real library: no claim is decided by it.
        return _row(f"{about} (over a stand-in)", passed, failed, "no real library", is_decided=False)

    step(name, f"{about}; a stand-in in place of the driver", stand_in=True)(measure)


_stand_in(
    "nvml-lost", "NVML is lost and comes back", "tests/integration/probe/test_nvml.py", "lost or recovers"
)
_stand_in("mig-labels", "MIG devices have their labels", "tests/integration/probe/test_nvml.py", "mig")
_stand_in(
    "doctor",
    "the doctor's lines are right",
    "tests/integration/probe/test_doctor.py",
    "gpu or trouble or hanging",
)
_stand_in(
    "tensorrt-stand-in",
    "TensorRT's code paths; never run on the real library",
    "tests/integration/probe/test_cuda_engines.py",
    "tensorrt",
)
