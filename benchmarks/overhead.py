"""Measures the probe's cost for a server: ratio of the example server's latencies with a probe and without one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet18"
sys.path.insert(0, str(EXAMPLE))

from load import load  # noqa: E402 - the example is no package

from goals import TENANT  # noqa: E402
from gpu_claims.claim import paired_ratio, quantile  # noqa: E402

_BLOCK_SECONDS = 2.0
_END_SECONDS = 0.2
"""Seconds before each block in which a running repeat may end. Requests in this time do not count."""


class Urls(NamedTuple):
    """URLs of a server and of its probe's report."""

    server: str
    report: str


@contextlib.contextmanager
def server(script: Path, **settings: str) -> Iterator[Urls]:
    """Start a server in a separate process, and wait until it answers."""
    port, probe_port = _free_port(), _free_port()
    environment = {
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "PROBE_LISTEN": f"127.0.0.1:{probe_port}",
        **settings,
    }
    child = subprocess.Popen(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        urls = Urls(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{probe_port}/report")
        _wait_for(f"{urls.server}/healthz")
        yield urls
    finally:
        child.terminate()
        child.wait(20)


class Turns:
    """Turns of one side: latencies (seconds) of each turn, and the duty that the probe reports."""

    def __init__(self, probe: bool) -> None:
        self._probe = probe
        self.latencies: list[list[float]] = []
        self.busy = self.elapsed = 0.0

    def take(self, settle: float, seconds: float) -> None:
        """Start a server, put load on it, and end it."""
        with server(EXAMPLE / "server.py", PROBE="on" if self._probe else "off") as urls:
            self._load(urls, settle, seconds)

    async def take_block(self, urls: Urls) -> None:
        """Put load on a running server with a paused probe; the probe resumes at the first counted request."""
        await load(f"{urls.server}/predict", _END_SECONDS, rate=0)
        releasing = (
            asyncio.to_thread(_post, f"{urls.server}/probe/release") if self._probe else asyncio.sleep(0)
        )
        counted = load(f"{urls.server}/predict", _BLOCK_SECONDS, rate=0, warm_up=0)
        latencies, _ = await asyncio.gather(counted, releasing)
        self.latencies.append(latencies)
        if self._probe:
            await asyncio.to_thread(_post, f"{urls.server}/probe/hold")

    def _load(self, urls: Urls, settle: float, seconds: float) -> None:
        """Send requests for ``settle`` seconds that do not count, then for ``seconds`` that count."""
        # Before the steady state, the canary warms up, and its first run also measures the cost of a turn for
        # a busy server.
        asyncio.run(load(f"{urls.server}/predict", settle, rate=0))
        before = _values(urls.report)["infercanary_busy_seconds_total"] if self._probe else 0.0
        self.latencies.append(asyncio.run(load(f"{urls.server}/predict", seconds, rate=0)))
        if self._probe:
            self.busy += _values(urls.report)["infercanary_busy_seconds_total"] - before
            self.elapsed += seconds

    def quantile(self, percent: int) -> float:
        """Return a quantile over all turns."""
        return quantile(list(itertools.chain.from_iterable(self.latencies)), percent)


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the example server did not start")


def _post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20):
        pass


def _values(url: str) -> dict[str, float]:
    """Return the values of the report's metrics that have no labels."""
    with urllib.request.urlopen(url, timeout=10) as response:
        families = json.load(response)["families"]
    return {f["name"]: f["points"][0][1] for f in families if f["points"] and not f["labels"]}


def _free_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        return int(candidate.getsockname()[1])


def _turns(probed: Turns, plain: Turns, turns: int, settle: float, seconds: float) -> None:
    """Run servers with and without the probe in turns."""
    for i in range(turns):
        for side in (probed, plain) if i % 2 == 0 else (plain, probed):
            side.take(settle, seconds)
        print(f"turn {i + 1} of {turns}", file=sys.stderr, flush=True)


def _blocks(probed: Turns, plain: Turns, pairs: int, settle: float) -> None:
    """Run blocks of requests on one server, with a running or a paused probe."""
    script = Path(__file__).with_name("switched_server.py")
    rng = random.Random(7)
    with server(script, PROBE="off", PROBE_INTERVAL=str(_BLOCK_SECONDS)) as urls:
        asyncio.run(load(f"{urls.server}/predict", settle, rate=0))
        _post(f"{urls.server}/probe/hold")
        began, before = time.perf_counter(), _values(urls.report)["infercanary_busy_seconds_total"]
        for i in range(pairs):
            for side in rng.sample((probed, plain), 2):
                asyncio.run(side.take_block(urls))
            if (i + 1) % 10 == 0:
                print(f"pair {i + 1} of {pairs}", file=sys.stderr, flush=True)
        probed.busy = _values(urls.report)["infercanary_busy_seconds_total"] - before
        probed.elapsed = time.perf_counter() - began


def _paired(a: list[list[float]], b: list[list[float]], percent: int) -> tuple[float, float, float]:
    """Return the ratio of a quantile between ``a`` and ``b``, and its 95 % interval.

    The bootstrap resamples whole pairs, because requests in a block are correlated. For percent 50, the ratio is the
    median of the pairs' ratios, which cancels slow drift. A block has too few requests for a 99th percentile, so other
    quantiles are computed over all blocks.
    """
    pairs = [*zip(a, b, strict=True)]
    if percent != 50:
        return paired_ratio(pairs, partial(quantile, percent=percent))
    return paired_ratio([([median(x) / median(y)], [1.0]) for x, y in pairs], median)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=4, help="turns of each side (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=120, help="seconds of load in a turn (default: %(default)s)"
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=30,
        help="seconds before each turn that do not count (default: %(default)s)",
    )
    parser.add_argument("--null", action="store_true", help="both sides without the probe: the noise floor")
    parser.add_argument(
        "--blocks",
        type=int,
        metavar="PAIRS",
        help="instead of turns, measure pairs of 2 s blocks in one server",
    )
    args = parser.parse_args()
    probed, plain = Turns(not args.null), Turns(False)
    if args.blocks:
        _blocks(probed, plain, args.blocks, args.settle)
    else:
        _turns(probed, plain, args.turns, args.settle, args.seconds)
    name = "without a probe (first side)" if args.null else "with the probe"
    counts = [sum(map(len, side.latencies)) for side in (probed, plain)]
    print(f"{counts[0]} requests {name}, {counts[1]} without")
    for percent in (50, 90, 99):
        a, b = probed.quantile(percent), plain.quantile(percent)
        ratio, low, high = _paired(probed.latencies, plain.latencies, percent)
        goal = f" (goal: {TENANT[percent]} at most)" if percent in TENANT else ""
        print(
            f"p{percent}: {a * 1e3:.2f} ms {name}, {b * 1e3:.2f} ms without: ratio {ratio:.4f} "
            f"[{low:.4f}, {high:.4f}]{goal}"
        )
    if not args.null:
        print(f"duty: {probed.busy / probed.elapsed:.3%} of {probed.elapsed:.0f} s (cap 1 %)")


if __name__ == "__main__":
    main()
