"""Pages of the exporter: status, health, formats and compression; promtool checks the metrics."""

import asyncio
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest
import yaml
from aiohttp import web
from yarl import URL

from infercanary.contract.report import Run
from infercanary.exporter import app, limits, status
from infercanary.exporter.config import Links
from infercanary.exporter.status import SCRIPT_SOURCE
from tests.programs import ROOT

NOTHING_LISTENS = "http://127.0.0.1:1"


async def test_the_runbooks_have_a_place_for_each_alert_and_need_nobody_else(watch):
    links = {"grafana": "http://grafana.example", "runbooks": "https://canary.example:9797/runbooks"}
    async with watch(links=Links(**links)) as run:
        status, text = await run.get("/runbooks")
        assert status == 200
        assert await run.labels("infercanary_links_info") == [links]
        page = await run.page()
        assert '<a href="runbooks">' in page
        assert "infercanary.enable" in page, "an empty page shows how to add a container"
    rules = yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text())
    for alert in {rule["alert"] for group in rules["groups"] for rule in group["rules"]}:
        assert f'<h3 id="{alert.lower()}">{alert}</h3>' in text
    # The page loads nothing from other addresses, and no link is broken.
    places = {*re.findall(r' id="([^"]+)"', text)}
    leads = re.findall(r'href="([^"]+)"', text)
    assert {lead[1:] for lead in leads if lead.startswith("#")} <= places
    assert all(lead.startswith(("#", "https://")) or lead == "./" for lead in leads)
    assert not re.search(r"<(script|img|link|iframe)\b|\bsrc=|@import|url\(", text)


async def test_the_page_says_what_is_wrong_with_the_exporter(exporter, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "memory_limit", lambda: limits.BASE_BYTES + limits.PROBE_BYTES)
    path = tmp_path / "exporter.yaml"
    probes = "".join(f"- {{url: '{NOTHING_LISTENS}', service: s, container: c{n}}}\n" for n in range(3))
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE of_another_program (x)")
    path.write_text(f"discovery: none\nstore: {tmp_path}/other.sqlite\nprobes:\n{probes}")
    async with exporter(path=path) as run:
        await run.shows("2 containers are not polled", "Store unavailable")
        path.write_text("pol_seconds: 1")
        await run.shows("Changed settings were refused")


async def test_every_link_works_behind_a_path_prefix(watch, serve, good_probe):
    good_probe.runs = [Run(number, f"canary-{number}", 0.0, 0.0, "not_finite") for number in range(60)]
    async with watch({"down": NOTHING_LISTENS, "many": good_probe}) as run:

        async def forward(request):
            async with run.session.get(f"{run.url}/{request.match_info['rest']}") as response:
                return web.Response(body=await response.read(), content_type=response.content_type)

        proxy = web.Application()
        proxy.router.add_get("/infercanary/{rest:.*}", forward)
        begin = URL(await serve(proxy)) / "infercanary/"
        await run.appears("infercanary_up", container="many")
        await run.appears("infercanary_poll_failures_total", container="down")
        todo, seen = [begin], set[URL]()
        while todo:
            page = todo.pop().with_fragment(None)
            if page.host == begin.host and page not in seen:
                seen.add(page)
                async with run.session.get(page) as response:
                    assert response.status == 200, page
                    is_page, text = response.content_type == "text/html", await response.text()
                links = re.findall(r'(?:href|src|action)="([^"]+)"', text) if is_page else []
                todo += [page.join(URL(link)) for link in links]
    paths = {str(page.relative()).removeprefix("/infercanary/") for page in seen}
    assert paths == {"", "metrics", "runbooks", "-/healthy"}


async def test_readers_share_a_page_and_one_that_failed_is_made_again(watch, monkeypatch):
    made = 0

    async def slow(*_, **__):
        nonlocal made
        made += 1
        await asyncio.sleep(0.05)
        if made == 1:
            raise ValueError("a fault of ours")
        return b"%d" % made

    monkeypatch.setattr(status, "page", slow)
    async with watch() as run:
        assert (await run.get("/"))[0] == 500
        assert await asyncio.gather(*(run.get("/") for _ in range(8))) == [(200, "2")] * 8
        monkeypatch.setattr(app, "_PAGE_TIMES", 0.0)
        await run.shows("3")


async def test_formats_packing_and_what_each_answer_forbids(watch, good_probe):
    async with watch({"one": good_probe}, poll_seconds=30.0) as run:
        await run.appears("infercanary_up")

        async def ask(path="/metrics", method="GET", packing="identity", accept=""):
            headers = {"Accept-Encoding": packing, "Accept": accept}
            async with run.session.request(method, run.url + path, headers=headers) as response:
                return response.headers, await response.text()

        plain, text = await ask()
        assert plain["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        packed, unpacked = await ask(packing="gzip")
        assert packed["Content-Encoding"] == "gzip"
        assert [line for line in text.splitlines() if "latency" in line and line not in unpacked] == []
        openmetrics, text = await ask(accept="application/openmetrics-text;version=1.0.0")
        assert openmetrics["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert text.endswith("\n# EOF\n")
        for packing in ("identity", "gzip"):
            assert (await ask(method="HEAD", packing=packing))[1] == ""
        assert (await run.get("/metrics", "POST"))[0] == 405
        for path in ("/", "/metrics", "/-/healthy", "/nowhere"):
            headers, _ = await ask(path)
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src")
            assert re.findall(r"script-src ([^;]*)", policy) == [SCRIPT_SOURCE]
            assert headers["X-Content-Type-Options"] == "nosniff"
    assert "unsafe" not in SCRIPT_SOURCE


async def test_promtool_finds_no_mistake(watch, good_probe):
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not on PATH; it comes with Prometheus")
    async with watch({"one": good_probe, "refusing": NOTHING_LISTENS}) as run:
        await run.appears("infercanary_poll_failures_total")
        await run.appears("infercanary_up", container="one")
        text = (await run.get())[1].encode()
        check = await asyncio.to_thread(
            subprocess.run, [promtool, "check", "metrics"], input=text, capture_output=True
        )
        assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")
