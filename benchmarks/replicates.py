"""Compares the variance between containers with the variance between a probe's own starts in one container.

Each container holds an idle process. In each round, a probe starts once in each container, in random order, so that the
host's drift is no part of the variance between containers. A start's value is the logarithm of its median latency.
The analysis is a two-way analysis of variance, with containers as a random effect and rounds as fixed effects. The
limits of the share between containers are from the F distribution (Searle, Casella, McCulloch: Variance Components).

A probe that starts itself again could stand for new containers if the upper limit were below 30 % (decision 36).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import f

SHARE_GOAL = 0.30
COLD = 8
"""First runs of a start that do not count."""
Starts = np.ndarray[tuple[int, int], np.dtype[np.float64]]
PROBE = """
canaries:
  canary:
    target: {target}
    options: {options}
interval_seconds: 0.1
duty_cap: 1.0
listen: unix:///tmp/probe.sock
journal: /tmp/journal.jsonl
"""
OPTIONS = {
    "torch": {"model": "model:build", "inputs": [{"shape": [1, 3, 224, 224]}], "device": "cpu"},
    "onnx": {"model": "/model/model.onnx", "inputs": {"x": {"shape": [32, 1024]}}},
}


def write_model(path: Path) -> None:
    """Write an ONNX model: eight layers of 1024 units."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(8):
        weights.append(
            numpy_helper.from_array(rng.normal(0, 0.03, (1024, 1024)).astype(np.float32), f"w{layer}")
        )
        nodes.append(helper.make_node("MatMul", [f"h{layer}" if layer else "x", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], ["y" if layer == 7 else f"h{layer + 1}"]))
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 1024]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "layers", sides[:1], sides[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def start(container: str, runs: int) -> float:
    """Start a probe in the container, end it after some runs, and return the logarithm of its median latency."""
    script = f"""
        rm -f /tmp/journal.jsonl*; infercanary probe --config /model/probe.yaml >/tmp/log 2>&1 & probe=$!
        until [ "$(grep -c '"run":' /tmp/journal.jsonl 2>/dev/null)" -ge {runs + COLD} ] 2>/dev/null; do
            sleep 0.5; kill -0 $probe || {{ cat /tmp/log; exit 1; }}
        done
        kill $probe; wait $probe; cat /tmp/journal.jsonl"""
    records = [json.loads(line) for line in docker("exec", container, "sh", "-c", script).splitlines()]
    medians = [statistics.median(record["run"]["latencies"]) for record in records if "run" in record]
    return float(np.log(statistics.median(medians[COLD : COLD + runs])))


def analyse(values: Starts) -> str:
    """Return a description of the variance components of log latencies (containers by rounds)."""
    containers, rounds = values.shape
    means, ranks = values.mean(1, keepdims=True), values.mean(0, keepdims=True)
    between = rounds * means.var(ddof=1)
    freedom = (containers - 1) * (rounds - 1)
    within = float(((values - means - ranks + values.mean()) ** 2).sum() / freedom)

    def share(quantile: float) -> float:
        ratio = max(0.0, (between / within / f.ppf(quantile, containers - 1, freedom) - 1) / rounds)
        return float(ratio / (1 + ratio))

    upper = share(0.05)
    return (
        f"SD within a container {within**0.5:.2%}, share between containers {share(0.5):.0%} [{share(0.95):.0%}, "
        f"{upper:.0%}] (90 % interval; goal: below {SHARE_GOAL:.0%})"
        f"\n  rank of a start, against the mean: {', '.join(f'{rank:+.2%}' for rank in ranks[0] - values.mean())}"
        f"\n  containers: {', '.join(f'{mean:+.2%}' for mean in means[:, 0] - values.mean())}"
    )


def measure(engine: str, image: str, packages: Path, counts: Sequence[int]) -> Starts:
    """Start probes in containers, and return their log latencies.

    Args:
        engine: Target of the canary.
        image: Image with the probe.
        packages: Folder of Python packages with onnxruntime, for the image.
        counts: Number of containers, of rounds, and of counted runs of each start.
    """
    containers, rounds, runs = counts
    values = np.zeros((containers, rounds))
    names = [f"replicates-{n}" for n in range(containers)]
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        write_model(Path(folder) / "model.onnx")
        (Path(folder) / "probe.yaml").write_text(
            PROBE.format(target=engine, options=json.dumps(OPTIONS[engine]))
        )
        options = f"--cpus 1 --tmpfs /tmp -v {folder}:/model:ro -v {packages.resolve()}:/packages:ro"
        options += " -e OMP_NUM_THREADS=1" + (" -e PYTHONPATH=/packages" if engine == "onnx" else "")
        try:
            for name in names:
                docker(
                    "run", "-d", "--name", name, *options.split(), "--entrypoint", "sleep", image, "infinity"
                )
            for round_ in range(rounds):
                for n in random.sample(range(containers), containers):
                    values[n, round_] = start(names[n], runs)
                    print(f"# {engine} {round_} {n}: {np.exp(values[n, round_]) * 1e3:.2f} ms", flush=True)
        finally:
            subprocess.run(["docker", "rm", "--force", *names], check=False, capture_output=True)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", default="infercanary-example:dev", help="image with the probe")
    parser.add_argument(
        "--packages", type=Path, required=True, help="folder of Python packages with onnxruntime"
    )
    parser.add_argument(
        "--counts", type=int, nargs=3, default=(12, 4, 24), metavar=("CONTAINERS", "ROUNDS", "RUNS")
    )
    parser.add_argument("--engines", nargs="*", default=list(OPTIONS))
    settings = parser.parse_args()
    for engine in settings.engines:
        values = measure(engine, settings.image, settings.packages, settings.counts)
        print(f"{engine}: {analyse(values)}", flush=True)


if __name__ == "__main__":
    main()
