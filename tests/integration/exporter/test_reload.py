"""The config file changes while the exporter runs."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from infercanary.exporter.app import Exporter
from infercanary.exporter.config import check
from tests.scenarios import cases


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exporter.yaml"


def put(path, text):
    path.write_text(text)


def write(path, **probes):
    """Replace the file by a new file of the same name, as editors and Kubernetes do."""
    entries = ", ".join(
        f'{{url: "{url}", service: resnet, container: {name}}}' for name, url in probes.items()
    )
    new = path.with_suffix(".new")
    new.write_text(f"poll_seconds: 0.1\ndiscovery: none\nprobes: [{entries}]\n")
    os.replace(new, path)


async def test_a_changed_file_is_followed_and_a_bad_one_is_not(exporter, serve, good_probe, path):
    url = await serve(good_probe.app())
    write(path, one=url, refusing="http://127.0.0.1:1")
    async with exporter(path=path) as run:
        await run.appears("infercanary_up", container="one")
        await run.appears("infercanary_poll_failures_total", container="refusing")

        write(path, two=url, refusing=url)  # the container's address is now correct
        await run.appears("infercanary_up", container="two")
        await run.appears("infercanary_up", container="refusing")
        assert await run.value("infercanary_poll_failures_total", container="refusing") >= 1
        assert 'container="one"' not in (await run.get())[1]  # a removed container still has series

        put(path, "probes: [{url: nonsense, service: s, container: c}]")
        await run.becomes(0, "infercanary_config_last_reload_successful")
        assert await run.value("infercanary_up", container="two") == 1

        asked = good_probe.cursors.count("")
        write(path, two=url, three=url)
        await run.appears("infercanary_up", container="three")
        await run.becomes(1, "infercanary_config_last_reload_successful")
        assert good_probe.cursors.count("") == asked + 1  # a container in both files keeps its cursor


async def test_a_reload_says_what_waits_for_the_next_start(path):
    write(path)
    exporter = Exporter(check(path), path)
    put(path, "poll_seconds: 3\nlisten: 127.0.0.1:1\n")
    with capture_logs() as logs:
        await exporter.reload()
    assert "changes of listen, store, discovery and judge apply after a restart" in logs[-1]["event"]
    assert exporter.config.poll_seconds == 3
    assert exporter.collector.config is exporter.config


@cases(
    [
        lambda path: path.write_text("listen: " + "9" * 4000),
        Path.unlink,
    ],
)
async def test_whatever_the_file_is_the_next_one_is_followed(breaks, path):
    write(path)
    exporter = Exporter(check(path), path)
    breaks(path)
    for _ in range(2):
        with capture_logs() as logs:
            await exporter.reload()
        assert logs[-1]["error"].startswith(f"{path}: ")
        assert not exporter._config_ok
    write(path)
    await exporter.reload()
    assert exporter._config_ok
