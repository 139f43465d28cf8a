"""``make release``: builds all files of a release in dist/, and tries them on each installed Python.

Builds the source distribution, the wheel and its bill of materials; installs the wheel on each Python from
local files only, and measures with it; builds both images. The workflow .github/workflows/release.yml
publishes them: see release/README.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from release import pyproject, sbom

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
_MEASURE = "import infercanary; print(infercanary.time(lambda: sum(range(10_000)), runs=2))"


def pythons() -> Iterator[tuple[str, str]]:
    """Yield version and path of each supported Python on the PATH and in pyenv."""
    for version in PYTHONS:
        known = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
        # First pyenv, because its programs on the PATH run only the selected version.
        if path := str(known[-1]) if known else shutil.which(f"python{version}"):
            yield version, path


def packages(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and from it the wheel, into ``folder``; return both paths in this order."""
    with tempfile.TemporaryDirectory() as name:
        python = _environment(sys.executable, Path(name) / "tools")
        _run(python, *_PIP, "install", "--require-hashes", "--requirement", ROOT / "release/build.txt")
        _run(python, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder, cwd=ROOT)
        [source] = folder.glob("infercanary-*.tar.gz")
        _run(python, *_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    [wheel] = folder.glob("infercanary-*.whl")
    return source, wheel


def tried(wheel: Path, interpreter: str) -> str:
    """Install the wheel with the exporter's libraries in a new environment, from local files only, and use it.

    Returns:
        The printed output: a measurement, and the verdict on two equal files.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = _environment(interpreter, folder / "venv")
        wanted = f"infercanary[exporter] @ {wheel.as_uri()}"
        limits = ("--constraint", ROOT / "constraints.txt", wanted)
        _run(python, *_PIP, "download", "--only-binary=:all:", "--dest", folder / "files", *limits)
        _run(python, *_PIP, "install", "--no-index", "--find-links", folder / "files", *limits)
        (folder / "runs").write_text("1.0\n1.01\n0.99\n" * 5)
        measured = _run(python, "-c", _MEASURE, cwd=folder)
        compared = _run(
            python, "-m", "infercanary", "compare", "runs", "runs", "--restart-sd", "0", cwd=folder
        )
        return f"{measured.strip()}\n{compared.splitlines()[0]}"


def image(part: str, version: str) -> str:
    """Build the image of ``exporter`` or ``probe``, labelled with version and commit; return its name."""
    name = f"infercanary-{part}:{version}"
    commit = _run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    labels = {"version": version, "revision": commit}
    options = [f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
    _run("docker", "build", "--quiet", *options, "--tag", name, "--file", f"{part}/Dockerfile", ".", cwd=ROOT)
    return name


def _environment(interpreter: str, folder: Path) -> str:
    _run(interpreter, "-m", "venv", folder)
    return str(folder / "bin/python")


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without this checkout on PYTHONPATH; after a failure, exit with the end of the command's output."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout


def main() -> None:
    """Build the release, and print the next step."""
    version = pyproject()["project"]["version"]
    if sbom.TARGET.read_text(encoding="utf-8") != sbom.text():
        sys.exit(f"{sbom.TARGET.relative_to(ROOT)} is stale: run `make release-files`")
    shutil.rmtree(DIST, ignore_errors=True)
    source, wheel = packages(DIST)
    shutil.copy(sbom.TARGET, DIST)
    print(f"dist/: {source.name}, {wheel.name}, {sbom.TARGET.name}", flush=True)
    for each, interpreter in pythons():
        print(f"Python {each}: {tried(wheel, interpreter)}", flush=True)
    if shutil.which("docker") is None:
        sys.exit("no Docker: the images are not built")
    for part in ("exporter", "probe"):
        print(f"image {image(part, version)}", flush=True)
    print(f"To publish: git tag v{version} && git push origin v{version} (release/README.md)")


if __name__ == "__main__":
    main()
