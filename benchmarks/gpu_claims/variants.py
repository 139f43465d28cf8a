"""What `infercanary ab --env-b` compares, one model under two settings: by its experiment, in this interpreter."""

from __future__ import annotations

import sys
import uuid
from functools import partial

from gpu_claims.claim import Measured
from gpu_claims.step import ROOT, NotRun, Place, need, step, torch_module

_STARTS, _RUNS, _BUDGET_SECONDS, _START_SECONDS = 6, 12, 420.0, 120.0
_MODEL = """
import torch
torch.backends.cuda.matmul.allow_tf32 = True
WIDTH = {width}
def factory():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).eval()
"""
_TF32_OFF = {"NVIDIA_TF32_OVERRIDE": "0"}  # cuBLAS reads it; on a CPU nothing does


@step("ab-env-b", "`ab --env-b`: one model, and an environment variable that turns TF32 off for B alone")
def env_b(place: Place) -> list[Measured]:
    """Without Docker: both sides are processes of this interpreter, started in turn as `ab` does with images."""
    torch_module(place)
    need("numpy", "scipy", "docker")
    from infercanary.ab import answer, experiment, process
    from infercanary.ab.conditions import Conditions, settings_of
    from infercanary.ab.interruption import Interruption
    from infercanary.ab.progress import Progress
    from infercanary.ab.reaper import Reaper
    from infercanary.ab.turn import Needed

    width = 4096 if place.on_gpu else 128
    (place.folder / "many_layers.py").write_text(_MODEL.format(width=width))
    folders = [place.folder, ROOT / "probe", ROOT / "exporter"]
    found = {"PYTHONPATH": ":".join(map(str, folders))}
    settings = settings_of("many_layers:factory", [f"{width}x{width}"], place.device)
    starts = place.times(_STARTS, least=3)
    with Reaper(uuid.uuid4().hex[:12]) as reaper:
        a, b = (
            process.Host(
                sys.executable, settings, "many_layers", Conditions(environment={**found, **own}), reaper
            )
            for own in ({}, _TF32_OFF)
        )
        plan = experiment.Plan(starts, _BUDGET_SECONDS, Needed(_RUNS, "model", _START_SECONDS))
        judged = partial(answer.decisions, most=starts)
        result = experiment.run(a, b, plan, judged, Interruption(), Progress())
        reaper.nothing_left()
    looks = judged(result.pairs)["model"].looks if result.pairs else []
    if not looks:
        raise NotRun(f"{len(result.pairs)} pairs of starts in {result.seconds:.0f} s are too few to compare")
    shift = looks[-1].seen
    return [
        Measured(
            "TF32 off for B alone makes B slower",
            "≥ 1.1 times",
            1 + shift.shift,
            1 + shift.low,
            1 + shift.high,
            least=1.1,
            note=f"{len(result.pairs)} pairs of starts, ended: {result.ended}",
            decided=place.on_gpu,
        )
    ]
