"""What an experiment left is distinguished from one that still runs; messages of Docker become one line."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import docker.errors
import pytest

from infercanary.ab import daemon
from infercanary.ab.container import SETTINGS, probe_urls, tar_archive
from infercanary.ab.daemon import (
    LABEL,
    OWNER_LABEL,
    UNTIL_LABEL,
    Daemon,
    _port,
    hold,
    is_stale,
    one_line,
    place,
)
from infercanary.ab.interruption import Interruption
from infercanary.ab.turn import last_line
from infercanary.command.settings import UsageError

SOON, PAST = (f"{time.time() + seconds:.0f}" for seconds in (3600, -1))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({LABEL: "over", OWNER_LABEL: place(), UNTIL_LABEL: SOON}, True),  # no process holds it
        ({LABEL: "over", OWNER_LABEL: "another-host/net:[1]", UNTIL_LABEL: SOON}, False),
        ({LABEL: "over", OWNER_LABEL: "another-host/net:[1]", UNTIL_LABEL: PAST}, True),
        ({LABEL: "over", OWNER_LABEL: "another-host 1 5", UNTIL_LABEL: "²"}, False),
        ({LABEL: "x" * 500, OWNER_LABEL: place()}, False),
        ({}, False),
    ],
)
def test_what_an_experiment_left_is_stale(labels: Mapping[str, str], expected: bool) -> None:
    assert is_stale(labels) is expected


def test_an_experiment_of_another_process_is_stale_when_that_has_ended() -> None:
    code = "from infercanary.ab.daemon import hold; held = hold('theirs'); print(1, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline()
    labels = {LABEL: "theirs", OWNER_LABEL: place(), UNTIL_LABEL: SOON}
    assert not is_stale(labels)
    child.kill()
    child.communicate()
    assert is_stale(labels)
    with hold("theirs"):
        assert not is_stale(labels)


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


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (docker.errors.APIError("x", explanation="no space\nleft"), "no space left"),  # type: ignore[no-untyped-call]
        (docker.errors.DockerException('{"message": "not\\tfound"}'), "not found"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_what_docker_says_is_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


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
    monkeypatch.setattr(daemon, "connect", lambda: registry)
    with closing(Daemon("pull", 60)) as here, pytest.raises(UsageError) as error:
        here.image("h/i:1", Interruption(), print)
    assert f"cannot be pulled ({answer}); {fix}" in str(error.value)


def test_only_a_missing_image_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry({"status": "Pulling from i"})
    monkeypatch.setattr(daemon, "connect", lambda: registry)
    said: list[str] = []
    with closing(Daemon("pull", 60)) as made:
        pulled, here = (made.image("h/i:1", Interruption(), said.append) for _ in range(2))
    assert pulled.pull["pull"] > 0 and here.pull == {}
    assert said == ["pulling h/i:1: Pulling from i"]


class Registry:
    """Docker's client, of a daemon without an image until it is pulled; the pull has this one line."""

    def __init__(self, line: dict[str, str]) -> None:
        self._line, self._is_here = line, False

    def close(self) -> None:
        pass

    def inspect_image(self, name: str) -> dict[str, Any]:
        if not self._is_here:
            raise docker.errors.ImageNotFound("no such image")  # type: ignore[no-untyped-call]
        return {"Id": "sha256:1", "Size": 5, "Config": None}

    def pull(self, repository: str, **options: Any) -> Iterator[dict[str, str]]:
        self._is_here = "error" not in self._line
        yield self._line


def test_settings_as_an_archive() -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_archive(SETTINGS, "a: µ\n"))) as archive:
        folder, file = archive.getmembers()
        assert (folder.name, folder.isdir(), folder.mode) == ("infercanary-ab", True, 0o755)
        assert (f"/{file.name}", file.mode) == (str(SETTINGS), 0o444)
        read = archive.extractfile(file)
        assert read is not None and read.read().decode() == "a: µ\n"


@pytest.mark.parametrize(
    ("labels", "port"),
    [
        ({}, 9798),
        ({"infercanary.port": "80"}, 80),
        ({"infercanary.port": "80", "infercanary.socket": "unix:///x"}, 80),
        *(({"infercanary.port": wrong}, r"label infercanary\.port: .* is not a port; write a number")
          for wrong in ("0", "65536", "http", "²")),
        ({"infercanary.socket": "unix:///x"}, r"answers on a socket .*; have it listen on a port, or give config="),
    ],
)  # fmt: skip
def test_the_port_of_an_image(labels: Mapping[str, str], port: int | str) -> None:
    if isinstance(port, int):
        assert _port("i", labels) == port
    else:
        with pytest.raises(UsageError, match=f"image i: .*{port}"):
            _port("i", labels)


@pytest.mark.parametrize(
    ("host", "settings", "urls"),
    [
        ("", {"IPAddress": None, "Ports": None, "Networks": None}, []),
        ("", {"Networks": {"a": None, "b": {"IPAddress": None}, "c": {"IPAddress": "10.0.0.5"}}},
         ["http://10.0.0.5:9798"]),
        ("", {"Ports": {"9798/tcp": [{"HostPort": "32768"}]}, "Networks": {"n": {"IPAddress": "172.18.0.2"}}},
         ["http://127.0.0.1:32768", "http://172.18.0.2:9798"]),
        ("tcp://[fd00::9]:2375",
         {"Ports": {"9798/tcp": [{"HostPort": "32768"}, {"HostPort": "32769"}]},
          "Networks": {"n": {"IPAddress": "", "GlobalIPv6Address": "fd00::2"}}},
         ["http://[fd00::9]:32768", "http://[fd00::9]:32769", "http://[fd00::2]:9798"]),
        ("", {"IPAddress": "172.17.0.2", "Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
         ["http://172.17.0.2:9798"]),
    ],
)  # fmt: skip
def test_a_probe_is_asked_at_addresses_of_both_kinds(
    monkeypatch: pytest.MonkeyPatch, host: str, settings: dict[str, Any], urls: list[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert probe_urls(settings, 9798) == urls
