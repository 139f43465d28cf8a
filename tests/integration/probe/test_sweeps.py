"""Sweeps by a probe in a process of its own, of real torch models on the CPU."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted import Scripted
from watching import MODULES, Seen, fetch, until

from infercanary.command.settings import convert
from infercanary.contract.measures import HOST_MEMORY, THROUGHPUT, throughput_of
from infercanary.probe import Sweep, TorchTarget
from infercanary.probe.config import ProbeConfig
from infercanary.probe.targets import make

pytestmark = pytest.mark.takes(120)

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[3] / "docs/profiles.md"


class Started:
    """A probe's process and what it says."""

    def __init__(self, folder: Path, settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        config = folder / "probe.yaml"
        config.write_text(f"listen: {self.address.removeprefix('http://')}\ncontrols: false\n{settings}")
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "probe", "--config", str(config)],
            cwd=MODULES, stdout=self.log, stderr=self.log, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def until(self, condition: Callable[[Seen], Any], seconds: float = 90.0) -> Seen:
        def seen() -> Seen | None:
            assert self.process.poll() is None, self.output()
            try:
                now = fetch(self.address)
            except OSError:
                return None
            return now if condition(now) else None

        found: Seen = until(seen, "it did not happen", seconds)
        return found

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Started]]:
    started: list[Started] = []

    def begin(settings: str) -> Started:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Started(folder, settings))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        each.log.close()


def settings(sweep: str, model: str = "swept:layers", width: int = 1024, cap: float = 1.0) -> str:
    return f"""\
interval_seconds: 0.2
duty_cap: {cap}
canaries:
  c:
    target: torch
    options: {{model: '{model}', inputs: [{{shape: [1, {width}]}}]}}
    sweep: {{{sweep}}}
"""


def point(seen: Seen, batch: int, concurrency: int = 1) -> tuple[float, float]:
    """Latency and rate."""
    labels = "c", str(batch), str(concurrency)
    latency = seen.value("infercanary_sweep_latency_seconds", *labels)
    rate = seen.value("infercanary_sweep_samples_per_second", *labels)
    assert latency is not None and rate is not None, labels
    return latency, rate


def has_swept(seen: Seen) -> bool:
    return seen.value("infercanary_sweep_timestamp_seconds", "c") is not None


def test_throughput_against_latency(start: Callable[[str], Started]) -> None:
    probe = start(settings("batches: [1, 4, 64], concurrency: [1, 2], seconds: 4, every_seconds: 1"))
    before = time.time()
    first = probe.until(has_swept)

    for load in ((1, 1), (4, 1), (64, 1), (1, 2)):
        latency, rate = point(first, *load)
        # A mean is half of the median at least: so the rate has a bound, however busy the machine is.
        assert 0 < rate * latency <= 2.0 * load[0] * load[1] * 1.05

    def grows(seen: Seen) -> bool:
        """Not in each sweep, where others use the same CPUs."""
        slow, fast = point(seen, 1), point(seen, 64)
        return fast[0] > slow[0] and fast[1] > 1.5 * slow[1]

    seen = probe.until(grows, seconds=150)  # more samples take longer, and more of them are done in a second
    assert "infercanary_sweep_peak_memory_bytes" not in {f.name for f in seen.report.families if f.points}, (
        "nothing is invented on a CPU"
    )
    assert before < (seen.value("infercanary_sweep_timestamp_seconds", "c") or 0) <= time.time()
    # Runs went on meanwhile, undisturbed by points that are over.
    assert seen.runs("c", "ok") >= 5
    # What a point gave is with the next run, and with that one alone.
    seen = probe.until(lambda s: s.runs("c", "ok") > seen.runs("c", "ok"))
    for load in ((1, 1), (4, 1), (64, 1), (1, 2)):
        given = [
            run.measures[name] for run in seen.report.runs if (name := throughput_of(*load)) in run.measures
        ]
        assert point(first, *load)[1] in given and len(given) == len(set(given))
    assert len([run for run in seen.report.runs if run.measures.keys() > {THROUGHPUT, HOST_MEMORY}]) >= 4
    assert not any("beside_canary" in run.tags for run in seen.report.runs)
    probe.process.send_signal(signal.SIGTERM)
    assert probe.process.wait(20) == 0, probe.output()


def test_a_point_that_hangs_holds_up_neither_runs_nor_the_end(start: Callable[[str], Started]) -> None:
    probe = start(settings("batches: [1, 4], seconds: 3, every_seconds: 1", "swept:hangs", 8))
    seen = probe.until(lambda _: "sweep of batch 4: timed_out" in probe.output())
    ran = seen.runs("c", "ok")
    seen = probe.until(lambda s: s.runs("c", "ok") >= ran + 3)
    beside = [run for run in seen.report.runs if "beside_canary" in run.tags]
    assert len(beside) >= 3, "what runs beside it is tagged"
    assert point(seen, 1)[1] > 0
    begin = time.monotonic()
    probe.process.send_signal(signal.SIGTERM)
    assert probe.process.wait(20) == 0, probe.output()
    assert time.monotonic() - begin < 9.0
    assert "canary c: its sweep still hangs; the thread ends with the process" in probe.output()


