"""Real servers on the CPU: MLServer, Triton, and Transformers' server with OpenAI's API."""

import re
import shutil
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from ports import free_port
from probe_process import run_probe
from real_servers import environment, serving
from server_targets import fails, kserve_target, measured, openai_target, opened, values_of

import infercanary
from infercanary.probe.targets import make
from infercanary.probe.targets.kserve import PARTS

pytestmark = pytest.mark.takes(110)

_REPEATS = 100
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # the machine has other load

_MODEL = """\
import numpy as np
weights = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32) / 32


def infer(x):
    for _ in range(4):
        x = np.tanh(x @ weights)
    return x
"""

_MLSERVER = """\
import sys
sys.path.insert(0, {folder!r})
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from dense_model import infer


class Dense(MLModel):
    async def predict(self, payload):
        x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", infer(x))])
"""

_MLSERVER_SETTINGS = """{
  "name": "dense", "implementation": "runtime.Dense",
  "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1024]}],
  "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1024]}]
}"""

_TRITON = """\
import sys
sys.path[:0] = {folders!r}
import triton_python_backend_utils as pb_utils
from dense_model import infer


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", infer(x))]) for x in inputs]
"""

_TRITON_CONFIG = """\
backend: "python"
max_batch_size: 0
input [{ name: "x" data_type: TYPE_FP32 dims: [ 1, 1024 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1, 1024 ] }]
instance_group [{ kind: KIND_CPU }]
"""

_TINY_LLAMA = Path(__file__).parents[3] / "benchmarks/gpu_claims/tiny_llama.py"


