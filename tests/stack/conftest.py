"""The shipped Compose stack, really started: Docker, the exporter, Prometheus. Skipped, in one line, without Docker."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from harness import Stack, compose, eventually, get, remove_containers, services


@functools.cache
def _missing() -> str | None:
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            if subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
                return f"`{' '.join(command)}` fails"
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return f"`{' '.join(command)}` does not run"
    return None


HERE = Path(__file__).parent


class _Docker:
    """Skips what is selected of this folder where there is no Docker; in CI that is a failure."""

    @pytest.hookimpl(trylast=True)  # after -m, which deselects
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        mine = [item for item in items if HERE in item.path.parents]
        if not mine or config.option.collectonly or not (why := _missing()):
            return
        reason = f"the stack tests need Docker with Compose v2: {why}"
        if os.environ.get("CI"):
            pytest.exit(f"{reason}; CI may not skip them", returncode=1)
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Docker())


@pytest.hookimpl(tryfirst=True)  # before -m, which reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.stack)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a stack test that was skipped, for whatever reason, has failed."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and _missing():
        # pytest's summary has a line for each place that skips: let this folder be one.
        report.longrepr = (str(HERE), None, report.longrepr[2])  # type: ignore[assignment]
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """`docker compose up` of the shipped file; gone afterwards, with its volumes and networks.

    Each module has its own: what a restart of Docker or of Prometheus left behind is not the next one's.
    """
    remove_containers()  # they would hold the networks
    compose("down", "--volumes", "--remove-orphans", "--timeout", "2")
    try:
        compose("build", "--quiet", seconds=600)
        compose("up", "--detach", "--wait", "--wait-timeout", "180", *services(), seconds=240)
        yield Stack()
    except BaseException:
        print(compose("logs", "--tail", "40"))
        raise
    finally:
        compose("down", "--volumes", "--remove-orphans", "--timeout", "2")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real image registry on loopback (Debian's docker-registry), which Docker trusts there without TLS."""
    binary = shutil.which("docker-registry")
    if binary is None:
        pytest.skip("needs Debian's docker-registry")
    address = "127.0.0.1:5000"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'data'}}}}}\nhttp: {{addr: {address}}}\n"
    )
    server = subprocess.Popen(
        [binary, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually("the registry answers", 20, lambda: get(f"http://{address}/v2/") is not None)
        yield address
    finally:
        server.terminate()
        server.wait(10)
