"""What the exporter answers besides the samples: the status page, health, formats, packing, and promtool's opinion."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from yarl import URL

from infercanary.contract.report import Family, Point, Run
from infercanary.exporter import app, limits, status
from infercanary.exporter.config import Links
from infercanary.exporter.status import SCRIPT_SOURCE

ROOT = Path(__file__).parents[3]


async def test_the_page_teaches_where_there_is_nothing(exporter: Any, config: Any) -> None:
    async with exporter(config()) as run:
        status, text = await run.get("/")
        assert status == 200
        assert "infercanary.enable" in text
        assert "Docker does not answer" not in text


async def test_the_runbooks_have_a_place_for_each_alert_and_need_nobody_else(
    exporter: Any, config: Any
) -> None:
    links = Links(
        grafana="http://grafana.example",
        runbooks="https://canary.example:9797/runbooks",
    )
    async with exporter(config(links=links)) as run:
        status, text = await run.get("/runbooks")
        assert status == 200
        assert await run.labels("infercanary_links_info") == [
            {"grafana": "http://grafana.example", "runbooks": "https://canary.example:9797/runbooks"}
        ]
        page = (await run.get("/"))[1]
        assert '<a href="runbooks">' in page
    async with exporter(config()) as run:
        assert await run.labels("infercanary_links_info") == []
    rules = yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text(encoding="utf-8"))
    for alert in {rule["alert"] for group in rules["groups"] for rule in group["rules"]}:
        assert f'<h3 id="{alert.lower()}">{alert}</h3>' in text
    # Nothing that is loaded from elsewhere, and no link that leads nowhere.
    places = set(re.findall(r' id="([^"]+)"', text))
    leads = re.findall(r'href="([^"]+)"', text)
    assert {lead[1:] for lead in leads if lead.startswith("#")} <= places
    assert all(lead.startswith(("#", "https://")) or lead == "./" for lead in leads)
    assert not re.search(r"<(script|img|link|iframe)\b|\bsrc=|@import|url\(", text)


async def test_the_page_says_what_is_wrong_with_the_exporter(
    exporter: Any, eventually: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: limits.BASE_BYTES + limits.PROBE_BYTES)
    path = tmp_path / "exporter.yaml"
    probes = "".join(f"- {{url: 'http://127.0.0.1:1', service: s, container: c{n}}}\n" for n in range(3))
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE of_another_program (x)")
    good = f"discovery: none\nstore: {tmp_path}/other.sqlite\nprobes:\n{probes}"
    path.write_text(good)
    async with exporter(path=path) as run:

        async def says(*sentences: str) -> bool:
            text = (await run.get("/"))[1]
            return all(each in text for each in sentences)

        await eventually(lambda: says("2 containers are not polled", "judge&#39;s store fails"))
        assert not await says("Changed settings were refused")
        path.write_text("pol_seconds: 1")
        await eventually(lambda: says("Changed settings were refused"))


async def test_every_link_works_behind_a_path_prefix(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    """Through a reverse proxy that strips the prefix, from page to page."""
    good_probe.families = [
        Family(f"infercanary_f{n}", "gauge", "x", ("a",), (Point(("b",), 1.0),)) for n in range(50)
    ]
    good_probe.runs = [Run(n, f"canary-{n}", 0.0, 0.0, "not_finite") for n in range(60)]
    probes = [("down", "http://127.0.0.1:1"), ("many", await serve(good_probe.app()))]
    async with exporter(config(*probes)) as run:

        async def forward(request: web.Request) -> web.Response:
            async with run.session.get(f"{run.url}/{request.match_info['rest']}") as response:
                return web.Response(body=await response.read(), content_type=response.content_type)

        proxy = web.Application()
        proxy.router.add_get("/infercanary/{rest:.*}", forward)
        begin = URL(await serve(proxy)) / "infercanary/"
        await eventually(lambda: run.value("infercanary_up", container="many"))
        await eventually(lambda: run.value("infercanary_poll_failures_total", container="down"))
        todo, seen = [begin], set()
        while todo:
            page = todo.pop().with_fragment(None)
            if page.host != begin.host or page in seen:
                continue
            seen.add(page)
            async with run.session.get(page) as response:
                assert response.status == 200, page
                if response.content_type == "text/html":
                    found = re.findall(r'(?:href|src|action)="([^"]+)"', await response.text())
                    todo += [page.join(URL(link)) for link in found]
    paths = {str(page.relative()).removeprefix("/infercanary/") for page in seen}
    assert paths == {"", "metrics", "runbooks", "-/healthy"}


class Outline(HTMLParser):
    """The text of each heading and the names of all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.tags: set[str] = set()
        self._in_heading = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._in_heading = tag == "h2"
        assert not any(name.startswith("on") or "javascript:" in (value or "") for name, value in attrs)

    def handle_data(self, data: str) -> None:
        if self._in_heading and data.strip():
            self.headings.append(data)
            self._in_heading = False


