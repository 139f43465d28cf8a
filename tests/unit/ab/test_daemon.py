"""What an experiment left is distinguished from one that still runs; messages of Docker become one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from infercanary.ab import daemon
from infercanary.ab.daemon import (
    OWNER_LABEL,
    SETTINGS,
    UNTIL_LABEL,
    Daemon,
    RunningContainer,
    _archive,
    _port,
    is_stale,
    last_line,
    one_line,
    owner,
)
from infercanary.ab.interruption import Interruption
from infercanary.command.settings import UsageError

NOW = 1_800_000_000.0


def labels(of: str, until: float = NOW + 60) -> dict[str, str]:
    return {OWNER_LABEL: of, UNTIL_LABEL: f"{until:.0f}"}


def test_a_running_experiment_is_not_stale() -> None:
    assert not is_stale(labels(owner(os.getpid())), NOW)


def test_what_is_past_its_time_is_stale_wherever_it_was_started() -> None:
    assert is_stale(labels("another-host 1 5", NOW - 1), NOW)
    assert not is_stale(labels("another-host 1 5"), NOW)


@pytest.mark.parametrize(
    ("inspected", "urls"),
    [
        ({"NetworkSettings": None}, []),
        ({"NetworkSettings": {"IPAddress": None, "Ports": None, "Networks": None}}, []),
        (
            {"NetworkSettings": {"Networks": {"a": None, "b": {"IPAddress": None}, "c": {"IPAddress": "10.0.0.5"}}}},
            ["http://10.0.0.5:9798"],
        ),
    ],
)  # fmt: skip
def test_nulls_of_inspect_are_missing_values(inspected: dict[str, Any], urls: list[str]) -> None:
    client: Any = SimpleNamespace(inspect_container=lambda _: {**inspected, "State": None})
    container = RunningContainer(client, "id", 9798)
    container.find("127.0.0.1")
    assert list(container.urls) == urls
    assert "exit code" in container.ended()


def test_what_a_process_left_that_ended_is_stale() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = owner(child.pid)
    assert not is_stale(labels(mine), NOW)
    child.communicate(b"\n")
    assert is_stale(labels(mine), NOW)
    # The number went to another process.
    host, pid, started = owner(os.getpid()).split(" ")
    assert is_stale(labels(f"{host} {pid} {int(started) - 1}"), NOW)


def test_a_hidden_process_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host whose /proc hides others' processes (hidepid), with somebody else's experiment."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = owner(child.pid)
    monkeypatch.setattr(daemon, "_started", lambda pid: "")

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as context:
        context.setattr(os, "kill", forbidden)
        assert not is_stale(labels(theirs), NOW)
    child.communicate(b"\n")
    assert is_stale(labels(theirs), NOW)


@pytest.mark.parametrize("of", ["", "x", "x y", "x -1 3"])
def test_labels_of_another_form_are_left_alone(of: str) -> None:
    assert not is_stale(labels(of), NOW)
    assert not is_stale({}, NOW)
    assert not is_stale({UNTIL_LABEL: "²"}, NOW)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"first\nlast\n\n", "last"),
        (b"a\r\nCUDA error: \x1b[31mout of memory\x07\r\n", "CUDA error: ?[31mout of memory?"),
        ("µ \udcff".encode("utf-8", "surrogateescape"), "µ \ufffd"),
        (b"x" * 5000, "x" * 300),
    ],
)
def test_last_words(log: bytes, line: str) -> None:
    assert last_line(log) == line


def test_what_docker_says_is_one_line() -> None:
    assert one_line(docker.errors.APIError("x", explanation="no space\nleft")) == "no space left"
    assert one_line(docker.errors.DockerException('{"message": "not\\tfound"}')) == "not found"
    assert one_line(ConnectionResetError()) == "ConnectionResetError"


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        ("manifest for h/i:1 not found: manifest unknown: manifest unknown", "build it, or fix the name"),
        ('Head "http://h/v2/i/manifests/1": no basic auth credentials', "log in with `docker login`, "),
        ("pull access denied for i, repository does not exist or may require 'docker login'", "log in "),
        ("toomanyrequests: You may increase the limit by authenticating and upgrading", "log in "),
        ('Get "http://h/v2/": dial tcp 127.0.0.1:1: connect: connection refused', "see that its registry answers"),
        ("download failed after attempts=6: unexpected EOF", "see that its registry answers"),
        ("failed to register layer: write /lib/a: no space left on device", "free some room"),
    ],
)  # fmt: skip
def test_a_pull_that_fails_names_the_fix(monkeypatch: pytest.MonkeyPatch, answer: str, fix: str) -> None:
    """In the words of a real registry and daemon."""
    registry = Registry({"error": answer})
    monkeypatch.setattr(daemon, "client", lambda: registry)
    with pytest.raises(UsageError) as error:
        Daemon("id", 60).image("h/i:1", Interruption(), print)
    assert f"cannot be pulled ({answer}); {fix}" in str(error.value)


def test_only_a_missing_image_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry({"status": "Pulling from i"})
    monkeypatch.setattr(daemon, "client", lambda: registry)
    said: list[str] = []
    pulled, here = (Daemon("id", 60).image("h/i:1", Interruption(), said.append) for _ in range(2))
    assert pulled.pull["pull"] > 0 and here.pull == {}
    assert said == ["pulling h/i:1: Pulling from i"]


class Registry:
    """Docker's client, of a daemon without an image until it is pulled; the pull has this one line."""

    def __init__(self, line: dict[str, str]) -> None:
        self._line, self._is_here = line, False

    def inspect_image(self, name: str) -> dict[str, Any]:
        if not self._is_here:
            raise docker.errors.ImageNotFound("no such image")
        return {"Id": "sha256:1", "Size": 5, "Config": None}

    def pull(self, repository: str, **options: Any) -> Iterator[dict[str, str]]:
        self._is_here = "error" not in self._line
        yield self._line


