"""Load for the example server: sends requests one by one at a given rate, and measures their latencies.

The loop is open: request k is due at k / rate, and its latency is measured from that time. So a stalled server cannot
hide latency (coordinated omission). ``--rate 0`` sends each request after the previous answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import aiohttp

_IMAGE = bytes(range(256)) * (3 * 224 * 224 // 256)


async def load(url: str, seconds: float, rate: float, warm_up: int = 5) -> list[float]:
    """Return the latencies (seconds) of the requests sent within ``seconds``; a failed request raises an error."""
    latencies: list[float] = []
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def one() -> None:
            async with session.post(url, data=_IMAGE) as response:
                await response.read()

        for _ in range(warm_up):
            await one()
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            due = begin + len(latencies) / rate if rate else now
            await asyncio.sleep(max(0.0, due - now))
            await one()
            latencies.append(time.perf_counter() - due)
    return latencies


def main() -> None:
    """Print one JSON object: number of requests, and p50, p90, p99 in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:8000/predict",
        help="address of the requests (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="duration of the load (default: %(default)s)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=0,
        help="requests per second; 0 (default) sends each request after the previous answer",
    )
    args = parser.parse_args()
    try:
        latencies = asyncio.run(load(args.url, args.seconds, args.rate))
    except aiohttp.ClientError as error:
        raise SystemExit(f"{args.url}: {error or type(error).__name__}; check that the server runs") from None
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    print(json.dumps({"requests": len(latencies), "p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}))


if __name__ == "__main__":
    main()
