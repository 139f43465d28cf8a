"""What the probe costs its host: the example server's latency with the probe over without it, in one run.

Servers of the same code, with the probe (default settings) and without, take the same sequential load in turns
(A B B A …). Each turn is a fresh process, because a restart is one replicate: two starts of the same server differ.
Machines are noisy, so only the ratios count. Their goals are in goals.py; duty ≤ 1 %.

``--null`` runs both without the probe: it shows how much two equal servers differ here.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet18"
sys.path.insert(0, str(EXAMPLE))

from load import load  # noqa: E402 - the example is no package

from goals import TENANT  # noqa: E402


class Turns:
    """One side's turns: the latencies (s) of each, and the duty that its probe reports."""

    def __init__(self, probe: bool, rate: float) -> None:
        self._probe = probe
        self._rate = rate
        self.latencies: list[list[float]] = []
        self.busy = self.elapsed = 0.0

    def take(self, settle: float, seconds: float) -> None:
        """Start a server, load it for ``settle`` seconds that do not count and ``seconds`` that do, end it."""
        port, probe_port = _free_port(), _free_port()
        environment = {
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "PROBE": "on" if self._probe else "off",
            "PROBE_LISTEN": f"127.0.0.1:{probe_port}",
        }
        child = subprocess.Popen(
            [sys.executable, "server.py"],
            cwd=EXAMPLE,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/healthz")
            # The canary warms up once, and learns from its first run what its turn costs a busy server: neither is the
            # steady state, which is measured.
            asyncio.run(load(f"http://127.0.0.1:{port}/predict", settle, rate=self._rate))
            report = f"http://127.0.0.1:{probe_port}/report"
            before = _values(report)["infercanary_busy_seconds_total"] if self._probe else 0.0
            self.latencies.append(
                asyncio.run(load(f"http://127.0.0.1:{port}/predict", seconds, rate=self._rate))
            )
            if self._probe:
                self.busy += _values(report)["infercanary_busy_seconds_total"] - before
                self.elapsed += seconds
        finally:
            child.terminate()
            child.wait(20)

    def quantile(self, percent: int) -> float:
        """Over all turns."""
        return _quantile(list(itertools.chain.from_iterable(self.latencies)), percent)


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the example server did not start")


def _values(url: str) -> dict[str, float]:
    """The report's values that have no labels."""
    with urllib.request.urlopen(url, timeout=10) as response:
        families = json.load(response)["families"]
    return {f["name"]: f["points"][0][1] for f in families if f["points"] and not f["labels"]}


def _free_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        return int(candidate.getsockname()[1])


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _interval(a: list[list[float]], b: list[list[float]], percent: int) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of two quantiles; a turn is resampled whole (requests are correlated)."""
    rng = random.Random(1)
    ratios = []
    for _ in range(400):
        x = list(itertools.chain.from_iterable(rng.choices(a, k=len(a))))
        y = list(itertools.chain.from_iterable(rng.choices(b, k=len(b))))
        ratios.append(_quantile(x, percent) / _quantile(y, percent))
    return _quantile(ratios, 3), _quantile(ratios, 97)


def main() -> None:
    """Print both sides' p50, p90 and p99, their ratios with intervals, and the probe's measured duty."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=4, help="turns of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="load in a turn (default: %(default)s)")
    parser.add_argument(
        "--settle", type=float, default=30, help="load before it that does not count (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=0, help="requests a second; 0: back to back (default), the hardest"
    )
    parser.add_argument("--null", action="store_true", help="both sides without the probe: the noise floor")
    args = parser.parse_args()
    probed, plain = Turns(not args.null, args.rate), Turns(False, args.rate)
    for i in range(args.turns):
        for side in (probed, plain) if i % 2 == 0 else (plain, probed):
            side.take(args.settle, args.seconds)
        print(f"turn {i + 1} of {args.turns}", file=sys.stderr, flush=True)
    name = "no probe either" if args.null else "with the probe"
    counts = [sum(map(len, side.latencies)) for side in (probed, plain)]
    print(f"{counts[0]} requests {name}, {counts[1]} without")
    for percent in (50, 90, 99):
        a, b = probed.quantile(percent), plain.quantile(percent)
        low, high = _interval(probed.latencies, plain.latencies, percent)
        goal = f" (goal: {TENANT[percent]} at most)" if percent in TENANT else ""
        print(
            f"p{percent}: {a * 1e3:.2f} ms {name}, {b * 1e3:.2f} ms without: ratio {a / b:.4f} "
            f"[{low:.4f}, {high:.4f}]{goal}"
        )
    if not args.null:
        print(f"duty: {probed.busy / probed.elapsed:.3%} of {probed.elapsed:.0f} s (cap 1 %)")


if __name__ == "__main__":
    main()
