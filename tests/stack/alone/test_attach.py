"""A probe without a new image: images without a probe, from the lines of `infercanary attach` to a steady run.

Each image selects its Python in another way: by its command, a shell's command, an entrypoint that activates
a virtual environment, or a script's first line.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml
from attached import IMAGE, VOLUME, attach, filled_volume, steady_seconds
from harness import OWN_LABEL, PROJECT, ROOT, eventually, get, run
from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag

from infercanary.contract.report import decode

BASE = "python:3.11-slim-bookworm"
NAME = f"{PROJECT}-attached"
STEADY_SECONDS = 60

SERVER = """
import http.server

{load}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(answer()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""
TORCH = """
import torch

model = torch.nn.Linear(256, 256).eval()


def answer():
    with torch.inference_mode():
        return model(torch.ones(1, 256)).sum().item()
"""
ONNX = """
import click
import msgspec
import numpy
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")


def answer():
    [result] = session.run(None, {"x": numpy.ones((1, 4), numpy.float32)})
    return click.__version__, msgspec.__version__, float(result.sum())
"""
ACTIVATES = '#!/bin/sh\n. /opt/venv/bin/activate\nexec python "$@"\n'
TINY_LLAMA = (ROOT / "benchmarks/gpu_claims/tiny_llama.py").read_text()


class Image(NamedTuple):
    dockerfile: str
    canary: dict[str, Any]
    files: Mapping[str, str] = MappingProxyType({})
    wheels: tuple[str, ...] = ()
    """Options and packages for `pip download` on this host: packages that the base image may not have."""
    python: str = "/usr/"
    """Start of the path of the Python that the probe uses."""


def asks(url="http://127.0.0.1:8000/", target="http", **options):
    return {"target": target, "options": {"url": url, **options}}


IMAGES = {
    "plain": Image(f'FROM {BASE}\nCMD ["python", "-m", "http.server", "8000"]\n', asks()),
    "torch": Image(
        f"""FROM {BASE}
RUN pip install --no-cache-dir torch numpy
WORKDIR /app
COPY server.py ./
CMD exec python server.py
""",
        {"target": "torch", "options": {"model": "torch.nn:ReLU", "inputs": [{"shape": [256]}]}},
        {"server.py": SERVER.format(load=TORCH)},
    ),
    "onnx": Image(
        f"""FROM {BASE}
COPY wheels /wheels
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir onnxruntime numpy \\
    && /opt/venv/bin/pip install --no-cache-dir --no-index --find-links /wheels msgspec==0.18.6 click==8.0.4
WORKDIR /app
COPY server.py model.onnx start.sh ./
ENTRYPOINT ["./start.sh"]
CMD ["server.py"]
""",
        {"target": "onnx", "options": {"model": "model.onnx"}},
        {"server.py": SERVER.format(load=ONNX), "start.sh": ACTIVATES},
        ("--no-deps", "msgspec==0.18.6", "click==8.0.4"),
        "/opt/venv/bin/python",
    ),
    "transformers": Image(
        f"""FROM {BASE}
RUN pip install --no-cache-dir torch numpy
COPY wheels /wheels
RUN pip install --no-cache-dir --find-links /wheels 'transformers[serving]==5.23.0'
WORKDIR /app
COPY tiny.py ./
RUN python tiny.py
ENV HF_HUB_OFFLINE=1 HF_HOME=/tmp
CMD ["transformers", "serve", "./tiny", "--device=cpu", "--host=127.0.0.1", "--port=8000"]
""",
        asks("http://127.0.0.1:8000/v1", "openai", model="./tiny", prompt="a b c", max_tokens=4, salt=False),
        {"tiny.py": TINY_LLAMA},
        ("--constraint", "constraints.txt", "transformers[serving]==5.23.0"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def volume():
    with filled_volume():
        yield


@pytest.fixture
def built(request, tmp_path):
    folder, image = tmp_path / "image", IMAGES[request.param]
    folder.mkdir()
    for name, text in {"Dockerfile": image.dockerfile, **image.files}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if "model.onnx" in image.dockerfile:
        pytest.importorskip("onnx")
        from tests import onnx_models

        onnx_models.linear(folder / "model.onnx", batch=1)
    if image.wheels:
        limits = ("--only-binary=:all:", "--python-version=3.11", "--quiet", "--dest", str(folder / "wheels"))
        run(sys.executable, "-m", "pip", "download", *limits, *image.wheels, seconds=600)
    tag = f"{NAME}-{request.param}:test"
    run("docker", "build", "--quiet", "--tag", tag, str(folder), seconds=900)
    yield tag, image
    run("docker", "rmi", "--force", "--no-prune", tag)  # a cache of its layers


def variables(container):
    text = run("docker", "exec", container, "cat", "/proc/1/environ")
    return {line for line in text.split("\0") if line and not line.startswith("HOSTNAME=")}


@pytest.mark.parametrize(
    "built",
    [name if name == "plain" else pytest.param(name, marks=pytest.mark.campaign) for name in IMAGES],
    indirect=True,
)
def test_from_the_lines_to_a_steady_run(volume, built, tmp_path):
    tag, image = built
    compose, _ = attach(tag)
    service = compose["services"].pop("YOUR_SERVICE")
    extra = {
        "image": tag,
        "container_name": NAME,
        "ports": ["127.0.0.1::9798", "127.0.0.1::8000"],
        "init": False,
    }
    compose["services"]["server"] = {**service, **extra, "read_only": True, "tmpfs": ["/tmp"]}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(compose))
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump({"canaries": {"canary": image.canary}}))
    (tmp_path / "probe.yaml").chmod(0o644)
    docker_compose = ("docker", "compose", "--project-name", NAME, "--file", str(tmp_path / "compose.yaml"))
    run("docker", "create", "--name", f"{NAME}-without", "--label", OWN_LABEL, tag)
    began = time.monotonic()
    run(*docker_compose, "up", "--detach")
    try:
        url = f"http://{run('docker', 'port', NAME, '9798/tcp').split()[0]}/report"
        seconds = eventually("a steady run", STEADY_SECONDS, lambda: steady_seconds(decode(get(url))))
        print(
            f"{tag}: {time.monotonic() - began:.1f} s to the first steady run, {seconds:.1f} s by the probe"
        )
        log = subprocess.run(["docker", "logs", NAME], capture_output=True, text=True).stderr
        assert f"infercanary: the probe runs in {image.python}" in log
        run("docker", "start", f"{NAME}-without")
        assert variables(NAME) == variables(f"{NAME}-without")
        if image.wheels[:1] == ("--no-deps",):
            server = run("docker", "port", NAME, "8000/tcp").split()[0]
            assert get(f"http://{server}/").startswith(b"('8.0.4', '0.18.6'")
            assert "click 8.5.1 (image: 8.0.4)" in log
    finally:
        print(run("sh", "-c", f"docker logs {NAME} 2>&1 | tail -n 30"))
        run("docker", "rm", "--force", f"{NAME}-without")
        run(*docker_compose, "down", "--timeout", "2")


WITHOUT = [("nginx:1.28-alpine", "no Python in this image"), ("scratch", "no shell in this image")]


@pytest.mark.parametrize(("image", "words"), WITHOUT)
def test_an_image_without_python_or_without_a_shell(volume, image, words):
    if image == "scratch":
        image = f"{NAME}-no-shell:test"
        run("docker", "build", "--quiet", "--tag", image, "-", text='FROM scratch\nCMD ["/server"]\n')
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "attach", image], capture_output=True, text=True
    )
    if "no-shell" in image:
        run("docker", "rmi", image)
    assert done.returncode == 2
    assert words in done.stderr and "sidecar" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_volume_has_a_fitting_wheel_for_each_python_machine_and_c_library(volume):
    """Read each package's file WHEEL, because code for other machines and C libraries cannot run here."""
    text = run(
        *("docker", "run", "--rm", "--volume", f"{VOLUME}:/infercanary:ro", "--entrypoint", "grep", IMAGE),
        *("--recursive", "--include", "WHEEL", "^Tag:", "/infercanary"),
    )
    found: dict[str, dict[str, set[Tag]]] = {}
    for line in text.splitlines():
        path, _, tag = line.partition(":Tag: ")
        _, _, folder, package, _ = path.split("/")
        found.setdefault(folder, {}).setdefault(package, set()).update(parse_tag(tag))
    own = found.pop("probe")
    assert [name.split("-")[0] for name in own] == ["infercanary"]
    requirements = (ROOT / "probe/requirements.txt").read_text().count("==")
    wanted = [
        (minor, machine, libc)
        for minor in range(10, 14)
        for machine in ("x86_64", "aarch64")
        for libc in ("glibc", "musl")
    ]
    assert found.keys() == {f"cpython-3.{minor}-{machine}-{libc}" for minor, machine, libc in wanted}
    for minor, machine, libc in wanted:
        platform = {"glibc": "manylinux_2_17", "musl": "musllinux_1_2"}[libc]
        platforms = [f"{platform}_{machine}", f"manylinux_2_12_{machine}"][: 2 if libc == "glibc" else 1]
        fitting = {
            *cpython_tags((3, minor), platforms=platforms),
            *compatible_tags((3, minor), platforms=platforms),
        }
        packages = found[f"cpython-3.{minor}-{machine}-{libc}"]
        assert len(packages) == requirements
        assert [name for name, tags in packages.items() if not tags & fitting] == []
