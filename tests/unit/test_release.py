"""Parts of a release: bill of materials, pinned images, systemd units, workflow."""

import re
import shlex
import shutil
import sys

import pytest
import yaml
from docker.utils.build import exclude_paths

from infercanary.command.settings import UsageError
from release import pin, sbom
from tests.programs import ROOT, ended
from tests.scenarios import cases

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
EXPORTER_IMAGE = (ROOT / "exporter/Dockerfile").read_text()
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
DIGEST = "sha256:" + "a" * 64
MOST_EXPOSED = 3.0
"""Of at most 10, by systemd-analyze, which calls a value below 5 OK."""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_the_bill_of_materials_is_current():
    assert sbom.TARGET.read_text() == sbom.text()  # this file is stale: run `make release-files`


def test_a_setting_that_is_mounted_is_in_no_image():
    """If an image contained the setting, an edited setting would change the image at the next `up --build`, and
    the change would count as an upgrade.
    """
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    inside = exclude_paths(str(ROOT), [line for line in patterns if line and not line.startswith("#")])
    mounts = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", ())]
    mounted = {mount.removeprefix("./").split(":")[0] for mount in mounts if mount.startswith("./")}
    assert {"exporter/exporter.yaml", "examples/broken/wheel.yaml"} <= mounted
    assert len(inside) > 100
    assert not mounted & inside
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", EXPORTER_IMAGE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert all(any(f"{path}/".startswith(f"{source}/") for path in inside) for source in sources), sources


def test_the_overlay_names_every_image_by_its_digest():
    made = yaml.safe_load(pin.overlay(COMPOSE, lambda _: DIGEST))["services"]
    from_elsewhere = {
        name: service["image"]
        for name, service in COMPOSE["services"].items()
        if "infercanary-" not in service["image"]
    }
    assert len(from_elsewhere) >= 4
    pulled = {name: service for name, service in made.items() if "image" in service}
    assert pulled == {name: {"image": f"{image}@{DIGEST}"} for name, image in from_elsewhere.items()}


def test_the_compose_file_itself_has_exact_tags():
    for image in pin.pulled(COMPOSE).values():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?", image), image


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_actions_are_pinned_by_their_commit(path):
    """A tag may move to other code, which would run with the right to publish."""
    for line in path.read_text().splitlines():
        if "uses:" in line and "uses: ./" not in line:
            assert re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@cases(["infercanary-exporter", "infercanary-probe"])
def test_a_unit_is_sound_and_hardly_exposed(unit, tmp_path):
    """Another program stands in for the unit's program, which is not installed here."""
    text = (ROOT / f"deploy/systemd/{unit}.service").read_text()
    assert text.count("/opt/infercanary/bin/infercanary") == 1
    path = tmp_path / f"{unit}.service"
    path.write_text(text.replace("/opt/infercanary/bin/infercanary", "/bin/true"))
    assert ended("systemd-analyze", "verify", path).stderr == ""
    scored = ended("systemd-analyze", "security", "--offline=true", path, code=None).stdout
    [exposure] = re.findall(r"exposure level for \S+: ([\d.]+)", scored)
    assert float(exposure) <= MOST_EXPOSED


@pytest.mark.parametrize("job", RELEASE["jobs"].values(), ids=RELEASE["jobs"])
def test_a_release_calls_what_there_is(job):
    """The workflow runs at a tag for the first time, so each of its programs must come from an earlier step or
    this repository.
    """
    needed = job.get("needs", [])
    assert {*([needed] if isinstance(needed, str) else needed)} <= RELEASE["jobs"].keys()
    installed = set()
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
                    assert packages == ["dist/*.whl"]  # pip checks the hashes of each tool of the release
                    installed |= {*packages}
                case ["python", "-m", module, *_]:
                    path = ROOT / module.replace(".", "/")
                    assert module in installed or (path.with_suffix(".py").is_file() and _checks_out(job))
                case ["python", "-c", code]:
                    assert installed
                    compile(code, "release.yml", "exec")
                case [program, *_]:
                    assert program in installed | {"test"}


def _checks_out(job):
    return any(step.get("uses", "").startswith("actions/checkout@") for step in job["steps"])


def test_links_out_of_the_site_lead_to_the_repository():
    from release import links

    page = ROOT / "docs/README.md"
    shown = [
        links.outside(f"[a]({to})", page, "https://e.org") for to in ("verdicts.md#x", "../README.md", "adr")
    ]
    assert shown == ["[a](verdicts.md#x)", "[a](https://e.org/README.md)", "[a](adr/README.md)"]
    with pytest.raises(ValueError, match="leads to no file"):
        links.outside("[a](../none.md)", page, "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_images_install_the_versions_of_the_constraints_each_file_by_its_hash():
    from release import hashes

    constraints = hashes.CONSTRAINTS.read_text()
    pinned = dict(re.findall(r'^([\w.-]+)==([^\s;]+)(?:$|; python_version >= "3.11")', constraints, re.M))
    for path, requirements in hashes.wanted().items():
        stale = f"{path.relative_to(ROOT)} is stale: run `make hashes`"
        lines = path.read_text().replace(" \\\n", "").splitlines()[1:]
        versions = dict(line.split()[0].split("==") for line in lines)
        assert (
            versions.items() <= {hashes.canonical(name): version for name, version in pinned.items()}.items()
        ), stale
        assert {hashes.canonical(re.match(r"[\w-]+", each)[0]) for each in requirements} <= {*versions}, stale  # type: ignore[index]
        for line in lines:
            assert re.fullmatch(r"\S+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", line), line
        users = [*ROOT.glob("*/Dockerfile")]
        assert any(f"COPY {path.relative_to(ROOT)} ./" in user.read_text() for user in users)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_hashes_are_those_of_the_wheels_that_fit_the_images():
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


def test_an_invalid_digest_is_refused():
    with pytest.raises(UsageError, match="is not a digest"):
        pin.overlay(COMPOSE, lambda _: "sha256:12")


def test_a_release_is_published_without_a_password():
    assert "secrets.PYPI" not in str(RELEASE)  # trusted publishing needs no token
    assert RELEASE["permissions"] == {"contents": "read"}
    assert RELEASE["jobs"]["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    built = [service["image"] for service in COMPOSE["services"].values() if "build" in service]
    assert len(built) == len({*built})  # two services build the same tag
