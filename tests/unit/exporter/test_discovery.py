"""The discoveries of the exporter."""

from __future__ import annotations

from pathlib import Path

import pytest

from infercanary.exporter.app import Exporter
from infercanary.exporter.config import ExporterConfig, check
from infercanary.exporter.discovery.base import Container, DiscoveryKind, Reloadable, register, registered
from infercanary.exporter.discovery.docker import DockerSettings
from infercanary.exporter.discovery.static import StaticDiscovery, StaticProbe


def config_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "exporter.yaml"
    path.write_text(text)
    return path


def test_docker_and_the_list_are_discoveries_like_any_other() -> None:
    keys = [kind.key for kind in registered()]
    assert {"docker", "probes"} <= set(keys)
    assert keys.index("docker") < keys.index("probes"), (
        "an entry of the list counts more than what Docker finds"
    )


def test_a_key_belongs_to_one_discovery() -> None:
    with pytest.raises(ValueError, match="docker"):
        register(
            DiscoveryKind(key="docker", settings=int, default=0, create=lambda _settings, _changed: None)
        )


def test_the_list_can_be_replaced_while_running_and_docker_cannot(tmp_path: Path) -> None:
    path = config_file(tmp_path, "docker: {enabled: false}")
    exporter = Exporter(check(path), path)
    listed = exporter.discoveries["probes"]
    assert isinstance(listed, Reloadable)
    listed.reconfigure((StaticProbe(url="http://a:1", service="s", container="c"),))
    assert listed.containers == [Container(service="s", name="c", url="http://a:1")]


def test_a_discovery_that_is_off_is_not_made() -> None:
    config = ExporterConfig(docker=DockerSettings(enabled=False))
    assert [*map(type, Exporter(config, None).discoveries.values())] == [StaticDiscovery]
