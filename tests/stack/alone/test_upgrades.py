"""Upgrades of a small canary in real containers: under 5 ms, a run a second, judged anew after each run.

How soon they are called is printed; what is asserted is that they are called right, and in the time that
docs/verdicts.md promises for so many runs.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from canaries import SETTINGS, Begin, Canary
from harness import OWN_LABEL, PROJECT, run

from infercanary.contract.report import Run
from infercanary.judge.model import Generation, Start, kept
from infercanary.judge.verdict import Judge
from infercanary.pages.sentence import sentence

pytestmark = [pytest.mark.quiet, pytest.mark.campaign]

PACE = {"interval_seconds": 1.0, "duty_cap": 0.3}
WORK = 700_000
BASELINE_RUNS = 40
EARLIER_RUNS = 14


class Case(NamedTuple):
    """What the new image does, and what is right to say of it."""

    work: float
    replicas: int
    earlier: int
    """Starts of each replica before the one that is upgraded."""
    runs: int
    """Of the new image: until then it is called, if it is to be."""
    is_called: bool
    contended: bool = False


CASES = {
    "identical": Case(1.0, 1, 0, 60, False),
    "identical_with_history": Case(1.0, 2, 4, 60, False),
    "twice": Case(2.0, 1, 0, 24, True),
    "by_30_percent": Case(1.3, 1, 0, 72, True),
    "by_10_percent": Case(1.1, 2, 4, 120, True),
    "identical_beside_a_neighbour": Case(1.0, 1, 0, 60, False, contended=True),
}


class Replica:
    """One container of the service: its starts so far, and the one that runs."""

    def __init__(self, start: Begin, number: int) -> None:
        self.name = f"{PROJECT}-replica{number}"
        self.over: list[Start] = []
        self._start = start
        self._canary: Canary | None = None
        self._image, self._runs = "", list[Run]()

    def begin(self, image: str, work: int) -> None:
        """End the start that runs, and begin another."""
        if self._canary is not None:
            self.over.append(self.now())
            run("docker", "rm", "--force", self.name)
        self._image, self._runs = image, []
        self._canary = self._start("--env", f"SPIN={work}", name=self.name)

    def now(self) -> Start:
        """The start that runs, with its runs so far."""
        assert self._canary is not None
        report = self._canary.report()
        known = {run.sequence for run in self._runs}
        self._runs += [run for run in report.runs if run.sequence not in known]
        generation = Generation(
            service="spin", container=self.name, boot_id=report.boot_id, image_id=self._image,
            started_at=report.started_at, environment=report.environment,
        )  # fmt: skip
        return Start.of(generation, [kept(run) for run in self._runs])


def until(runs: int, replicas: list[Replica], look: Callable[[], bool] = lambda: False) -> None:
    """Wait until each replica's start has so many runs that count, or ``look`` says that it is enough."""
    deadline = time.monotonic() + 30 + 3 * runs
    seen = -1
    while (fewest := min(len(replica.now().samples) for replica in replicas)) < runs:
        assert time.monotonic() < deadline, f"{fewest} of {runs} runs"
        if fewest > seen and look():
            return
        seen = fewest
        time.sleep(0.3)


@contextmanager
def neighbour(image: str) -> Iterator[None]:
    """A container that loops on both CPUs for some seconds, stands still, and so on."""
    name = f"{PROJECT}-neighbour"
    loop = "while :; do :; done"
    run(
        *("docker", "run", "--detach", "--name", name, "--label", OWN_LABEL, "--no-healthcheck"),
        *("--network", "none", image, "sh", "-c", f"({loop}) & {loop}"),
    )
    over = threading.Event()

    def come_and_go() -> None:
        for command in itertools.cycle(("pause", "unpause")):
            if over.wait(8):
                return
            run("docker", command, name)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("trial", range(1, 11))
@pytest.mark.parametrize("name", CASES)
def test_it_is_called_right(start: Begin, image: str, tmp_path: Path, name: str, trial: int) -> None:
    case = CASES[name]
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump(SETTINGS | PACE))
    replicas = [Replica(start, number) for number in range(case.replicas)]
    for left in reversed(range(case.earlier + 1)):
        for replica in replicas:
            replica.begin("old", WORK)
        until(EARLIER_RUNS if left else BASELINE_RUNS, replicas)
    since = time.time()
    for replica in replicas:
        replica.begin("new", round(WORK * case.work))
    said: list[str] = []

    def look() -> bool:
        starts = [start for replica in replicas for start in (*replica.over, replica.now())]
        found = Judge().verdict(sorted(starts, key=lambda start: start.generation.started_at), [], "spin")
        if not said or found.state != said[-1]:
            print(f"VERDICT {name} after {found.runs} runs, {time.time() - since:.0f} s: {sentence(found)}")
            said.append(found.state)
        if found.state in ("regressed", "improved"):
            right = ("image", "both") if case.is_called else ("host",) * case.contended
            assert found.state == "regressed" or case.contended, sentence(found)
            assert found.causes.cause in right, sentence(found)
        return case.is_called and found.state == "regressed"

    if case.contended:
        with neighbour(image):
            until(case.runs, replicas, look)
    else:
        until(case.runs, replicas, look)
    look()
    assert not case.is_called or said[-1] == "regressed", said
