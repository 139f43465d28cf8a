"""What a run takes beside its time, by probes in processes of their own and in a server's, with real torch models."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted
from watching import MODULES, Seen, fetch, until

from infercanary.contract.measures import HOST_MEMORY, THROUGHPUT
from infercanary.contract.report import Run

pytestmark = pytest.mark.takes(60)

torch = pytest.importorskip("torch")

MEMORY, RATE = "infercanary_run_memory_peak_bytes", "infercanary_run_samples_per_second"


def measured(folder: Path, **environment: str) -> tuple[list[Run], Seen]:
    """The runs of a probe with the model ``holding``, and what it shows."""
    import socket

    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "probe.yaml"
    config.write_text(
        f"listen: {address}\ncontrols: false\ninterval_seconds: 0.2\nduty_cap: 1.0\ncanaries:\n  c:\n"
        "    target: torch\n    options: {model: 'holding:model', inputs: [{shape: [4, 256]}]}\n"
    )
    command = [sys.executable, "-m", "infercanary", "probe", "--config", str(config)]
    with (folder / "log").open("w+") as log:
        env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        process = subprocess.Popen(command, cwd=MODULES, stdout=log, stderr=log, env=env)
        try:

            def seen() -> Any:
                log.seek(0)
                assert process.poll() is None, log.read()
                try:
                    now = fetch(f"http://{address}")
                except OSError:
                    return None
                return now if now.runs("c", "ok") >= 5 else None

            found: Seen = until(seen, "it does not run", 90)
        finally:
            process.kill()
            process.wait()
    return [run for run in found.report.runs if run.outcome == "ok"], found


def memory(runs: list[Run]) -> float:
    return statistics.median(run.measures[HOST_MEMORY] for run in runs)


def test_thirty_percent_more_memory_is_reported_as_that(tmp_path: Path) -> None:
    runs, seen = measured(tmp_path / "before")
    before = memory(runs)
    assert before > 50e6, "torch alone takes that"
    assert seen.value(MEMORY, "c", "host") == runs[-1].measures[HOST_MEMORY]
    assert seen.value(MEMORY, "c", "device") is None, "nothing is invented on a CPU"
    values = [run.measures[HOST_MEMORY] for run in runs]
    assert max(values) < 1.03 * min(values)
    more = str(int(0.3 * before))
    # Another start of the same; one that keeps more; one that gives it back after each inference.
    variants: Mapping[str, tuple[dict[str, str], float]] = {
        "again": ({}, 1.0),
        "held": ({"HELD": more}, 1.3),
        "taken": ({"TAKES": more}, 1.3),
    }
    for name, (environment, ratio) in variants.items():
        found = memory(measured(tmp_path / name, **environment)[0]) / before
        assert found == pytest.approx(ratio, abs=0.03), name


def test_throughput_is_of_all_samples(tmp_path: Path) -> None:
    runs, seen = measured(tmp_path / "c")
    for run in runs:
        assert run.measures[THROUGHPUT] == pytest.approx(4 * len(run.latencies) / sum(run.latencies))
    assert seen.value(RATE, "c") == runs[-1].measures[THROUGHPUT]


def test_in_a_servers_process_its_peak_stays_its_own(started: Any) -> None:
    """Some servers restart a worker by ``ru_maxrss``."""
    taken = bytearray(b"x") * (200 << 20)
    del taken
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    probe = started({"a": Scripted()})
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") >= 3 and s)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >= peak
    for run in seen.report.runs:
        assert 10e6 < run.measures[HOST_MEMORY] < (peak << 10) - (100 << 20), "resident, not the peak"


def test_a_run_that_fails_has_none(started: Any) -> None:
    target = Scripted()
    probe = started({"a": target})
    until(lambda: fetch(probe.address).value(RATE, "a") is not None)
    target.script = {"run": "raise"}
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "raised") and s)
    assert seen.value(RATE, "a") is None and seen.value(MEMORY, "a", "host") is None
    assert seen.report.runs[-1].measures == {}


def test_a_servers_memory_is_not_known(started: Any, server: Any) -> None:
    from infercanary.probe.targets import make

    probe = started({"a": make("http", {"url": server.url, "timeout_seconds": 5})})
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("a", "ok") and s)
    assert seen.report.runs[-1].measures.keys() == {THROUGHPUT}
