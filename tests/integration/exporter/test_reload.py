"""The config file changes while the exporter runs."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from infercanary.command.settings import UsageError
from infercanary.exporter import reload
from infercanary.exporter.config import ExporterConfig, check
from infercanary.exporter.reload import LiveConfig

TEMPLATE = """
poll_seconds: 0.1
docker: {{enabled: false}}
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


async def test_reload_by_request_answers_with_the_mistake(
    exporter: Any, eventually: Any, serve: Any, good_probe: Any, tmp_path: Path
) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    async with exporter(path=path) as run:
        write(path, one=await serve(good_probe.app()))
        assert await run.post("/-/reload") == (200, "reloaded\n")
        await eventually(lambda: run.value("infercanary_up", container="one"))
        path.write_text("pol_seconds: 1")
        status, line = await run.post("/-/reload")
        assert status == 400
        assert line.startswith(f"{path}: unknown key `pol_seconds`")
        path.unlink()
        status, line = await run.post("/-/reload")
        assert (status, line.count("\n")) == (400, 1)
        assert "cannot be read" in line
        status, _ = await run.get("/-/reload")
        assert status == 405


async def test_without_a_file_there_is_nothing_to_reload(exporter: Any, config: Any) -> None:
    async with exporter(config()) as run:
        status, line = await run.post("/-/reload")
        assert status == 400
        assert "start the exporter with --config PATH" in line


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
        await run.post("/-/reload")
        await eventually(lambda: run.value("infercanary_up", container="refusing"))
        assert await run.value("infercanary_poll_failures_total", container="refusing") >= 1
        assert good_probe.cursors.count("") <= 2, "the one that stayed was not asked from the start again"


def live(path: Path, **given: object) -> LiveConfig:
    return LiveConfig(check(path, given), path, lambda _config: None, given)


async def test_settings_that_need_a_restart_and_those_of_the_command_line_stay(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    config = live(path, store="given.sqlite")
    path.write_text(path.read_text().replace("0.1", "3") + "listen: 127.0.0.1:1\nstore: other.sqlite\n")
    with capture_logs() as logs:
        await config.reload()
    [restart] = [line for line in logs if "restart" in line["event"]]
    assert restart["keys"] == "listen"
    assert [line["event"] for line in logs if line["event"].startswith("links.runbooks is empty")]
    assert config.current.store == "given.sqlite" and config.current.poll_seconds == 3
    assert config.current.listen == "[::]:9797"


async def test_a_file_is_loaded_once_however_many_ask_and_none_sees_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    loads: list[int] = []
    began, may_end = threading.Event(), threading.Event()

    def slow(of: Path, _given: object) -> ExporterConfig:
        loads.append(threading.get_ident())
        config = check(of)
        began.set()
        may_end.wait(20)
        return config

    monkeypatch.setattr(reload, "check", slow)
    config = live(path)
    config.request()
    first = asyncio.create_task(config.reload())
    await asyncio.to_thread(began.wait, 20)
    path.write_text(path.read_text().replace("0.1", "30"))
    storm = [asyncio.create_task(config.reload()) for _ in range(500)]
    await asyncio.sleep(0)
    storm[0].cancel()
    may_end.set()
    await first
    assert config.current.poll_seconds != 30, "it read the file before"
    await asyncio.gather(*storm, return_exceptions=True)
    assert config.current.poll_seconds == 30
    assert len(loads) == 2 and threading.get_ident() not in loads, "the event loop goes on meanwhile"


async def test_a_reload_that_was_cancelled_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    config = live(path)
    path.write_text(path.read_text().replace("0.1", "30"))
    cancelled = asyncio.create_task(config.reload())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await config.reload()
    assert config.current.poll_seconds == 30


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda path: path.write_text("store: 'postgresql://u@[h/db'"), ""),
        (lambda path: path.write_text("listen: " + "9" * 4000), ""),
        (lambda path: path.write_text("probes: [{url: 'http://['}]"), ""),
        (lambda path: path.unlink(), "cannot be read"),
        (a_pipe, "is a pipe"),
    ],
)
async def test_whatever_the_file_is_the_next_one_is_followed(
    breaks: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_REST_SECONDS", 0.01)
    path = tmp_path / "exporter.yaml"
    write(path)
    config = live(path)
    breaks(path)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"{re.escape(str(path))}: .*{message}"):
            await asyncio.wait_for(config.reload(), 10)
        assert not config.ok
    write(path)
    await config.reload()
    assert config.ok


async def test_a_fault_of_ours_in_reading_it_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(_path: Path, _given: object) -> ExporterConfig:
        raise ZeroDivisionError("odd")

    path = tmp_path / "exporter.yaml"
    write(path)
    config = live(path)
    monkeypatch.setattr(reload, "check", faulty)
    config.request()
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        await config.reload()
