"""A real server of the Open Inference Protocol in a container, and the probe as its sidecar in another.

The server is MLServer from PyPI, installed beside the tests' own packages and mounted; a file says what its model does
wrong. It must run on the image's Python, so the packages are those of the same version.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import PROJECT, eventually, get, run
from real_servers import environment

from infercanary.contract.report import LATENCY, PHASE, Report, decode

IMAGE = "python:3.11-slim-bookworm"
SERVER, SIDECAR, NETWORK = (f"{PROJECT}-{what}" for what in ("mlserver", "mlserver-probe", "mlserver-net"))
SIZE = 256

RUNTIME = f"""\
import asyncio
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from starlette.responses import Response

weights = np.random.default_rng(0).standard_normal(({SIZE}, {SIZE})).astype(np.float32) / 16
truly = getattr(Response, "truly", Response.init_headers)  # this file is imported more than once


def fault():
    return Path("/model/fault").read_text()


def promised(response, headers=None):
    truly(response, headers)
    if fault() == "half":  # the server closes the connection where less follows than it promised
        response.raw_headers = [
            (name, b"%d" % (2 * int(value)) if name == b"content-length" else value)
            for name, value in response.raw_headers
        ]


Response.truly, Response.init_headers = truly, promised


class Dense(MLModel):
    async def predict(self, payload):
        y = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        for _ in range(1000):  # most of the time, as in a server
            y = np.tanh(y @ weights)
        if fault() == "slow":
            await asyncio.sleep(10)
        elif fault() == "error":
            raise RuntimeError("the model fell over")
        elif fault() == "shape":
            y = y[:, :3]
        elif fault() == "answer":
            y = y + 1
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])
"""

START = "from mlserver.cli import main; main()"


class Sidecar:
    """What the probe reports, and what its server is made to do wrong."""

    def __init__(self, address: str, fault: Path) -> None:
        self._url = f"http://{address}/report"
        self._fault = fault

    def report(self) -> Report:
        return decode(get(self._url))

    def counts(self, metric: str) -> dict[str, float]:
        """By a counter's last label."""
        points = [
            point for family in self.report().families if family.name == metric for point in family.points
        ]
        return {point.labels[-1]: float(point.value) for point in points}  # type: ignore[arg-type]

    def seconds(self) -> dict[str, float]:
        """Of all repeats so far: their latency, and each phase."""
        found = {family.name: family.points for family in self.report().families}
        [latency] = found[LATENCY.name]
        spent = {point.labels[-1]: point.value.sum for point in found[PHASE.name]}  # type: ignore[union-attr]
        return {**spent, "latency": latency.value.sum}  # type: ignore[union-attr]

    def failures(self) -> dict[str, float]:
        return self.counts("infercanary_run_failures_total")

    def ran(self, runs: int) -> None:
        """Waits for so many runs more that go well."""

        def well() -> float:
            return self.counts("infercanary_runs_total").get("ok", 0.0)

        since = well()
        eventually(f"{runs} runs that go well", 60, lambda: well() >= since + runs)

    def goes_well(self) -> None:
        """Two runs more that do, and one without a failure beside it."""
        self.ran(2)
        before = self.failures()
        self.ran(1)
        assert self.failures() == before

    def does(self, fault: str) -> None:
        """Of the model, from now on. The file is never empty in between."""
        new = self._fault.with_suffix(".new")
        new.write_text(fault)
        new.replace(self._fault)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the server's packages are made for the image's Python, which is 3.11")
    made = environment("mlserver")
    folder = tmp_path_factory.mktemp("mlserver")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    model: dict[str, Any] = {"name": "dense", "implementation": "runtime.Dense"}
    for key, name in (("inputs", "x"), ("outputs", "y")):
        model[key] = [{"name": name, "datatype": "FP32", "shape": [1, SIZE]}]
    (folder / "model").mkdir()
    (folder / "model/fault").write_text("")
    (folder / "model/runtime.py").write_text(RUNTIME)
    (folder / "model/model-settings.json").write_text(json.dumps(model))
    # A connection that a busy machine makes too late counts as `unreachable`: a second was too short once.
    options = {"url": f"http://{SERVER}:8080", "model": "dense", "timeout_seconds": 3}
    canaries = {"dense": {"target": "kserve", "options": options}}
    (folder / "probe.yaml").write_text(
        yaml.safe_dump({"canaries": canaries, "interval_seconds": 0.5, "duty_cap": 0.5})
    )
    remove()
    try:
        image = ("--tag", "infercanary-probe:dev", "--file", "probe/Dockerfile")
        run("docker", "build", "--quiet", *image, ".", seconds=300)
        run("docker", "network", "create", NETWORK)
        packages = next(made.glob("lib/python*/site-packages"))
        faults = {
            "MLSERVER_HOST": "0.0.0.0", "MLSERVER_PARALLEL_WORKERS": "0", "PYTHONPATH": "/packages",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        run(
            *("docker", "run", "--detach", "--name", SERVER, "--network", NETWORK, "--workdir", "/tmp"),
            *(word for name, value in faults.items() for word in ("--env", f"{name}={value}")),
            *("--volume", f"{packages}:/packages:ro", "--volume", f"{folder / 'model'}:/model:ro"),
            *(IMAGE, "python", "-c", START, "start", "/model"),
        )
        run(
            *("docker", "run", "--detach", "--name", SIDECAR, "--network", NETWORK),
            *("--publish", "127.0.0.1::9798"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", "128m"),
            *("--volume", f"{folder / 'probe.yaml'}:/app/probe.yaml:ro", "infercanary-probe:dev"),
        )
        here = Sidecar(run("docker", "port", SIDECAR, "9798/tcp").split()[0], folder / "model/fault")
        eventually("the probe listens", 60, here.report)
        here.goes_well()
        yield here
    finally:
        for name in (SERVER, SIDECAR):
            print(f"--- {name}\n{run('sh', '-c', f'docker logs --tail 60 {name} 2>&1 || true')}")
        remove()


def remove() -> None:
    """What a session that was killed left, too."""
    run("sh", "-c", f"docker rm --force --volumes {SERVER} {SIDECAR}; docker network rm {NETWORK}; true")


def test_the_phases_are_the_whole(sidecar: Sidecar) -> None:
    """In seconds that add up: medians of phases do not, on a machine that is busy."""
    before = sidecar.seconds()
    sidecar.ran(10)
    spent = {name: value - before[name] for name, value in sidecar.seconds().items()}
    print(spent)
    assert {"send", "wait", "receive"} <= spent.keys()
    whole = spent.pop("latency")
    assert sum(spent.values()) == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", "error_answer"),
        pytest.param("slow", "timed_out", marks=pytest.mark.campaign),  # most of it is waiting
        ("shape", "wrong_shape"),
        ("answer", "wrong_answer"),
        ("half", "incomplete"),
    ],
)
def test_each_fault_is_its_own_reason(sidecar: Sidecar, fault: str, reason: str) -> None:
    before = sidecar.failures()
    sidecar.does(fault)
    try:
        eventually(reason, 60, lambda: sidecar.failures().get(reason, 0) >= before.get(reason, 0) + 2)
    finally:
        sidecar.does("")
    sidecar.goes_well()
    grown = {name for name, count in sidecar.failures().items() if count > before.get(name, 0)}
    assert grown == {reason}, run("sh", "-c", f"docker logs --tail 20 {SIDECAR} 2>&1")


def test_a_server_that_is_killed_is_unreachable_and_comes_back(sidecar: Sidecar) -> None:
    before = sidecar.failures()
    run("docker", "kill", SERVER)
    eventually(
        "unreachable",
        60,
        lambda: sidecar.failures().get("unreachable", 0) >= before.get("unreachable", 0) + 2,
    )
    run("docker", "start", SERVER)
    begin = time.monotonic()
    sidecar.goes_well()
    print(f"back after {time.monotonic() - begin:.0f} s")
    grown = {name for name, count in sidecar.failures().items() if count > before.get(name, 0)}
    # While it starts it may answer that the model is not ready, or not there.
    assert {"unreachable"} <= grown <= {"unreachable", "not_ready", "error_answer"}
