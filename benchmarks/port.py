"""Measures the cost of hostile callers of the probe's port: the tenant's latency with and without a probe.

A tenant computes in pure Python on one CPU, so the port's thread also competes for the GIL. The attacker has another
CPU. In the arm without a probe, the attacker connects to a listener on the attacker's CPU. Arms take turns. There are
three attacks:

- ``held``: 1,000 connections of one address that send nothing, reopened after each close;
- ``header``: 24 connections, each with header lines of 64 KiB;
- ``requests``: 4,000 requests a second.

Exits with 1 if the tenant's p99 rises by more than 5 %, its memory by more than 10 MiB, or if a poll from another
address takes more than 5 s.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import urlopen

import psutil

RATIO_GOAL, MEMORY_GOAL, POLL_GOAL = 1.05, 10 << 20, 5.0
GET = b"GET /report HTTP/1.1\r\nHost: x\r\n\r\n"
HEADER = b"GET /report HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"y" * 65_000) for n in range(8))
ATTACKS = {"held": (1000, b""), "header": (24, HEADER), "requests": (200, GET)}
"""Number of concurrent connections, and the data that each sends."""
TURNS = 6


def tenant(has_probe: str) -> None:
    """Print the probe's port, or 0. For each number of seconds on standard input, work, and print the latencies."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    address = ""
    if has_probe:
        from infercanary.probe import Probe
        from probe_cost import Idle

        probe = Probe({"idle": Idle(threads=0)}, listen="127.0.0.1:0")
        probe.start()
        while not (address := probe.address):
            time.sleep(0.01)
    print(address.rpartition(":")[2] or 0, flush=True)
    for line in sys.stdin:
        end, latencies = time.perf_counter() + float(line), []
        while (begin := time.perf_counter()) < end:
            sum(n * n for n in range(10_000))
            latencies.append(time.perf_counter() - begin)
        print(json.dumps(latencies), flush=True)


def listen(port: str) -> None:
    """Listen on a port, and close each connection at once: the attacker's target in the arm without a probe."""
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    while True:
        listener.accept()[0].close()


def attack(kind: str, port: int) -> None:
    """Attack the port until this process is ended."""
    waiting = selectors.DefaultSelector()
    most, sent_bytes = ATTACKS[kind]
    begin, sent = time.monotonic(), 0
    while True:
        while len(waiting.get_map()) < most and (
            kind != "requests" or sent < 4000 * (time.monotonic() - begin)
        ):
            sent += 1
            with suppress(OSError):
                caller = socket.create_connection(
                    ("127.0.0.1", port), timeout=1, source_address=("127.0.0.2", 0)
                )
                caller.setblocking(False)
                with suppress(OSError):
                    caller.send(sent_bytes)
                waiting.register(caller, selectors.EVENT_READ, caller)
        for key, _ in waiting.select(0.001):
            with suppress(OSError):
                if key.data.recv(1 << 16):
                    continue
            waiting.unregister(key.data)
            key.data.close()


def poll(port: str) -> float:
    """Return the seconds that a report takes; infinite if the request fails."""
    begin = time.monotonic()
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/report", timeout=POLL_GOAL) as answer:
        answer.read()
        return time.monotonic() - begin
    return math.inf


@contextmanager
def role(*arguments: str, cpu: int) -> Any:
    """Run this file in another process, on the first CPU (0) or the last (-1)."""
    cpus = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(
        [sys.executable, __file__, "--role", *arguments], stdin=-1, stdout=-1, text=True
    ) as process:
        os.sched_setaffinity(process.pid, {cpus[cpu]})
        try:
            yield process
        finally:
            process.kill()


def main() -> int:
    """Print for each attack the tenant's p99 with a probe divided by the p99 without, and the growth of its memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="seconds of each attack and arm")
    parser.add_argument("--role", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        name, *given = args.role
        if name == "attack":
            attack(given[0], int(given[1]))
        (tenant if name == "tenant" else listen)(given[0])
        return 0
    good = True
    peer = str(40_000 + os.getpid() % 20_000)
    with (
        role("tenant", "probe", cpu=0) as probed,
        role("tenant", "", cpu=0) as plain,
        role("listen", peer, cpu=-1),
    ):
        tenants = {probed: probed.stdout.readline().strip(), plain: peer}
        plain.stdout.readline()

        def measure(process: Any, seconds: float) -> list[float]:
            print(seconds, file=process.stdin, flush=True)
            return list(json.loads(process.stdout.readline()))

        memory = psutil.Process(probed.pid).memory_info
        measure(probed, min(15.0, args.seconds))  # the first run and its controls take memory permanently
        for kind in ATTACKS:
            latencies: dict[Any, list[float]] = {probed: [], plain: []}
            before = most = memory().rss
            slowest = 0.0
            for _ in range(TURNS):
                for process, port in tenants.items():
                    with role("attack", kind, port, cpu=-1):
                        time.sleep(1.0)
                        latencies[process] += measure(process, args.seconds / TURNS)
                        if process is probed:
                            slowest = max(slowest, poll(port))
                    most = max(most, memory().rss)
            p99, without = (statistics.quantiles(found, n=100)[98] for found in latencies.values())
            good &= p99 / without <= RATIO_GOAL and most - before <= MEMORY_GOAL and slowest <= POLL_GOAL
            print(
                f"{kind:9} p99 {1e3 * p99:.2f} and {1e3 * without:.2f} ms, ratio {p99 / without:.3f} "
                f"(goal {RATIO_GOAL}), memory {(most - before) / (1 << 20):+.1f} MiB, "
                f"slowest poll {slowest:.1f} s",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