@contextmanager
def mlserver_in(folder, port):
    ports = {"HTTP": port, "GRPC": free_port(), "METRICS": free_port()}
    more = {f"MLSERVER_{name}_PORT": str(number) for name, number in ports.items()}
    more |= {"MLSERVER_PARALLEL_WORKERS": "0", "MLSERVER_HOST": "127.0.0.1", **_ONE_THREAD}
    command = [environment("mlserver") / "bin/mlserver", "start", "."]
    with serving(command, f"http://127.0.0.1:{port}/v2/health/ready", folder, more):
        yield


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("mlserver"), free_port()
    (folder / "dense_model.py").write_text(_MODEL)
    (folder / "dense").mkdir()
    (folder / "dense/runtime.py").write_text(_MLSERVER.format(folder=str(folder)))
    (folder / "dense/model-settings.json").write_text(_MLSERVER_SETTINGS)
    with mlserver_in(folder, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def triton(tmp_path_factory):
    """Run the server from PyTriton's wheel with its Python backend.

    The backend needs a numpy before version 2: otherwise every output is empty, which the canary reports.
    """
    if sys.version_info >= (3, 13):
        pytest.skip("Triton's Python backend needs a numpy that does not exist for this Python")
    if sys.platform != "linux":
        pytest.skip("Triton exists only for Linux")
    packages = next(environment("triton").glob("lib/python*/site-packages"))
    home = packages / "pytriton/tritonserver"
    stub = home / f"python_backend_stubs/3.{sys.version_info[1]}/triton_python_backend_stub"
    shutil.copy(stub, home / "backends/python")
    for program in (home / "bin/tritonserver", home / "backends/python" / stub.name):
        linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        if missing := [line.split()[0] for line in linked.splitlines() if "not found" in line]:
            pytest.skip(f"{program.name} needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("triton")
    (folder / "dense_model.py").write_text(_MODEL)
    (folder / "models/dense/1").mkdir(parents=True)
    (folder / "models/dense/config.pbtxt").write_text(_TRITON_CONFIG)
    (folder / "models/dense/1/model.py").write_text(_TRITON.format(folders=[str(folder), str(packages)]))
    # The stub's shell command contains a path without quotes, so a link gives it a path without spaces.
    (folder / "backends").symlink_to(home / "backends")
    port = free_port()
    command = [
        home / "bin/tritonserver", f"--model-repository={folder / 'models'}", f"--http-port={port}",
        f"--backend-directory={folder / 'backends'}", "--http-address=127.0.0.1", "--allow-grpc=false",
        "--allow-metrics=false",
    ]  # fmt: skip
    with serving(command, f"http://127.0.0.1:{port}/v2/health/ready", folder, _ONE_THREAD):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    pytest.importorskip("torch")
    made = environment("transformers")
    folder = tmp_path_factory.mktemp("transformers")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), **_ONE_THREAD}
    subprocess.run(
        [made / "bin/python", _TINY_LLAMA], cwd=folder, check=True, capture_output=True, timeout=300
    )
    port = free_port()
    command = [
        made / "bin/transformers",
        "serve",
        "./tiny",
        "--device=cpu",
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    with serving(command, f"http://127.0.0.1:{port}/health", folder, offline):
        yield f"http://127.0.0.1:{port}"


def test_the_phases_are_the_whole(server, mlserver, transformers):
    kserve = opened(kserve_target(mlserver, "dense"))
    stream = {"prompt": "Once upon a time", "max_tokens": 16, "salt": False}
    openai = opened(openai_target(f"{transformers}/v1", "./tiny", **stream))
    for target in (kserve, openai):
        timings = [measured(target)[0] for _ in range(_REPEATS // 5)]
        shares = [sum(timing.phases.values()) / timing.wall for timing in timings]
        # Python takes about 40 µs between phases. Other load on the machine can only increase this time.
        between = min(timing.wall - sum(timing.phases.values()) for timing in timings)
        assert max(shares) <= 1.0
        assert max(shares) >= 0.98 or between <= 60e-6
    (timing, one), (_, other) = measured(openai), measured(openai)
    assert one.text == other.text
    assert one.tokens == other.tokens == 16
    assert 0 < one.between <= timing.phases["tokens"] / 10
    plain = {"prompt": "Once", "api": "completions", "max_tokens": 8, "salt": False}
    assert measured(opened(openai_target(transformers, "./tiny", **plain)))[1].tokens == 8


def test_the_same_model_gives_the_same_answer_whatever_the_server_and_the_encoding(server, mlserver, triton):
    """MLServer with JSON, and Triton with JSON and with binary tensors: three independent ways to the same numbers."""
    urls = (mlserver, None), (triton, False), (triton, None)
    targets = [opened(kserve_target(url, "dense", binary=binary)) for url, binary in urls]
    environments = [target.environment() for target in targets]
    assert [each["kserve_tensors"] for each in environments] == ["json", "json", "binary"]
    assert environments[0]["kserve_server"] == "mlserver 1.7.1"
    assert environments[1]["kserve_server"].startswith("triton 2.")
    answers = [values_of(target) for target in targets]
    assert len(answers[0]) == 1024
    assert all(answer == pytest.approx(answers[0], rel=1e-5, abs=1e-6) for answer in answers)


def test_tritons_own_times_are_within_what_is_measured_from_outside(server, triton):
    target = opened(kserve_target(triton, "dense"))
    walls = [measured(target)[0].wall for _ in range(_REPEATS)]
    parts = {reading.labels[0]: reading.value for reading in target.readings()}
    assert tuple(parts) == PARTS
    assert parts["compute_infer"]
    assert 0 < sum(parts.values()) < statistics.fmean(walls)


def test_an_unknown_model_and_a_server_without_binary_data(server, mlserver, triton):
    for url in (mlserver, triton):
        with fails("not_ready", "the model `nothing` is not ready: 40"):
            kserve_target(url, "nothing", ready_seconds=0).open()
    target = opened(kserve_target(mlserver, "dense", binary=True))
    with fails("error_answer"):
        measured(target)


# Statements of the pages -------------------------------------------------------------------------------------------

PAGES = Path(__file__).parents[3] / "docs/targets"


def unpack(page, folder, port, replaced):
    text = (PAGES / page).read_text()
    files = re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert "probe.yaml" in dict(files)
    for name, content in files:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(re.sub(rf"(127\.0\.0\.1\D{{1,3}}){replaced}", rf"\g<1>{port}", content))
    assert str(port) in (folder / "probe.yaml").read_text()


def once(folder, phases):
    """Run ``infercanary probe --once``, check phases and faults, and return the output."""
    canaries = (folder / "probe.yaml").read_text().partition("canaries:")[2]
    code, out, said = run_probe(folder, canaries, "--once", modules=folder)
    assert code == 0, out + said
    assert "output_changed" not in out
    [parts] = re.findall(r"^  phases +((?:.+\n)+?)  \w", out, re.MULTILINE)
    shown = re.findall(r"([a-z][a-z ]*) [\d.]+ [µm]?s", " ".join(parts.split()))
    # If the answer arrives in one packet, the receive phase is missing.
    assert shown in (phases, [name for name in phases if name != "receive"]), out
    return out


def test_the_page_of_kserve(tmp_path):
    assert "mlserver start ." in (PAGES / "kserve.md").read_text()
    unpack("kserve.md", tmp_path, port := free_port(), 8080)
    with mlserver_in(tmp_path, port):
        printed = once(tmp_path, ["send", "wait", "receive"])
    assert "inference server mlserver 1.7.1" in " ".join(printed.split())


def test_the_page_of_http(tmp_path):
    port = free_port()
    unpack("http.md", tmp_path, port, 8080)
    [canary] = yaml.safe_load((tmp_path / "probe.yaml").read_text())["canaries"].values()
    with serving([sys.executable, "server.py"], f"http://127.0.0.1:{port}/", tmp_path):
        once(tmp_path, ["send", "wait", "receive"])
        result = infercanary.time(make("http", canary["options"]), runs=2)
    # With header and body in two packets, two sums took 43.7 ms, because the client's ACK is delayed.
    assert min(min(run.latencies) for run in result.runs) < 0.03, result


def test_the_page_of_openai(tmp_path, transformers):
    assert "transformers serve ./tiny" in (PAGES / "openai.md").read_text()
    unpack("openai.md", tmp_path, int(transformers.rpartition(":")[2]), 8000)
    printed = once(tmp_path, ["send", "first token", "tokens"])
    for line in (
        r"output +16 tokens",
        r"between tokens +[\d.]+ [µm]?s",
        r"first token +(plain|salted) [\d.]+ [µm]?s, ",
    ):
        assert re.search(f"^  {line}", printed, re.MULTILINE), printed