def test_settings_as_an_archive() -> None:
    with tarfile.open(fileobj=io.BytesIO(_archive(SETTINGS, "a: µ\n"))) as archive:
        folder, file = archive.getmembers()
        assert (folder.name, folder.isdir(), folder.mode) == ("infercanary-ab", True, 0o755)
        assert (f"/{file.name}", file.mode) == (SETTINGS, 0o444)
        read = archive.extractfile(file)
        assert read is not None and read.read().decode() == "a: µ\n"


def test_the_port_of_an_image() -> None:
    assert _port("i", {}) == 9798
    assert _port("i", {"infercanary.port": "80"}) == 80
    assert _port("i", {"infercanary.port": "80", "infercanary.socket": "unix:///x"}) == 80
    for wrong in ("0", "65536", "http", "", "²"):
        with pytest.raises(
            UsageError, match=r"image i: label infercanary\.port: .* is not a port; write a number"
        ):
            _port("i", {"infercanary.port": wrong})
    with pytest.raises(
        UsageError, match=r"answers on a socket .*; have it listen on a port, or give --config"
    ):
        _port("i", {"infercanary.socket": "unix:///x"})


@pytest.mark.parametrize(
    ("host", "settings", "urls"),
    [
        (
            "127.0.0.1",
            {"Ports": {"9798/tcp": [{"HostPort": "32768"}]}, "Networks": {"n": {"IPAddress": "172.18.0.2"}}},
            ["http://127.0.0.1:32768", "http://172.18.0.2:9798"],
        ),
        (
            "fd00::9",
            {
                "Ports": {"9798/tcp": [{"HostPort": "32768"}, {"HostPort": "32769"}]},
                "Networks": {"n": {"IPAddress": "", "GlobalIPv6Address": "fd00::2"}},
            },
            ["http://[fd00::9]:32768", "http://[fd00::9]:32769", "http://[fd00::2]:9798"],
        ),
        (
            "127.0.0.1",
            {"IPAddress": "172.17.0.2", "Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
            ["http://172.17.0.2:9798"],
        ),
    ],
)
def test_a_probe_is_asked_at_addresses_of_both_kinds(
    host: str, settings: dict[str, Any], urls: list[str]
) -> None:
    client: Any = SimpleNamespace(inspect_container=lambda _: {"NetworkSettings": settings})
    container = RunningContainer(client, "id", 9798)
    container.find(host)
    assert container.urls == urls
