"""What was exchanged between two starts of a real container, each in its own words: weights on a volume, the canary's
settings, a quota, a thread variable. The image is the same in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from canaries import Begin, begun_in
from harness import EXAMPLE, PROJECT, run

from infercanary.exporter.judging.findings import judge_canary
from infercanary.judge.drift import Drift
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, Start, kept
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Result
from infercanary.judge.verdict import Judge
from infercanary.pages.sentence import listed, sentence

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.quiet,
    # torch warns about TorchScript, which is a part of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

NAME = f"{PROJECT}-cause"
RUNS = 24
SHORT = LIVE.but(
    block_runs=1, blocks=9, first_seconds=1.0, drift_confidence=0.99
)  # fmt: skip
"""A first day of seconds, and an answer after half a minute: what a drift is named by is the same."""


class Service:
    """One container after another, of one name: what a service is whose files and options somebody edits."""

    def __init__(self, start: Begin, folder: Path, image: str) -> None:
        self._start, self._folder, self._image = start, folder, image
        self._starts: list[Start] = []
        self.weights = folder / "weights"
        self.weights.mkdir()
        self.set()

    def set(self, **options: Any) -> None:
        """Write the canary's settings."""
        options = {"model": "/weights/model.pt", "inputs": [{"shape": [8, 256]}], **options}
        (self._folder / "probe.yaml").write_text(
            yaml.safe_dump(
                {
                    "canaries": {"net": {"target": "torch", "options": options}},
                    "interval_seconds": 0.4, "duty_cap": 0.6,
                }
            )
        )  # fmt: skip

    def exchange(self, seed: int, layers: int) -> None:
        """Put other weights into the same file of the volume."""
        torch.manual_seed(seed)
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(layers))).eval()
        torch.jit.save(torch.jit.script(model), str(self.weights / "model.pt"))
        (self.weights / "model.pt").chmod(0o644)

    def ran(self, *options: str, runs: int = RUNS) -> Start:
        """Start the container with these options, and take its first runs."""
        run("sh", "-c", f"docker rm --force {NAME} >/dev/null 2>&1 || true")
        at = time.time()
        canary = self._start("--volume", f"{self.weights}:/weights:ro", *options)
        report, done = canary.ran(runs, at, seconds=60)
        generation = Generation(
            service="net", container="net", boot_id=report.boot_id, started_at=at, image=EXAMPLE,
            image_id=self._image, environment=report.environment, outputs=canary.report().outputs,
        )  # fmt: skip
        self._starts.append(Start.of(generation, [kept(each) for each in done]))
        return self._starts[-1]

    def judged(self, starts: Sequence[Start] = ()) -> tuple[Result, str]:
        found = Judge().verdict(starts or self._starts, [], "net")
        words = sentence(found)
        print(words)
        return found, words

    def drifted(self) -> Drift:
        finding = judge_canary("net", None, identified(self._starts), [], SHORT)
        drift = finding.drifts["net"]
        print(drift, *([round(s.median or 0.0, 4) for s in start.samples] for start in self._starts))
        return drift


@pytest.fixture(scope="module")
def image_id(image: str) -> str:
    """All tests are of one image, also where its tag is moved meanwhile."""
    return run("docker", "inspect", "--format", "{{.Id}}", image).strip()


@pytest.fixture
def service(image_id: str, tmp_path: Path) -> Iterator[Service]:
    with begun_in(tmp_path, image_id) as start:
        made = Service(start, tmp_path, image_id)
        made.exchange(seed=1, layers=4)
        yield made


def test_weights_exchanged_on_a_volume(service: Service) -> None:
    before = service.ran()
    service.exchange(seed=2, layers=40)
    after = service.ran()
    assert before.model.startswith("file-sha256:") and before.settings == after.settings != ""
    found, words = service.judged()
    assert (found.changed, found.state) == ("model", "regressed"), words
    assert " with the new model: model; " in words
    assert f"model {before.model} → {after.model}" in words
    assert "output changed (relative error " in words


@pytest.mark.campaign
def test_settings_edited(service: Service) -> None:
    before = service.ran()
    service.set(inputs=[{"shape": [64, 256]}])
    after = service.ran()
    assert before.model == after.model != ""
    found, words = service.judged()
    assert found.state == "no_baseline"
    assert words.startswith("no baseline yet: the canary's settings changed (20")
    assert words.endswith(" UTC), and runs before are not comparable")


@pytest.mark.campaign
def test_a_quota_halved(service: Service) -> None:
    # Each repeat takes about a period of a quota, which is so small that a busy machine has it to spare.
    service.set(inputs=[{"shape": [8192, 256]}])
    before = service.ran("--cpus", "0.5", runs=12)
    after = service.ran("--cpus", "0.25", runs=12)
    found, words = service.judged()
    assert found.state == "no_baseline" and found.upgraded_at is None, words
    drift = service.drifted()
    assert drift.shift is not None and drift.shift > 0.3
    assert listed(drift.changes).startswith("CPU quota 0.5 → 0.25")
    found, words = service.judged([before, other_image(after)])
    assert found.changed == "image" and "CPU quota 0.5 → 0.25" in words


@pytest.mark.campaign
def test_a_thread_variable_and_limits_changed(service: Service) -> None:
    before = service.ran("--cpus", "2", "--memory", "2g")
    after = service.ran("--cpus", "1", "--memory", "1g", "--env", "OMP_NUM_THREADS=2")
    found, words = service.judged()
    assert found.state == "no_baseline" and found.upgraded_at is None, words
    _, words = service.judged([before, other_image(after)])
    named = "intra-op threads 1 → 2, CPU quota 2 → 1, memory limit 2 GiB → 1 GiB, env_OMP_NUM_THREADS 1 → 2"
    assert named in words, "where an upgrade changed them too, they are named"


def other_image(start: Start) -> Start:
    """The same runs, as of another image."""
    generation = msgspec.structs.replace(start.generation, image_id="sha256:another")
    return replace(start, generation=generation)
