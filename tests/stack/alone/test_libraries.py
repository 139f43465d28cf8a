"""An image whose libraries do not fit: its container stays up, and says so in the loader's words.

The image is the example's; what is wrong with it is done to its container as it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from harness import EXAMPLE, OWN_LABEL, PROJECT, compose, eventually, get, remove, run

from infercanary.contract.report import Report, decode

NAME = f"{PROJECT}-libraries"
OPTIONS = {"model": "torch:relu", "inputs": [{"shape": [2]}]}
SETTINGS = {
    "canaries": {
        "on-gpu": {"target": "torch", "options": {**OPTIONS, "device": "cuda"}},
        "on-cpu": {"target": "torch", "options": OPTIONS},
    }
}
PROBE = "infercanary probe --config /app/probe.yaml"
LIBRARY = "/usr/local/lib/python3.11/dist-packages/torch/lib/libgomp.so.1"


@pytest.fixture(scope="session")
def image() -> str:
    compose("build", "--quiet", "classify", seconds=600)
    return EXAMPLE


Begin = Callable[..., Report]
"""From options of `docker run` and a command to the first report in which both canaries fail."""


@pytest.fixture
def begin(image: str, tmp_path: Path) -> Iterator[Begin]:
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump(SETTINGS))
    (tmp_path / "libgomp.so.1").write_text("a file, and no library\n")
    for file in tmp_path.iterdir():
        file.chmod(0o644)

    def start(*options: str, command: str = PROBE) -> Report:
        run(
            *("docker", "run", "--detach", "--name", NAME, "--label", OWN_LABEL, "--no-healthcheck"),
            *("--publish", "127.0.0.1::9798", "--volume", f"{tmp_path / 'probe.yaml'}:/app/probe.yaml:ro"),
            *("--volume", f"{tmp_path / 'libgomp.so.1'}:/opt/old/libgomp.so.1:ro"),
            *options, image, "sh", "-c", command,
        )  # fmt: skip
        address = run("docker", "port", NAME, "9798/tcp").split()[0]

        def failing() -> Report | None:
            report = decode(get(f"http://{address}/report"))
            return report if len(points(report, "infercanary_canary_failure_info")) == 2 else None

        report = eventually("both fail", 60, failing)
        assert report is not None
        assert run("docker", "inspect", "--format", "{{.State.Running}}", NAME).strip() == "true"
        return report

    remove(NAME)
    try:
        yield start
    finally:
        print(run("sh", "-c", f"docker logs {NAME} 2>&1 || true"))
        remove(NAME)


def points(report: Report, metric: str) -> set[tuple[str, ...]]:
    """Labels of a metric's points that are not 0."""
    return {tuple(p.labels) for f in report.families if f.name == metric for p in f.points if p.value}


def check(report: Report, said: str) -> None:
    assert points(report, "infercanary_cuda_missing") == {("on-gpu", "no_libraries")}
    assert points(report, "infercanary_canary_state") == {("on-gpu", "failing"), ("on-cpu", "failing")}
    assert points(report, "infercanary_canary_failure_info") == {
        (canary, "no_libraries", f"cannot be opened: torch cannot be imported (OSError: {said}")
        for canary in ("on-gpu", "on-cpu")
    }
    assert all(run.detail.endswith(said) for run in report.runs)


def test_a_library_of_torch_that_is_gone(begin: Begin) -> None:
    report = begin("--user", "0", command=f"rm {LIBRARY}; exec {PROBE}")
    check(
        report,
        "libgomp.so.1: cannot open shared object file: No such file or directory); install the libraries that it was "
        "built for",
    )


def test_a_wrong_library_path(begin: Begin) -> None:
    report = begin("--env", "LD_LIBRARY_PATH=/opt/old", command=f"exec {PROBE}")
    check(
        report,
        "/opt/old/libgomp.so.1: file too short); that file is no library, or of another kind of machine: replace it, "
        "or take /opt/old out of LD_LIBRARY_PATH",
    )