@pytest.mark.campaign  # a minute of waiting for sweeps; tests/unit has the budget's arithmetic
def test_the_cap_is_held_with_sweeps_and_runs_go_on(start: Callable[[str], Started]) -> None:
    """A cap of 20 %, of which the sweep asks for all: it gets half, and comes every 4 s, not every 2 s."""
    probe = start(settings("batches: [1, 16], seconds: 0.4, every_seconds: 2", cap=0.2))

    begin = time.monotonic()
    first = probe.until(has_swept)
    swept_at = first.value("infercanary_sweep_timestamp_seconds", "c") or 0.0
    assert time.monotonic() - begin >= 4.0, "what it takes is saved first"
    assert first.value("infercanary_sweep_interval_seconds", "c") == pytest.approx(4.0)
    # A run that others disturb may take longer than was planned: that is paid back, as what a sweep takes too long is.
    # And runs go on, which verdicts need; how fast is the machine's.
    seen = probe.until(
        lambda s: (
            (s.value("infercanary_sweep_timestamp_seconds", "c") or 0.0) > swept_at
            and s.runs("c", "ok") >= 20
            and (s.value("infercanary_busy_seconds_total") or 0.0) <= 0.2 * (time.monotonic() - begin)
        ),
        seconds=150,
    )
    assert seen.value("infercanary_duty_cap_ratio") == 0.2


def test_no_sweep_beside_a_canary_that_opens(started: Any) -> None:
    slow = Scripted(open="hang")
    probe = started(
        {"c": TorchTarget(torch.nn.Linear(8, 8).eval(), torch.ones(1, 8)), "slow": slow},
        sweeps={"c": Sweep(batches=(1,), seconds=1, every_seconds=1)},
        open_timeout_seconds=1,
    )
    # Due every two seconds, and runs have gone on for four.
    seen: Seen = until(lambda: (s := fetch(probe.address)).runs("c", "ok") >= 40 and s, seconds=60)
    assert not has_swept(seen)
    assert all("beside_canary" in run.tags for run in seen.report.runs if run.canary == "c")
    slow.go_on.set()
    until(lambda: has_swept(fetch(probe.address)), seconds=60)
    probe.stop()


def test_once_does_not_sweep(tmp_path: Path) -> None:
    config = tmp_path / "probe.yaml"
    config.write_text(settings("batches: [1, 4], every_seconds: 1", "swept:raises", 8))
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "probe", "--once", "--config", str(config)],
        cwd=MODULES, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sweep" not in done.stdout + done.stderr


def test_in_a_servers_pool_with_the_servers_own_model(started: Any) -> None:
    model = torch.nn.Linear(64, 64).eval()
    with ThreadPoolExecutor(2) as pool:
        probe = started(
            {"c": TorchTarget(model, torch.ones(1, 64))},
            executor=pool,
            sweeps={"c": Sweep(batches=(1, 8), concurrency=(2,), seconds=2.4, every_seconds=1)},
        )
        seen: Seen = until(lambda: has_swept(s := fetch(probe.address)) and s, seconds=60)
        assert all(point(seen, *load)[1] > 0 for load in ((1,), (8,), (1, 2)))
        probe.stop()


def test_the_example_in_the_docs_is_one() -> None:
    """Each block of settings there, as a probe would read it."""
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    assert blocks
    for block in blocks:
        config = convert(yaml.safe_load(block), ProbeConfig, "docs/profiles.md")
        assert any(canary.sweep is not None for canary in config.canaries.values())


def test_requests_to_a_server_at_a_time(started: Any, server: Any) -> None:
    target = make("kserve", {"url": server.url, "model": "double", "timeout_seconds": 5})
    sweep = Sweep(batches=(2,), concurrency=(1, 3), seconds=2.4, every_seconds=1)
    probe = started({"c": target}, sweeps={"c": sweep})
    before = server.connections
    seen: Seen = until(lambda: has_swept(s := fetch(probe.address)) and s, seconds=60)
    probe.stop()
    assert point(seen, 1)[1] > 0 and point(seen, 1, 3)[1] > 0
    no_batches = seen.value("infercanary_sweep_latency_seconds", "c", "2", "1")
    assert no_batches is None, "a request has the size that it has"
    assert server.connections >= before + 4, "each has its own"
    assert seen.runs("c", "ok") >= 1
