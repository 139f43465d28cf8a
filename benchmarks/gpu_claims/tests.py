"""Steps that run the GPU tests, one for each file, and tests with a stand-in for the driver (lost GPU, MIG)."""

from __future__ import annotations

from gpu_claims.claim import Measured
from gpu_claims.step import ROOT, NotRun, Place, run_pytest, step


def _register(name: str, about: str, claim: str, *options: str, is_stand_in: bool = False) -> None:
    def measure(place: Place) -> list[Measured]:
        passed, failed, skipped, note = run_pytest(options)
        if is_stand_in and failed:
            raise RuntimeError(f"{failed} tests failed: {note}")
        if not passed and not failed:
            raise NotRun(f"{skipped} tests skipped: {note}")
        note = f"{passed} passed; {'no real library' if is_stand_in else note}"
        # A stand-in tests InferCanary's code and not the real library, so it decides no claim.
        return [
            Measured(claim, "0 failed", failed, failed, failed, most=0.0, note=note, decided=not is_stand_in)
        ]

    step(name, about, needs_gpu=not is_stand_in, stand_in=is_stand_in)(measure)


for _path in sorted((ROOT / "tests/gpu").glob("test_*.py")):
    _file = f"tests/gpu/{_path.name}"
    _register(f"tests-{_path.stem.removeprefix('test_')}", _file, f"{_file} passes", _file, "-m", "gpu")


def _stand_in(name: str, about: str, path: str, chosen: str) -> None:
    words = f"{about}; with a stand-in for the driver"
    _register(name, words, f"{about} (over a stand-in)", path, "-k", chosen, is_stand_in=True)


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
    "TensorRT's code paths; not tested with the real library",
    "tests/integration/probe/test_cuda_engines.py",
    "tensorrt",
)
