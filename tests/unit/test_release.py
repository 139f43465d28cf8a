"""What a release is made of: the bill of materials, pinned images, units of systemd, the workflow."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.utils.build import exclude_paths

from infercanary.command.settings import UsageError
from release import links, pin, sbom

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
EXPORTER_IMAGE = (ROOT / "exporter/Dockerfile").read_text(encoding="utf-8")
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
DIGEST = "sha256:" + "a" * 64
MOST_EXPOSED = 3.0
"""Of 10, by systemd-analyze, which calls less than 5 OK."""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_the_bill_of_materials_is_current() -> None:
    assert sbom.TARGET.read_text(encoding="utf-8") == sbom.text(), "it is stale: run `make release-files`"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_the_bill_names_each_dependency_with_its_extra() -> None:
    project: dict[str, Any] = {
        "name": "infercanary", "version": "1", "license": "Apache-2.0", "dependencies": ["click>=8.1,<9"],
        "optional-dependencies": {"exporter": ["isal>=1.7; platform_machine == 'x86_64'"], "dev": ["ruff"]},
    }  # fmt: skip
    click, isal = sbom.bill(project)["components"]
    assert (click["name"], click["scope"]) == ("click", "required")
    assert {"name": "infercanary:versions", "value": ">=8.1,<9"} in click["properties"]
    assert (isal["name"], isal["scope"]) == ("isal", "optional")
    assert {"name": "infercanary:marker", "value": "platform_machine == 'x86_64'"} in isal["properties"]


def test_a_setting_that_is_mounted_is_in_no_image() -> None:
    """Else an edited setting makes another image at the next `up --build`, which counts as an upgrade."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    inside = exclude_paths(str(ROOT), [line for line in patterns if line and not line.startswith("#")])
    mounts = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", ())]
    mounted = {mount.removeprefix("./").split(":")[0] for mount in mounts if mount.startswith("./")}
    assert {"exporter/exporter.yaml", "examples/broken/wheel.yaml"} <= mounted and len(inside) > 100
    assert not mounted & inside
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", EXPORTER_IMAGE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert all(any(f"{path}/".startswith(f"{source}/") for path in inside) for source in sources), sources


def test_the_overlay_names_every_image_by_its_digest() -> None:
    made = yaml.safe_load(pin.overlay(COMPOSE, lambda _: DIGEST))["services"]
    from_elsewhere = {
        name: service["image"]
        for name, service in COMPOSE["services"].items()
        if "infercanary-" not in service["image"]
    }
    assert len(from_elsewhere) >= 4
    pulled = {name: service for name, service in made.items() if "image" in service}
    assert pulled == {name: {"image": f"{image}@{DIGEST}"} for name, image in from_elsewhere.items()}


def test_the_overlay_names_what_images_are_built_on_by_its_digest() -> None:
    made = yaml.safe_load(pin.overlay(COMPOSE, lambda _: DIGEST))["services"]
    base = "python:3.11-slim-bookworm"
    contexts = {base: f"docker-image://{base}@{DIGEST}"}
    built = {name for name, service in COMPOSE["services"].items() if "build" in service}
    assert {name for name, service in made.items() if "build" in service} == built >= {"exporter", "classify"}
    assert all(made[name]["build"] == {"additional_contexts": contexts} for name in built)


@pytest.mark.parametrize("overlays", [[], ["compose.gpu.yml"]])
def test_each_image_of_ours_is_built_by_one_service(overlays: list[str]) -> None:
    """Of two that build one tag, the image of the first loses its name; one that nobody builds cannot be started."""
    services = {name: dict(service) for name, service in COMPOSE["services"].items()}
    for overlay in overlays:
        for name, more in yaml.safe_load((ROOT / overlay).read_text(encoding="utf-8"))["services"].items():
            build = {**services[name].get("build", {}), **more.get("build", {})}
            services[name] |= more | ({"build": build} if build else {})
    built = [service["image"] for service in services.values() if "build" in service]
    assert sorted(built) == sorted(
        {each["image"] for each in services.values() if "infercanary-" in each["image"]}
    )
    assert all("dockerfile" in service["build"] for service in services.values() if "build" in service)


