import importlib.util
import zlib

from isal import isal_zlib

from infercanary.exporter import scrape
from infercanary.exporter.scrape import negotiate
from tests.scenarios import cases

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@cases(["", BROWSER, "application/openmetrics-text;version=x", ";;,,=;q="])
def test_the_format_is_text_unless_another_is_asked_for(accept):
    assert negotiate(accept).startswith("text/plain; version=0.0.4")
    assert negotiate(PROMETHEUS_3).startswith("application/openmetrics-text; version=1.0.0")


def test_igzip_packs_where_it_has_wheels(monkeypatch):
    assert scrape._zlib is isal_zlib
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    try:
        assert importlib.reload(scrape)._zlib is zlib
    finally:
        monkeypatch.undo()
        importlib.reload(scrape)
