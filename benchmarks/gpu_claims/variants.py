"""Claim on `infercanary ab --b env.NAME=VALUE`: one model under two settings, in this interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from gpu_claims.claim import Measured
from gpu_claims.step import ROOT, NotRun, Place, need, step, torch_module

_STARTS, _RUNS, _BUDGET_SECONDS, _START_SECONDS = 6, 12, 420, 120
_MODEL = """
import torch
torch.backends.cuda.matmul.allow_tf32 = True
WIDTH = {width}
def factory():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).eval()
"""
_TF32_OFF = "env.NVIDIA_TF32_OVERRIDE=0"  # only cuBLAS reads this variable


@step("ab-variable", "`ab --b env.NAME=VALUE`: one model, and a variable that turns TF32 off for B alone")
def variable(place: Place) -> list[Measured]:
    """Run `ab` with both sides as processes of this interpreter, without Docker."""
    torch_module(place)
    need("numpy", "scipy", "docker", "rich")
    width = 4096 if place.on_gpu else 128
    (place.folder / "many_layers.py").write_text(_MODEL.format(width=width))
    folders = ":".join(map(str, (place.folder, ROOT / "probe", ROOT / "exporter")))
    options = {
        "model": "many_layers:factory",
        "inputs": [{"shape": [width, width]}],
        "device": "cuda" if place.on_gpu else "cpu",
    }
    config = place.folder / "probe.yaml"
    config.write_text(json.dumps({"canaries": {"model": {"target": "torch", "options": options}}}))
    both = [f"python={sys.executable}", f"config={config}", f"env.PYTHONPATH={folders}"]
    if place.on_gpu:
        both.append(f"gpus=device={place.device.partition(':')[2] or 0}")
    command = [
        *(sys.executable, "-m", "infercanary", "ab", "--json", "--b", _TF32_OFF),
        *(word for setting in both for word in ("--both", setting)),
        *("--restarts", str(place.times(_STARTS, least=3)), "--runs", str(_RUNS)),
        *("--budget", str(_BUDGET_SECONDS), "--start-timeout", str(_START_SECONDS)),
    ]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"ab ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    answer = json.loads(done.stdout)
    if answer.get("low") is None:
        raise NotRun(f"too few pairs of starts to compare in {answer['seconds']:.0f} s ({answer['ended']})")
    return [
        Measured(
            "TF32 off for B alone makes B slower",
            "≥ 1.1 times",
            1 + answer["shift"],
            1 + answer["low"],
            1 + answer["high"],
            least=1.1,
            note=f"{len(answer['pairs'])} pairs of starts, ended: {answer['ended']}",
        )
    ]
