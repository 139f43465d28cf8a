"""The config file changes while the exporter runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from infercanary.exporter import app
from infercanary.exporter.app import Exporter
from infercanary.exporter.config import ExporterConfig, check

TEMPLATE = """
poll_seconds: 0.1
discovery: none
probes: [{probes}]
"""


def write(path: Path, **probes: str) -> None:
    """Replace the file as editors and Kubernetes do: another file under the same name."""
    entries = ", ".join(
        f'{{url: "{url}", service: resnet, container: {name}}}' for name, url in probes.items()
    )
    new = path.with_suffix(".new")
    new.write_text(TEMPLATE.format(probes=entries))
    os.replace(new, path)


async def test_a_changed_file_is_followed_and_a_bad_one_is_not(
    exporter: Any, eventually: Any, serve: Any, good_probe: Any, tmp_path: Path
) -> None:
    path = tmp_path / "exporter.yaml"
    url = await serve(good_probe.app())
    write(path, one=url)
    async with exporter(path=path) as run:
        await eventually(lambda: run.value("infercanary_up", container="one"))

        write(path, two=url)
        await eventually(lambda: run.value("infercanary_up", container="two"))
        _, text = await run.get()
        assert 'container="one"' not in text, "nothing of a container that is gone stays"

        path.write_text("probes: [{url: nonsense, service: s, container: c}]")

        async def loaded(value: float) -> bool:
            return bool(await run.value("infercanary_config_last_reload_successful") == value)

        await eventually(lambda: loaded(0))
        assert await run.value("infercanary_up", container="two") == 1

        write(path, three=url)
        await eventually(lambda: run.value("infercanary_up", container="three"))
        await eventually(lambda: loaded(1))


async def test_a_probe_that_stays_keeps_its_counts_over_a_reload(
    exporter: Any, eventually: Any, serve: Any, good_probe: Any, tmp_path: Path
) -> None:
    path = tmp_path / "exporter.yaml"
    url = await serve(good_probe.app())
    write(path, one=url, refusing="http://127.0.0.1:1")
    async with exporter(path=path) as run:
        await eventually(lambda: run.value("infercanary_up", container="one"))
        await eventually(lambda: run.value("infercanary_poll_failures_total", container="refusing"))
        write(path, one=url, refusing=url)  # fixed: the same container at another address
        await eventually(lambda: run.value("infercanary_up", container="refusing"))
        assert await run.value("infercanary_poll_failures_total", container="refusing") >= 1
        assert good_probe.cursors.count("") <= 2, "the one that stayed was not asked from the start again"


def live(path: Path) -> Exporter:
    return Exporter(check(path), path)


async def test_a_reload_says_what_waits_for_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    exporter = live(path)
    path.write_text(path.read_text().replace("0.1", "3") + "listen: 127.0.0.1:1\n")
    with capture_logs() as logs:
        await exporter.reload()
    assert "listen, store, discovery and judge apply from the next start on" in logs[-1]["event"]
    assert exporter.config.poll_seconds == 3 and exporter.collector.config is exporter.config


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda path: path.write_text("store: 'postgresql://u@[h/db'"), "store: "),
        (lambda path: path.write_text("listen: " + "9" * 4000), ""),
        (lambda path: path.write_text("probes: [{url: 'http://['}]"), ""),
        (lambda path: path.unlink(), "cannot be read"),
    ],
)
async def test_whatever_the_file_is_the_next_one_is_followed(
    breaks: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    exporter = live(path)
    breaks(path)
    for _ in range(2):
        with capture_logs() as logs:
            await exporter.reload()
        assert logs[-1]["error"].startswith(f"{path}: ") and message in logs[-1]["error"]
        assert not exporter._config_ok
    write(path)
    await exporter.reload()
    assert exporter._config_ok


async def test_a_fault_of_ours_in_reading_it_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(_path: Path) -> ExporterConfig:
        raise ZeroDivisionError("odd")

    path = tmp_path / "exporter.yaml"
    write(path)
    exporter = live(path)
    monkeypatch.setattr(app, "check", faulty)
    with capture_logs() as logs:
        await exporter.reload()
    assert logs[-1]["error"] == "odd" and not exporter._config_ok