def test_the_compose_file_itself_has_exact_tags() -> None:
    for image in pin.pulled(COMPOSE).values():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?", image), image


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_actions_are_pinned_by_their_commit(path: Path) -> None:
    """A tag may be moved to other code, which would run with the rights to publish."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if "uses:" in line and "uses: ./" not in line:
            assert re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("answer", ["", "latest", "sha256:12"])
def test_what_is_no_digest_is_refused(answer: str) -> None:
    with pytest.raises(UsageError, match="is no digest"):
        pin.overlay(COMPOSE, lambda _: answer)


def test_a_machine_without_docker_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="docker is not installed"):
        pin.from_registry("haproxy:3.2")


@pytest.mark.parametrize(
    ("docker", "said"),
    [
        (
            "echo 'unknown flag: --format' >&2; exit 1",
            "docker has no plugin buildx: install",
        ),
        (
            "[ $2 = version ] || { echo 'ERROR: dial tcp: no such host' >&2; exit 1; }",
            "^haproxy:3.2: ERROR: dial tcp: no such host$",
        ),
    ],
)
def test_a_docker_that_cannot_ask_a_registry_is_one_line(
    docker: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_docker(docker, monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=said):
        pin.from_registry("haproxy:3.2")


def test_the_digest_is_that_of_the_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As buildx 0.13 answers: JSON, but its table for every format that begins with ``{{.Manifest``."""
    index = f'{{"schemaVersion": 2, "digest": "{DIGEST}", "manifests": [{{"digest": "sha256:{"b" * 64}"}}]}}'
    says = f"""case "$6" in '{{{{.Manifest'*) echo "Digest: {DIGEST}";; '{{{{json'*) echo '{index}';; esac"""
    a_docker(says, monkeypatch, tmp_path)
    assert pin.from_registry("haproxy:3.2") == DIGEST


