"""The discoveries that there are, and how a new one is added: by one file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infercanary.command.settings import UsageError
from infercanary.exporter import discovery
from infercanary.exporter.app import Exporter
from infercanary.exporter.config import check, file_type
from infercanary.exporter.discovery import base
from infercanary.exporter.discovery.base import Container, DiscoveryKind, Reloadable, register, registered
from infercanary.exporter.discovery.static import StaticDiscovery, StaticProbe

NEW_DISCOVERY = """
from typing import Any

import msgspec

from infercanary.command.settings import UsageError
from infercanary.exporter.discovery.base import Container, DiscoveryKind, register


class NomadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    jobs: tuple[str, ...] = ()


class NomadDiscovery:
    source = "Nomad"
    up = False
    tried = True

    def __init__(self, settings: NomadSettings, changed: Any) -> None:
        self.containers = [Container(service="nomad", name=job, url="http://10.0.0.1:9798") for job in settings.jobs]

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def families(self) -> list[Any]:
        return []


def check(settings: NomadSettings, limits: Any, place: str) -> None:
    if "" in settings.jobs:
        raise UsageError(f"{place}.jobs: a job has no name; give it one")


register(
    DiscoveryKind(
        key="nomad", settings=NomadSettings, default=NomadSettings(), create=NomadDiscovery, check=check
    )
)
"""


@pytest.fixture
def nomad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A discovery whose only trace is its file."""
    (tmp_path / "nomad.py").write_text(NEW_DISCOVERY)
    monkeypatch.setattr(base, "_registered", {kind.key: kind for kind in registered()})
    monkeypatch.setattr(discovery, "__path__", [*discovery.__path__, str(tmp_path)])
    sys.modules.pop("infercanary.exporter.discovery.nomad", None)


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


@pytest.mark.usefixtures("nomad")
def test_a_new_discovery_takes_one_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, "docker: {enabled: false}\nnomad: {jobs: [search]}")
    exporter = Exporter(check(path), path)
    assert [*exporter.discoveries] == ["nomad", "probes"]
    [found] = exporter.discoveries["nomad"].containers
    assert (found.service, found.name) == ("nomad", "search")


@pytest.mark.usefixtures("nomad")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nomad: {job: x}", "nomad: unknown key `job`; did you mean `jobs`. known keys: jobs"),
        ("nomad: {jobs: ['']}", "nomad.jobs: a job has no name"),
        ("nomads: {}", "unknown key `nomads`; did you mean `nomad`. known keys: listen"),
    ],
)
def test_the_settings_of_a_new_discovery_are_checked(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line.replace("`", ".")):
        check(config_file(tmp_path, text))


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
    config = file_type()(docker={kind.key: kind for kind in registered()}["docker"].settings(enabled=False))  # type: ignore[call-arg]
    assert [*map(type, Exporter(config, None).discoveries.values())] == [StaticDiscovery]
