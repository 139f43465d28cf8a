from __future__ import annotations

import gzip
import importlib.util
import sys
import zlib
from types import ModuleType

import pytest
from isal import isal_zlib

from infercanary.exporter import scrape
from infercanary.exporter.expose import Pieces
from infercanary.exporter.scrape import OPENMETRICS, TEXT, TEXT_1, negotiate, packer, wants_gzip

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        (BROWSER, TEXT),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text; version=1.0.0; q=0.4, text/plain; version=0.0.4", TEXT),
        ("application/openmetrics-text;q=0.9,text/plain;q=0.9", OPENMETRICS),
        ("text/plain,application/openmetrics-text", TEXT),
        ("application/openmetrics-text;q=0,*/*", TEXT),
        ("application/*", OPENMETRICS),
        ("text/*;q=0.5,application/openmetrics-text;q=0.4", TEXT),
        ('text/plain;version="1.0.0"', TEXT_1),
        ("TEXT/PLAIN;VERSION=1.0.0;Q=0.9, text/plain;q=0.1", TEXT_1),
        ("text/plain;q=0,*/*;q=0.1", OPENMETRICS),
        ("image/png", TEXT),
        ("text/plain;q=high, application/openmetrics-text;q=0.1", OPENMETRICS),
        (";;,,=;q=", TEXT),
    ],
)
def test_the_format_is_the_one_liked_best(accept: str, content_type: str) -> None:
    assert negotiate(accept) == content_type


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=0.8", True),
        ("gzip;q=0", False),
        ("gzip;q=0.5, identity", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("br", False),
    ],
)
def test_gzip_only_where_it_is_welcome(accept_encoding: str, gzip: bool) -> None:
    assert wants_gzip(accept_encoding) is gzip


@pytest.mark.parametrize("module", [isal_zlib, zlib])
def test_what_is_packed_is_gzip_of_the_same_bytes(module: ModuleType) -> None:
    blocks = [b"infercanary_up %d\n" % number * 1000 for number in range(20)]
    packing = packer(module)
    packed = b"".join([*map(packing.compress, blocks), packing.flush()])
    assert gzip.decompress(packed) == b"".join(blocks)
    assert len(packed) < sum(map(len, blocks)) / 20


def test_igzip_packs_where_it_has_wheels() -> None:
    assert type(packer()) is type(packer(isal_zlib))


def test_without_a_wheel_of_igzip_zlib_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)  # so Python refuses to import it
    spec = importlib.util.find_spec("infercanary.exporter.scrape")
    assert spec is not None and spec.loader is not None
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert type(without.packer()) is type(packer(zlib))


@pytest.mark.parametrize(
    "sizes", [[100] * 5_000, [4 << 20], [300 << 10] * 3, [100] * 300 + [4 << 20] + [200 << 10] * 40, []]
)
def test_a_reader_who_falls_behind_holds_no_large_block(sizes: list[int]) -> None:
    texts = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
    blocks = list(scrape._blocks([Pieces(texts, sum(sizes))]))
    assert b"".join(blocks) == b"".join(texts)
    assert all(len(block) <= 256 << 10 for block in blocks)
    assert len(blocks) <= 1 + sum(sizes) // (64 << 10), "many small texts are joined"
