"""Measures the probe's own cost: CPU at the default schedule, and memory over 100,000 runs.

The probe runs like a user's ``infercanary probe``, with every sampler, the controls and a journal. Its canary takes no
CPU, so the measured cost is the probe's. Its process has as many threads as a server. The benchmark polls the probe
like an exporter. Exits with 1 if a goal is missed.

- ``cpu``: default settings; goal: at most 0.5 % of a core for samplers, loop and report.
- ``memory``: runs without pauses, without controls and with few threads; goal: resident memory in the last fifth of
  the runs is at most 1 MiB above that in the second fifth (the buffer of runs is then full). Memory is read twice a
  second, and the median is compared, because a report takes some memory for a short time.
- ``asking``: number and time of readings of the remaining memory; goal: at least one while the canary opens, at most
  one before each round, and none during a run. Readings of the memory watcher are counted separately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from infercanary.probe import HostClock, Phase, Probe, Target
from infercanary.probe.memory import Bound, HostMemory
from infercanary.probe.targets.target import Need

CPU_GOAL = 0.005
"""Share of a core."""

MEMORY_GOAL = 1 << 20
"""Bytes."""

_POLL_SECONDS = 5.0


class Idle(Target):
    """A target that waits a millisecond, in a process with ``threads`` idle threads."""

    def __init__(self, seconds: float = 0.001, threads: int = 64) -> None:
        self.clock = HostClock()
        self._seconds = seconds
        self._threads = threads
        self._end = threading.Event()

    def open(self) -> None:
        self.ask_for_memory([Need("threads", 1 << 20, "idle threads", "give fewer")])
        for _ in range(self._threads):
            threading.Thread(target=self._end.wait, daemon=True).start()

    def run(self, phase: Phase) -> Any:
        with phase("compute"):
            time.sleep(self._seconds)

    def values(self, result: Any) -> Sequence[float]:
        return [1.0]

    def close(self) -> None:
        self._end.set()


class Reports:
    """Reads reports with a cursor, like an exporter; keeps each metric's last value, and the number of runs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cursor = ""
        self.values: dict[str, float] = {}
        self.runs = 0

    def poll(self) -> None:
        with urllib.request.urlopen(f"{self._url}?since={self._cursor}", timeout=10) as response:
            report = json.load(response)
        self._cursor = report["cursor"]
        points = {f["name"]: f["points"] for f in report["families"] if f["points"]}
        self.values = {
            name: found[0][1] for name, found in points.items() if not isinstance(found[0][1], list)
        }
        self.runs = int(sum(value for _, value in points.get("infercanary_runs_total", [])))


@contextmanager
def probe(port: int, *, without_pauses: bool) -> Iterator[tuple[psutil.Process, Reports]]:
    """Start a probe in a separate process, and wait for the first run.

    With ``without_pauses``, runs follow each other at once.
    """
    with tempfile.TemporaryDirectory() as folder:
        journal = f"{folder}/journal.jsonl"
        if without_pauses:
            command = [sys.executable, __file__, "without-pauses", str(port), journal]
        else:
            config = Path(folder) / "probe.yaml"
            canaries = {"idle": {"target": "probe_cost:Idle"}}
            settings = {"listen": f"127.0.0.1:{port}", "journal": journal, "canaries": canaries}
            config.write_text(json.dumps(settings))
            command = [sys.executable, "-m", "infercanary", "probe", "--config", str(config)]
            command += ["--log-level", "warning"]
        child = subprocess.Popen(command, cwd=Path(__file__).parent)
        try:
            reports = Reports(f"http://127.0.0.1:{port}/report")
            for _ in range(600):
                time.sleep(0.1)
                try:
                    reports.poll()
                except OSError:
                    if child.poll() is not None:
                        raise SystemExit("the probe ended") from None
                    continue
                if reports.runs:
                    break
            else:
                raise SystemExit("the probe did not run its canary within a minute")
            yield psutil.Process(child.pid), reports
        finally:
            child.terminate()
            child.wait(20)


def unpaced(canary: Idle, port: int, journal: str | None = None) -> Probe:
    """Make a probe without pauses (settings do not allow this) and without controls (they would take too long)."""
    made = Probe({"idle": canary}, listen=f"127.0.0.1:{port}", duty_cap=1.0, controls=False, journal=journal)
    made.settings = msgspec.structs.replace(made.settings, interval_seconds=1e-4)
    return made


def run_without_pauses(port: int, journal: str) -> None:
    """Run until the process is ended."""
    served = unpaced(Idle(0.0, threads=1), port, journal)
    served.serve()
    served.open()
    served.run()