def a_docker(script: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Registries cannot be reached from a test, so a script answers for the one program that asks them."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("unit", ["infercanary-exporter", "infercanary-probe"])
def test_a_unit_is_sound_and_hardly_exposed(unit: str, tmp_path: Path) -> None:
    """The program that it starts is not installed here, so another one stands for it."""
    text = (ROOT / f"deploy/systemd/{unit}.service").read_text(encoding="utf-8")
    assert text.count("/opt/infercanary/bin/infercanary") == 1
    path = tmp_path / f"{unit}.service"
    path.write_text(text.replace("/opt/infercanary/bin/infercanary", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")
    scored = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", path], capture_output=True, text=True, timeout=60
    )
    [exposure] = re.findall(r"exposure level for \S+: ([\d.]+)", scored.stdout)
    assert float(exposure) <= MOST_EXPOSED


def steps(workflow: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_a_release_is_published_without_a_password_and_attested() -> None:
    workflow = RELEASE
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert any(name.startswith("pypa/gh-action-pypi-publish@") for name in used)
    assert any(name.startswith("actions/attest-build-provenance@") for name in used)
    assert "secrets.PYPI" not in str(workflow), "trusted publishing has no token"
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    [built] = [step for step in steps(workflow) if "docker/build-push-action" in step.get("uses", "")]
    assert built["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert built["with"]["sbom"] is True and built["with"]["provenance"] == "mode=max"


@pytest.mark.parametrize("job", RELEASE["jobs"].values(), ids=RELEASE["jobs"])
def test_a_release_calls_what_there_is(job: Mapping[str, Any]) -> None:
    """A tag is its first run: what it calls is installed by a step before, or a module of the repository."""
    needed = job.get("needs", [])
    assert {*([needed] if isinstance(needed, str) else needed)} <= RELEASE["jobs"].keys()
    installed: set[str] = set()
    for step in job["steps"]:
        assert ("run" in step) is not ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w./-]+@[\w./-]+", step["uses"])
        for line in step.get("run", "").splitlines():
            match shlex.split(line):
                case ["python", "-m", "pip", "install", "--require-hashes", "-r", file]:
                    assert _checks_out(job)
                    installed |= {*re.findall(r"^([\w-]+)==", (ROOT / file).read_text("utf-8"), re.MULTILINE)}
                case ["python", "-m", "pip", "install", *packages]:
                    assert packages == ["dist/*.whl"], "a tool of the release is installed by its hashes"
                    installed |= {*packages}
                case ["python", "-m", module, *_]:
                    path = ROOT / module.replace(".", "/")
                    assert module in installed or (path.with_suffix(".py").is_file() and _checks_out(job))
                case ["python", "-c", code]:
                    assert installed
                    compile(code, "release.yml", "exec")
                case [program, *_]:
                    assert program in installed | {"test"}


def _checks_out(job: Mapping[str, Any]) -> bool:
    return any(step.get("uses", "").startswith("actions/checkout@") for step in job["steps"])


def test_a_release_builds_images_from_files_that_exist() -> None:
    job = RELEASE["jobs"]["images"]
    [built] = [step["with"]["file"] for step in job["steps"] if "build-push" in step.get("uses", "")]
    for image in job["strategy"]["matrix"]["image"]:
        assert (ROOT / built.replace("${{ matrix.image }}", image)).is_file()


def test_what_is_to_be_typed_finds_the_program() -> None:
    """It is in a virtual environment that no step activates."""
    page = (ROOT / "docs/other-ways.md").read_text(encoding="utf-8")
    [commands] = [b for b in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "check-config" in b]
    assert "\ninfercanary " not in commands


@pytest.mark.parametrize(
    ("link", "repository", "shown"),
    [
        (
            "[a](verdicts.md#x) ![i](img/status.png)",
            "https://e.org",
            "[a](verdicts.md#x) ![i](img/status.png)",
        ),
        ("[a](https://e.org/x)", "https://e.org", "[a](https://e.org/x)"),
        ("[a](../README.md#what)", "https://e.org/blob/main", "[a](https://e.org/blob/main/README.md#what)"),
        ("[a](../exporter/infercanary)", "", "a"),
        ("[why](adr)", "", "[why](adr/README.md)"),
    ],
)
def test_links_out_of_the_site_lead_to_the_repository(link: str, repository: str, shown: str) -> None:
    assert links.outside(link, ROOT / "docs/README.md", repository) == shown


def test_a_link_of_the_site_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="leads nowhere"):
        links.outside("[a](../none.md)", ROOT / "docs/README.md", "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_images_install_the_versions_of_the_constraints_each_file_by_its_hash() -> None:
    from release import hashes

    constraints = hashes.CONSTRAINTS.read_text(encoding="utf-8")
    pinned = dict(re.findall(r'^([\w.-]+)==([^\s;]+)(?:$|; python_version >= "3.11")', constraints, re.M))
    for path, requirements in hashes.wanted().items():
        stale = f"{path.relative_to(ROOT)} is stale: run `make hashes`"
        lines = path.read_text(encoding="utf-8").replace(" \\\n", "").splitlines()[1:]
        versions = dict(line.split()[0].split("==") for line in lines)
        assert (
            versions.items() <= {hashes.canonical(name): version for name, version in pinned.items()}.items()
        ), stale
        assert {hashes.canonical(re.match(r"[\w-]+", each)[0]) for each in requirements} <= {*versions}, stale  # type: ignore[index]
        for line in lines:
            assert re.fullmatch(r"\S+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", line), line
        users = [*ROOT.glob("*/Dockerfile")]
        assert any(f"COPY {path.relative_to(ROOT)} ./" in user.read_text(encoding="utf-8") for user in users)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_hashes_are_those_of_the_wheels_that_fit_the_images() -> None:
    from release import hashes

    names = [
        "a-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "a-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "a-1.0-cp38-abi3-manylinux2014_x86_64.whl",
        "a-1.0-py2.py3-none-any.whl",
        "a-1.0-cp312-cp312-manylinux2014_x86_64.whl",
        "a-1.0-cp311-cp311-win_amd64.whl",
        "a-1.0-cp311-cp311-musllinux_1_2_x86_64.whl",
        "a-1.0.1-py3-none-any.whl",
        "a-1.0.tar.gz",
    ]
    files = [{"filename": name, "hashes": {"sha256": str(number)}} for number, name in enumerate(names)]
    assert re.findall(r"sha256:(\d+)", hashes.text({"a": "1.0"}, {"a": files})) == ["0", "1", "2", "3"]
    with pytest.raises(ValueError, match=r"a==2\.0: the index lists no wheel for Python 3\.11"):
        hashes.text({"a": "2.0"}, {"a": files})
