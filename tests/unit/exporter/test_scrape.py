from __future__ import annotations

import gzip
import importlib.util
import zlib
from types import ModuleType

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from isal import isal_zlib

from infercanary.exporter import scrape
from infercanary.exporter.scrape import negotiate

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
ACCEPTED = {
    f"{TEXT}; version=0.0.4": (
        "",
        "*/*",
        BROWSER,
        f"{OPENMETRICS};version=0.0.1",
        f"{OPENMETRICS};version=x",
        ";;,,=;q=",
    ),
    f"{OPENMETRICS}; version=1.0.0": (PROMETHEUS_3, OPENMETRICS),
    f"{TEXT}; version=1.0.0": (f"{TEXT};version=1.0.0",),
}


@pytest.mark.parametrize("begins", ACCEPTED)
def test_the_format_is_the_one_asked_for(begins: str) -> None:
    assert [accept for accept in ACCEPTED[begins] if not negotiate(accept).startswith(begins)] == []


@pytest.mark.parametrize("module", [isal_zlib, zlib])
async def test_what_is_packed_is_gzip_of_the_same_bytes(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "_zlib", module)
    blocks = [b"infercanary_up %d\n" % number * 1000 for number in range(20)]

    async def answer(request: web.Request) -> web.StreamResponse:
        return await scrape.send(request, blocks, "text/plain")

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, TestClient(server, auto_decompress=False) as client:
        packed = await (await client.get("/", headers={"Accept-Encoding": "gzip"})).read()
        plain = await (await client.get("/", headers={"Accept-Encoding": "identity"})).read()
    assert plain == gzip.decompress(packed) == b"".join(blocks)
    assert len(packed) < sum(map(len, blocks)) / 20


def test_igzip_packs_where_it_has_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scrape._zlib is isal_zlib
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    try:
        assert importlib.reload(scrape)._zlib is zlib
    finally:
        monkeypatch.undo()
        importlib.reload(scrape)