def cpu(seconds: float, port: int) -> bool:
    """Measure CPU time, and return True if the goal is met."""
    with probe(port, without_pauses=False) as (process, reports):
        reports.poll()
        begin, used, before = time.monotonic(), _cpu(process), dict(reports.values)
        while time.monotonic() - begin < seconds:
            time.sleep(_POLL_SECONDS)
            reports.poll()
        elapsed, total = time.monotonic() - begin, _cpu(process) - used
        threads = process.num_threads()

    def grown(name: str) -> float:
        return reports.values[name] - before[name]

    own = grown("infercanary_probe_cpu_seconds_total")
    print(f"default schedule, {elapsed:.0f} s, {grown('infercanary_runs_total'):.0f} runs, {threads} threads")
    print(f"samplers, loop, report   {own / elapsed:7.3%} of a core (goal: at most {CPU_GOAL:.1%})")
    print(
        f"whole process            {total / elapsed:7.3%} of a core, with the controls and the canary's thread"
    )
    print(f"duty                     {grown('infercanary_busy_seconds_total') / elapsed:7.3%} (cap 1 %)")
    return own / elapsed <= CPU_GOAL


def memory(runs: int, port: int) -> bool:
    """Measure memory, and return True if the goal is met."""
    readings: list[tuple[int, int]] = []  # runs, bytes
    with probe(port, without_pauses=True) as (process, reports):
        begin = time.monotonic()
        while reports.runs < runs:
            time.sleep(0.5)
            reports.poll()
            readings.append((reports.runs, process.memory_info().rss))
        elapsed = time.monotonic() - begin
    second, last = _fifth(readings, 1), _fifth(readings, 4)
    growth = statistics.median(last) - statistics.median(second)
    print(
        f"{readings[-1][0]} runs in {elapsed:.0f} s: {growth / 2**20:+.2f} MiB from the second fifth to the last "
        f"(medians of {len(second)} and {len(last)} readings; goal: at most {MEMORY_GOAL / 2**20:+.0f} MiB); "
        f"largest reading {(max(last) - statistics.median(last)) / 2**20:.2f} MiB above the last median"
    )
    return growth <= MEMORY_GOAL


class Reads:
    """Counts the readings of the remaining memory, by reader and time."""

    def __init__(self, probe: Probe) -> None:
        self.counts = {"while it opened": 0, "between runs": 0, "in a run": 0, "by the watcher": 0}
        self.seconds: list[float] = []
        self.is_open = False
        self._probe = probe
        self._bounds = HostMemory.bounds

    def read(self, memory: HostMemory) -> list[Bound]:
        """Replaces :meth:`infercanary.probe.memory.HostMemory.bounds`."""
        when = "in a run" if self._probe._memory.run_began is not None else "between runs"
        if threading.current_thread().name == "infercanary-memory":
            when = "by the watcher"
        elif not self.is_open:
            when = "while it opened"
        self.counts[when] += 1
        begin = time.perf_counter()
        found = self._bounds(memory)
        self.seconds.append(time.perf_counter() - begin)
        return found


def asking(seconds: float, port: int) -> bool:
    """Count readings of the remaining memory, and return True if the goal is met."""
    probe = unpaced(Idle(), port)
    reads = Reads(probe)

    def read(memory: HostMemory) -> list[Bound]:
        return reads.read(memory)

    HostMemory.bounds = read  # type: ignore[method-assign, assignment]
    probe.own_process([])
    probe.serve()
    probe.open()
    reads.is_open = True
    work = threading.Thread(target=probe.run)
    work.start()
    time.sleep(seconds)
    probe.stop()
    work.join()
    reports = Reports(f"http://127.0.0.1:{port}/report")
    reports.poll()
    probe.close()
    HostMemory.bounds = reads._bounds  # type: ignore[method-assign]
    counts = ", ".join(f"{count} {when}" for when, count in reads.counts.items())
    print(
        f"{reports.runs} runs in {seconds:.0f} s; readings of the remaining memory: {counts} (goal: at most one before "
        "each run, none in a run)"
    )
    print(f"one read takes {1e3 * statistics.median(reads.seconds):.2f} ms (median of {len(reads.seconds)})")
    once = reads.counts["between runs"] <= reports.runs + 1
    return once and not reads.counts["in a run"] and reads.counts["while it opened"] > 0


def _fifth(readings: Sequence[tuple[int, int]], nth: int) -> list[int]:
    """Return the sizes during the ``nth`` fifth of the runs, counted from 0."""
    fifth = readings[-1][0] / 5
    return [size for done, size in readings if nth * fifth <= done <= (nth + 1) * fifth]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    if sys.argv[1:2] == ["without-pauses"]:
        run_without_pauses(int(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="seconds of the default schedule (default: %(default)s)"
    )
    parser.add_argument(
        "--runs", type=int, default=100_000, help="number of runs without pauses (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=19798, help="the probe's loopback port (default: %(default)s)"
    )
    args = parser.parse_args()
    good = cpu(args.seconds, args.port)
    good &= memory(args.runs, args.port)
    good &= asking(min(60.0, args.seconds), args.port)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
