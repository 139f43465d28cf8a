"""`infercanary attach`: the printed lines, and images that a probe cannot use."""

import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import docker
import pytest
import yaml
from click.testing import CliRunner

from infercanary.ab import attach
from infercanary.command import cli
from tests.scenarios import refused

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes/attach"
GOLDEN = ROOT / "tests/golden/attach.txt"


@pytest.fixture
def client(monkeypatch):
    """Docker with an image whose command is a shell's, and whose check succeeds."""
    made = Mock(spec=docker.APIClient)
    made.inspect_image.return_value = {
        "Config": {
            "Entrypoint": ["/start.sh", "--"],
            "Cmd": ["sh", "-c", "exec serve --port $PORT $(cat words)"],
        }
    }
    made.wait.return_value = {"StatusCode": 0}
    made.logs.return_value = (
        b"infercanary: the probe runs in /opt/python with its own click 8.5.1 (image: 8.0.4)\n"
    )
    monkeypatch.setattr(attach, "open_daemon", lambda: made)
    return made


def printed():
    done = CliRunner().invoke(cli.cli, ["attach", "search:1.4"], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.output


def test_the_lines_are_those_of_the_image(client):
    """Compose and Kubernetes replace variables: the image's own command must survive both."""
    assert printed() == GOLDEN.read_text()
    compose, kubernetes = yaml.safe_load_all(GOLDEN.read_text())
    [container] = kubernetes["spec"]["template"]["spec"]["containers"]
    for command in compose["services"]["YOUR_SERVICE"]["command"], container["args"]:
        assert command[-1] == "exec serve --port $$PORT $$(cat words)"
    _, given = client.create_container.call_args
    assert given["network_disabled"]
    client.remove_container.assert_called_once()


CASES = [
    ({"inspect_image.return_value": {"Config": {"Entrypoint": None, "Cmd": None}}}, ["neither ENTRYPOINT", "sidecar"]),
    ({"wait.return_value": {"StatusCode": 1}, "logs.return_value": b"infercanary: no Python in this image\n"},
     ["search:1.4: no Python in this image", "sidecar"]),
    ({"wait.return_value": {"StatusCode": 1}, "logs.return_value": b"exec /infercanary/beside: no such file\n"},
     ["no shell in this image", "sidecar"]),
    ({"start.side_effect": docker.errors.APIError("x", explanation="no such file")},
     ["no such file", "shell", "sidecar", "fill"]),
    ({"inspect_volume.side_effect": docker.errors.NotFound("x")}, ["no such volume", "docker run --rm --volume"]),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "words"), CASES)
def test_an_image_that_the_probe_cannot_use_is_one_line_with_the_fix(client, answers, words):
    client.configure_mock(**answers)
    with refused(words):
        printed()
    assert client.remove_container.called == client.create_container.called


def patched(name):
    text = GOLDEN.read_text().replace("YOUR_REGISTRY", "registry.example.com/ml")
    _, made = yaml.safe_load_all(text.replace("YOUR_DEPLOYMENT", name).replace("YOUR_CONTAINER", name))
    return made


def test_the_component_has_the_same_patch_and_kustomize_takes_it(tmp_path):
    made = patched("search")
    [container] = made["spec"]["template"]["spec"]["containers"]
    container |= {"command": ["/infercanary/beside", "python", "server.py"], "args": []}
    assert yaml.safe_load((FOLDER / "attach.yaml").read_text()) == made
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    shutil.copytree(FOLDER, tmp_path / "attach")
    server = {
        "name": "search",
        "image": "search:1.4",
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    pod = {"containers": [server], "volumes": [{"name": "models", "emptyDir": {}}]}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "search"}}
    (tmp_path / "base").mkdir()
    (tmp_path / "base/search.yaml").write_text(
        yaml.safe_dump({**deployment, "spec": {"template": {"spec": pod}}})
    )
    (tmp_path / "base/kustomization.yaml").write_text("resources: [search.yaml]\ncomponents: [../attach]\n")
    done = subprocess.run(
        ["kubectl", "kustomize", tmp_path / "base"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "search:1.4"
    assert {each["name"] for each in spec["volumes"]} == {"models", "infercanary", "infercanary-settings"}
    [settings] = [each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each]
    assert settings == found["ConfigMap"]["metadata"]["name"]


def test_helms_templates_render_the_same_pod(tmp_path):
    if shutil.which("helm") is None:
        pytest.skip("needs helm")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: search\nversion: 0.1.0\n")
    image = patched("search")["spec"]["template"]["spec"]["initContainers"][0]["image"]
    (tmp_path / "values.yaml").write_text(f"infercanary: {{image: {image}}}\n")
    shutil.copy(FOLDER / "_infercanary.tpl", tmp_path / "templates")
    parts = ("initContainers", "volumes", "ports", "volumeMounts")
    text = "".join(f'{part}: {{{{- include "infercanary.{part}" . | nindent 2 }}}}\n' for part in parts)
    (tmp_path / "templates/pod.yaml").write_text(text)
    done = subprocess.run(["helm", "template", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    pod = patched("search")["spec"]["template"]["spec"]
    assert yaml.safe_load(done.stdout) == {
        part: pod.get(part) or pod["containers"][0][part] for part in parts
    }
