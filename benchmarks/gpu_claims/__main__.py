"""Runs the remaining steps, saves the state after each step, and writes the table of claims.

    make gpu PYTHON=python3 STATE=gpu.json                # on a GPU
    make gpu PYTHON=python3 STATE=gpu.json DEVICE=cpu     # only the logic of the steps, on the CPU
    make gpu PYTHON=python3 STATE=gpu.json STEP=tenant    # only one step, even if it was done before

Exit code: 1 if a claim is refuted or a step failed; otherwise 0, even if steps were not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

try:
    from gpu import why_not
    from gpu_claims import state as states
    from gpu_claims.claim import from_json, row
    from gpu_claims.step import LIMIT_SECONDS, ROOT, NotRun, Place, Step, group, steps
except ModuleNotFoundError as error:
    needs = "click msgspec nvidia-ml-py psutil PyYAML"
    raise SystemExit(f"{sys.executable} has no module `{error.name}`; install {needs}") from None

RESULTS = ROOT / "benchmarks/results"
_MARK = "claims: "


def device_name(device: str) -> str:
    """Return the device's name for files, such as ``h100_80gb_hbm3``; NVML's golden files have the same name."""
    if device == "cpu":
        return "cpu"
    from infercanary.probe.gpu.cuda_driver import Device

    found = Device(int(device.partition(":")[2] or 0))
    name = found.name
    found.close()
    return re.sub(r"\W+", "_", name.lower()).removeprefix("nvidia_")


def versions(device: str) -> str:
    """Return one line on the machine's software, without the machine's name."""
    words = [f"Python {platform.python_version()}"]
    try:
        import torch

        words.append(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    except ImportError:
        words.append("no torch")
    if device != "cpu":
        from infercanary.probe.targets.engines.cuda_versions import driver_version

        words.append(f"driver {driver_version() or 'unknown'}")
    return ", ".join([*words, f"{os.cpu_count()} cores, {platform.machine()}"])


def perform(name: str, device: str, scale: float) -> None:
    """Run one step in this process; the last printed line is its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            place = Place(device, scale, Path(folder))
            rows = steps()[name].function(place)
            decided = [each._replace(decided=each.decided and place.on_gpu) for each in rows]
            outcome: dict[str, Any] = {"outcome": "done", "claims": [each.as_json() for each in decided]}
        except NotRun as error:
            outcome = {"outcome": "not run", "why": str(error)}
        except Exception as error:
            traceback.print_exc()
            outcome = {"outcome": "failed", "why": f"{type(error).__name__}: {str(error)[:400]}"}
    print(_MARK + json.dumps(outcome), flush=True)
    sys.stdout.flush()
    os._exit(0)  # exit without waiting, because an engine's threads may not end


def launched(each: Step, device: str, scale: float, limit: float) -> dict[str, Any]:
    """Run a step in a separate process; return its outcome. At the time limit, end all its processes."""
    command = [
        sys.executable,
        "-m",
        "gpu_claims",
        "--perform",
        each.name,
        "--device",
        device,
        "--scale",
        str(scale),
    ]
    with group(command) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return {"outcome": "failed", "why": f"it took more than {limit:g} s"}
    last = next((line for line in reversed(output.splitlines()) if line.startswith(_MARK)), None)
    if last is None:
        return {"outcome": "failed", "why": f"ended with {process.returncode}: {output.strip()[-300:]}"}
    found: dict[str, Any] = json.loads(last.removeprefix(_MARK))
    if found["outcome"] == "failed":
        print(output.rpartition(_MARK)[0], file=sys.stderr)
    return found


def table(device: str, run: dict[str, Any], names: list[str]) -> str:
    """Return the results of one device in Markdown."""
    rows, missing = [], []
    for name in names:
        done = run["steps"].get(name)
        if done is None:
            missing.append(f"| {name} | not reached |")
        elif done["outcome"] != "done":
            missing.append(f"| {name} | {done['outcome']}: {done['why']} |".replace("\n", " "))
        else:
            rows += [row(from_json(each), name) for each in done["claims"]]
    on_cpu = device == "cpu"
    lines = [
        f"# Claims on {device}",
        "",
        f"By `make gpu`. {run['versions']}.",
        "",
        *(
            ["This is no GPU: the steps' logic ran, and no claim about GPUs is decided.", ""]
            if on_cpu
            else []
        ),
        "| claim | bound | measured [95 % interval] | verdict | step | note |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "## Not run",
        "",
        "| step | why |",
        "|---|---|",
        *missing,
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path("gpu.json"),
        help="file with the state of the run (default: %(default)s)",
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for the steps' logic")
    parser.add_argument(
        "--step",
        action="append",
        default=[],
        help="run only this step, even if it was done before; may be repeated",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for repeats and seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, help="folder for the table (default: benchmarks/results on a GPU)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        help="time limit of each step, in seconds (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--perform", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.perform:
        perform(given.perform, given.device, given.scale)
    table_of_steps = steps()
    if given.list:
        print("\n".join(f"{each.name:<32} {each.about}" for each in table_of_steps.values()))
        return 0
    if unknown := [name for name in given.step if name not in table_of_steps]:
        raise SystemExit(f"no step {', '.join(unknown)}; choose from {', '.join(table_of_steps)}")
    why = "" if given.device == "cpu" else why_not()
    device = "none" if why else device_name(given.device)
    state = states.read(given.state)
    run = state["devices"].setdefault(
        device, {"versions": versions("cpu" if why else given.device), "steps": {}}
    )
    for name, each in table_of_steps.items():
        # try again steps that were not run: a missing program may be installed now
        before = run["steps"].get(name, {"outcome": "not run"})["outcome"]
        if name in given.step or (not given.step and before == "not run"):
            begin = time.monotonic()
            if each.needs_gpu and given.device == "cpu":
                outcome: dict[str, Any] = {"outcome": "not run", "why": "needs a GPU"}
            elif why and not each.stand_in:
                outcome = {"outcome": "not run", "why": f"no CUDA device: {why}"}
            else:
                outcome = launched(each, given.device, given.scale, given.limit)
            run["steps"][name] = {**outcome, "seconds": round(time.monotonic() - begin, 1)}
            states.write(given.state, state)
            verdicts = ", ".join(from_json(c).verdict for c in outcome.get("claims", []))
            print(
                f"{name}: {outcome['outcome']}{'; ' + verdicts if verdicts else ''} {outcome.get('why', '')}",
                flush=True,
            )
        else:
            print(
                f"{name}: skipped; earlier: {run['steps'].get(name, {}).get('outcome', 'not run')}",
                flush=True,
            )
    folder = given.results or (RESULTS if device not in ("none", "cpu") else given.state.resolve().parent)
    results = folder / f"gpu-{device}.md"
    results.write_text(table(device, run, list(table_of_steps)))
    claims = [from_json(c) for done in run["steps"].values() for c in done.get("claims", [])]
    counts = {
        verdict: sum(c.verdict == verdict for c in claims) for verdict in ("held", "refuted", "not shown")
    }
    failed = [name for name, done in run["steps"].items() if done["outcome"] == "failed"]
    idle = sum(done["outcome"] == "not run" for done in run["steps"].values())
    print(
        f"{results}: "
        + ", ".join(f"{n} {v}" for v, n in counts.items())
        + f"; {idle} steps not run, {len(failed)} failed"
    )
    return int(bool(failed or counts["refuted"]))


if __name__ == "__main__":
    sys.exit(main())
