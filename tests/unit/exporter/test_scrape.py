from __future__ import annotations

import gzip
import importlib.util
import sys
import zlib
from types import ModuleType

import pytest
from isal import isal_zlib

from infercanary.exporter.scrape import negotiate, packer

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "begins"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        (BROWSER, "text/plain; version=0.0.4"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=0.0.1", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=x", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0", "text/plain; version=1.0.0"),
        (";;,,=;q=", "text/plain; version=0.0.4"),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, begins: str) -> None:
    assert negotiate(accept).startswith(begins)


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
