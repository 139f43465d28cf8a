"""Compares the phase `compute` of the ONNX Runtime target with ONNX Runtime's own profiler, for the same runs.

ResNet-18 is exported here and runs on the CPU. Both times are of the same run, so noise of the machine affects both.
The profiler's event is ``model_run``, in whole microseconds. Exits with 1 if the median ratio is further from 1 than
the goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from infercanary.probe.targets.onnx import OnnxTarget

GOAL = 0.03
"""Largest accepted distance of the median ratio from 1."""

_WARM_UPS = 20


class Profiled(OnnxTarget):
    """Target with ONNX Runtime's profiler, which is on from the first run."""

    def __init__(self, folder: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._folder = folder

    def session_options(self) -> Any:
        """Return the usual options, with the profiler on."""
        options = super().session_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(self._folder / "profile")
        return options

    def model_runs(self) -> list[float]:
        """Return the seconds of each run, in order, and end the profiler."""
        events = json.loads(Path(self.session.end_profiling()).read_text())
        return [event["dur"] / 1e6 for event in events if event.get("name") == "model_run"]


class Ratios(NamedTuple):
    """Times of each run by both clocks, in seconds."""

    compute: list[float]
    model_run: list[float]

    @property
    def median(self) -> float:
        return statistics.median(
            ours / theirs for ours, theirs in zip(self.compute, self.model_run, strict=True)
        )


def resnet18(folder: Path) -> Path:
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "resnet18"))
    from model import SHAPE, build

    path = folder / "resnet18.onnx"
    with warnings.catch_warnings():  # the old exporter needs no other packages, but warns
        warnings.simplefilter("ignore")
        torch.onnx.export(build(), (torch.zeros(SHAPE),), str(path), dynamo=False)
    return path


def compare(folder: Path, model: Path, repeats: int) -> Ratios:
    """Run the model ``repeats`` times after warm-up; return both times of each run."""
    target = Profiled(folder, str(model))
    target.open()
    try:
        timings = [target.clock.measure(target.run)[0] for _ in range(_WARM_UPS + repeats)]
        return Ratios([t.phases["compute"] for t in timings[_WARM_UPS:]], target.model_runs()[_WARM_UPS:])
    finally:
        target.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=300, help="number of runs (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = compare(folder, resnet18(folder), arguments.repeats)
    ratios = sorted(ours / theirs for ours, theirs in zip(*found, strict=True))
    print(f"ONNX Runtime {onnxruntime.__version__}, ResNet-18, {len(ratios)} runs, medians")
    print(f"compute, by the probe      {statistics.median(found.compute) * 1e3:8.3f} ms")
    print(f"model_run, by the profiler {statistics.median(found.model_run) * 1e3:8.3f} ms")
    tenth = len(ratios) // 10
    print(
        f"ratio of the same run      {found.median:8.4f}    "
        f"p10 {ratios[tenth]:.4f}, p90 {ratios[-1 - tenth]:.4f} (goal: within {GOAL:.0%} of 1)"
    )
    sys.exit(abs(found.median - 1) > GOAL)


if __name__ == "__main__":
    main()
