"""The config file changes while the exporter runs."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
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
        assert await run.value("infercanary_config_last_reload_successful") == 1

        path.write_text("probes: [{url: nonsense, service: s, container: c}]")

        async def refused() -> bool:
            return await run.value("infercanary_config_last_reload_successful") == 0

        await eventually(refused)
        assert await run.value("infercanary_up", container="two") == 1

        write(path, three=url)
        await eventually(lambda: run.value("infercanary_up", container="three"))
        assert await run.value("infercanary_config_last_reload_successful") == 1


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


async def test_what_a_changed_file_leaves_out_is_said_once(tmp_path: Path) -> None:
    """A file that was emptied lost the links of all alerts, and nothing said so before the next start."""
    path = tmp_path / "exporter.yaml"
    path.write_text("links: {runbooks: 'http://gpu-1:9797/runbooks'}\npoll_seconds: 2\n")
    live = LiveConfig(check(path), path, lambda config: None, ())
    with capture_logs() as lines:
        for text in ("", "poll_seconds: 3\n"):
            path.write_text(text)
            live._rests_until = 0.0
            await live.reload()
    said = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert len(said) == 1 and said[0].startswith("links.runbooks is empty")


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


async def test_another_sites_page_may_not_ask_for_a_reload(exporter: Any, tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    async with exporter(path=path) as run:

        async def asked(**headers: str) -> int:
            async with run.session.post(f"{run.url}/-/reload", headers=headers) as response:
                return int(response.status)

        assert await asked() == 200
        assert await asked(Origin=run.url) == 200
        assert await asked(**{"Sec-Fetch-Site": "same-origin"}) == 200
        assert await asked(Origin="https://elsewhere.example") == 403
        assert await asked(Origin="null") == 403
        assert await asked(**{"Sec-Fetch-Site": "cross-site"}) == 403


async def test_what_the_command_line_sets_is_no_change_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    config = msgspec.structs.replace(check(path), store="given.sqlite")
    live = LiveConfig(config, path, lambda _config: None, ["listen", "store"], ["store"])
    with capture_logs() as logs:
        await live.reload()
        assert logs == [], "nothing changed"
        path.write_text(path.read_text().replace("0.1", "3") + "listen: 127.0.0.1:1\n")
        await live.reload()
    assert [(line["event"], line.get("keys")) for line in logs] == [
        ("restart the exporter to apply these settings", "listen"),
        ("config reloaded", None),
    ]
    assert live.current.store == "given.sqlite"


async def test_however_many_ask_together_the_file_is_loaded_twice_and_none_sees_an_older_one(
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
    monkeypatch.setattr(reload, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(reload, "_TIMES_ITS_WORK", 0.0)
    seen: list[ExporterConfig] = []
    live = LiveConfig(check(path), path, seen.append, [])
    first = asyncio.create_task(live.reload())
    await asyncio.to_thread(began.wait, 20)
    path.write_text(path.read_text().replace("0.1", "3"))
    storm = [asyncio.create_task(live.reload()) for _ in range(500)]
    await asyncio.sleep(0)
    storm[0].cancel()
    may_end.set()
    await first
    assert live.current.poll_seconds != 3, "it read the file before"
    assert {type(each) for each in await asyncio.gather(*storm, return_exceptions=True)} == {
        asyncio.CancelledError,
        type(None),
    }
    assert live.current.poll_seconds == 3
    assert len(loads) == 2 and threading.get_ident() not in loads, "the event loop goes on meanwhile"
    assert [each.poll_seconds for each in seen] == [3]


@pytest.mark.parametrize(
    "odd", ["store: 'postgresql://u@[h/db'", "listen: " + "9" * 4000, "probes: [{url: 'http://['}]"]
)
async def test_whatever_is_in_the_file_the_next_one_is_followed(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    live = LiveConfig(check(path), path, lambda _config: None, [])
    path.write_text(odd)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        await live.reload()
    [ok] = live.families()
    assert [point.value for point in ok.points] == [0.0]
    write(path)
    await live.reload()
    [ok] = live.families()
    assert [point.value for point in ok.points] == [1.0]


async def test_a_fault_of_ours_in_reading_it_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(_path: Path, _given: object) -> ExporterConfig:
        raise ZeroDivisionError("odd")

    path = tmp_path / "exporter.yaml"
    write(path)
    live = LiveConfig(check(path), path, lambda _config: None, [])
    monkeypatch.setattr(reload, "check", faulty)
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        await live.reload()


async def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    write(path)
    live = LiveConfig(check(path), path, lambda _config: None, [])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is no file any more"):
        await asyncio.wait_for(live.reload(), 10)