async def test_the_page_shows_the_worst_first_and_escapes_what_probes_say(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    evil = "<script>alert(1)</script>"
    failing = type(good_probe)()
    failing.environment = {evil: f'"{evil}\x1b\u202e'}
    failing.runs = [
        Run(0, evil, 0.0, 0.0, "ok", (0.0123, 0.0125, 0.0130)),
        Run(1, evil, 0.0, 0.0, "not_finite", detail=evil),
    ]
    failing.families = [
        Family(
            "infercanary_canary_state", "gauge", "x", ("canary", "state"), (Point(("c", "failing"), 1.0),)
        ),
        Family(
            "infercanary_canary_failure_info", "gauge", "x", ("canary", "detail"), (Point(("c", evil), 1.0),)
        ),
    ]
    good_probe.runs = [Run(n, "resnet18", 0.0, 0.0, "ok", (0.01 + n / 1e5,)) for n in range(200)]
    probes = [
        ("well", await serve(good_probe.app())),
        ("failing", await serve(failing.app())),
        ("<i>down", "http://127.0.0.1:1"),
        ("other", await serve(web.Application())),
    ]
    async with exporter(config(*probes)) as run:
        await eventually(lambda: run.value("infercanary_poll_failures_total", container="<i>down"))
        await eventually(lambda: run.value("infercanary_poll_failures_total", container="other"))
        await eventually(lambda: run.value("infercanary_up", container="failing"))
        await eventually(lambda: run.value("infercanary_up", container="well"))
        _, text = await run.get("/")
        outline = Outline(text)
        assert outline.headings == ["<i>down", "other", "failing", "well"]
        assert not outline.tags & {"i", "img", "link", "iframe"}
        assert text.count("<script") == 1, "the page's own, whose hash its policy names"
        assert "last run not finite: &lt;script&gt;" in text
        assert "c is failing: &lt;script&gt;" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "unreachable: connection refused: nothing listens there" in text
        assert "http_status: HTTP 404: another server than a probe is on this port" in text
        assert ">12.5 ms<" in text, "the last latency that there was"
        assert "median of the last 120 runs" in text


async def test_every_answer_forbids_what_the_page_does_not_need(exporter: Any, config: Any) -> None:
    async with exporter(config()) as run:
        for path in ("/", "/metrics", "/-/healthy", "/nowhere"):
            async with run.session.get(run.url + path) as response:
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; style-src")
                [script] = re.findall(r"script-src ([^;]*)", policy)
                assert script == SCRIPT_SOURCE and "unsafe" not in script
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.status == (404 if path == "/nowhere" else 200)


async def test_readers_share_a_page_and_one_that_failed_is_made_again(
    exporter: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    async def slow(*_: Any, **__: Any) -> bytes:
        nonlocal made
        made += 1
        await asyncio.sleep(0.05)
        if made == 1:
            raise ValueError("a fault of ours")
        return b"%d" % made

    monkeypatch.setattr(status, "page", slow)
    async with exporter(config()) as run:
        assert (await run.get("/"))[0] == 500
        answers = await asyncio.gather(*(run.get("/") for _ in range(8)))
        assert answers == [(200, "2")] * 8
        monkeypatch.setattr(app, "_PAGE_TIMES", 0.0)
        await asyncio.sleep(1.5)
        assert await run.get("/") == (200, "3"), "a second later there is a new one"


async def test_formats_packing_and_head(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    async with exporter(config(("one", await serve(good_probe.app())), poll_seconds=30.0)) as run:
        await eventually(lambda: run.value("infercanary_up"))

        async def ask(method: str = "GET", **headers: str) -> tuple[Any, str]:
            headers = {"Accept-Encoding": "identity", **headers}
            async with run.session.request(method, run.url + "/metrics", headers=headers) as response:
                return response.headers, await response.text()

        plain, text = await ask()
        assert plain["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert text.startswith("# HELP ") and text.endswith("\n")
        packed, unpacked = await ask(**{"Accept-Encoding": "gzip"})
        assert packed["Content-Encoding"] == "gzip"
        stable = [line for line in text.splitlines() if "latency" in line]
        assert [line for line in unpacked.splitlines() if "latency" in line] == stable
        openmetrics, text = await ask(Accept="application/openmetrics-text;version=1.0.0")
        assert (
            openmetrics["Content-Type"]
            == "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
        )
        assert text.endswith("\n# EOF\n")
        for encoding in ("identity", "gzip"):
            _, empty = await ask("HEAD", **{"Accept-Encoding": encoding})
            assert empty == ""
        async with run.session.post(run.url + "/metrics") as response:
            assert response.status == 405


async def test_promtool_finds_no_mistake(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not on PATH; it comes with Prometheus")
    probes = [("one", await serve(good_probe.app())), ("refusing", "http://127.0.0.1:1")]
    async with exporter(config(*probes)) as run:
        await eventually(lambda: run.value("infercanary_poll_failures_total"))
        await eventually(lambda: run.value("infercanary_up", container="one"))
        _, text = await run.get()
        check = await asyncio.to_thread(
            subprocess.run, [promtool, "check", "metrics"], input=text.encode(), capture_output=True
        )
        assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")
