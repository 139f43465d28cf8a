"""What callers of the probe's port cost its tenant: latency under three attacks, with a probe and without.

A tenant computes in pure Python on one CPU, so that the port's thread competes for the GIL, too. Its attacker has
another CPU. In the arm without a probe the attacker meets a listener of its own, on its CPU. Arms take turns.

held      1,000 connections of one address that send nothing, opened again when they are closed
header    24 connections, each with header lines of 64 KiB
requests  4,000 requests a second

Exits with 1 where the p99 of the tenant rises by more than 5 %, or its memory by more than 10 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

RATIO_GOAL, MEMORY_GOAL = 1.05, 10 << 20
ATTACKS = ("held", "header", "requests")
GET = b"GET /report HTTP/1.1\r\nHost: x\r\n\r\n"
HEADER = b"GET /report HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"y" * 65_000) for n in range(8))


def tenant(has_probe: bool) -> None:
    """Print an address; then for each number of seconds on standard input, latencies of units of work and memory."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    address = ""
    if has_probe:
        from infercanary.probe import Probe
        from probe_cost import Idle

        probe = Probe({"idle": Idle(threads=0)}, listen="127.0.0.1:0")
        probe.start()
        while not (address := probe.address):
            time.sleep(0.01)
    print(address.rpartition(":")[2], flush=True)
    for line in sys.stdin:
        end, latencies = time.perf_counter() + float(line), []
        while (begin := time.perf_counter()) < end:
            sum(n * n for n in range(10_000))
            latencies.append(time.perf_counter() - begin)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(json.dumps([latencies, pages * os.sysconf("SC_PAGESIZE")]), flush=True)


def attack(kind: str, port: int) -> None:
    """Attack the port until this process is ended; port 0 stands for a listener in a child."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if not port:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        port = listener.getsockname()[1]
        if os.fork() == 0:
            parent = os.getppid()
            listener.settimeout(1.0)
            while os.getppid() == parent:
                with suppress(OSError):
                    listener.accept()[0].close()
    waiting = selectors.DefaultSelector()
    most = {"held": 1000, "header": 24, "requests": 200}[kind]
    begin, sent = time.monotonic(), 0
    while True:
        while len(waiting.get_map()) < most:
            if kind == "requests" and sent > 4000 * (time.monotonic() - begin):
                break
            sent += 1
            with suppress(OSError):
                caller = socket.create_connection(
                    ("127.0.0.1", port), timeout=1, source_address=("127.0.0.2", 0)
                )
                caller.setblocking(False)
                with suppress(OSError):
                    caller.send({"held": b"", "header": HEADER, "requests": GET}[kind])
                waiting.register(caller, selectors.EVENT_READ)
        for key, _ in waiting.select(0.001):
            caller = key.fileobj  # type: ignore[assignment]
            with suppress(OSError):
                if caller.recv(1 << 16):
                    continue
            waiting.unregister(caller)
            caller.close()


@contextmanager
def attacked(kind: str, port: int) -> Iterator[None]:
    with subprocess.Popen([sys.executable, __file__, "--attack", kind, "--port", str(port)]) as process:
        time.sleep(1.0)
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)


@contextmanager
def started(role: str) -> Iterator[Any]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__, "--tenant", role], **pipes) as process:
        yield process
        process.kill()


def measure(process: Any, seconds: float) -> tuple[list[float], int]:
    print(seconds, file=process.stdin, flush=True)
    latencies, resident = json.loads(process.stdout.readline())
    return latencies, resident


def main() -> int:
    """Print for each attack the tenant's p50 and p99 with a probe over those without, and the growth of memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of each attack and arm")
    parser.add_argument("--turns", type=int, default=6, help="turns of each arm")
    parser.add_argument("--tenant", choices=("probe", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tenant:
        tenant(args.tenant == "probe")
        return 0
    if args.attack:
        attack(args.attack, args.port)
    good = True
    with started("probe") as probed, started("plain") as plain:
        ports = {process: int(process.stdout.readline().strip() or 0) for process in (probed, plain)}
        for process in (probed, plain):
            measure(process, min(15.0, args.seconds))  # a first run and its controls take memory for good
        for kind in ATTACKS:
            latencies: dict[Any, list[float]] = {probed: [], plain: []}
            most = before = measure(probed, 0.5)[1]
            for turn in range(args.turns):
                for process in (probed, plain) if turn % 2 else (plain, probed):
                    with attacked(kind, ports[process]):
                        found, resident = measure(process, args.seconds / args.turns)
                    latencies[process] += found
                    most = max(most, resident if process is probed else 0)
            cuts = {process: statistics.quantiles(found, n=100) for process, found in latencies.items()}
            p50, p99 = (cuts[probed][at] / cuts[plain][at] for at in (49, 98))
            good &= p99 <= RATIO_GOAL and most - before <= MEMORY_GOAL
            print(f"{kind:9} p50 ratio {p50:.3f}, p99 ratio {p99:.3f} (goal {RATIO_GOAL}), "
                  f"memory {(most - before) / (1 << 20):+.1f} MiB", flush=True)  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
