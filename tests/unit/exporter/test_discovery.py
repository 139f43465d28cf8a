"""The discoveries of the exporter."""

from infercanary.exporter.app import Exporter
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.static import StaticProbe, listed


def test_a_source_that_is_off_is_not_followed():
    assert Exporter(ExporterConfig(discovery="none")).discoveries == []
    [docker] = Exporter(ExporterConfig(), None).discoveries
    assert docker.source.name == "Docker"


def test_an_entry_of_the_list_is_a_container():
    [container] = listed((StaticProbe(url="http://a:1", service="s", container="c"),))
    assert (container.key, container.url, container.id) == (("", "s", "c"), "http://a:1", "")
