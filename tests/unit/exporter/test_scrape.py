import importlib.util
import zlib

import pytest
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
def test_the_format_is_the_one_asked_for(begins):
    assert [accept for accept in ACCEPTED[begins] if not negotiate(accept).startswith(begins)] == []


def test_igzip_packs_where_it_has_wheels(monkeypatch):
    assert scrape._zlib is isal_zlib
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    try:
        assert importlib.reload(scrape)._zlib is zlib
    finally:
        monkeypatch.undo()
        importlib.reload(scrape)
