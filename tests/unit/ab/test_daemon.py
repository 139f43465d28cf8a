"""`ab` distinguishes containers of ended and running experiments, and shortens Docker's messages to one line."""

import io
import tarfile
import time
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import docker
import docker.errors
import pytest
from msgspec.structs import astuple

from infercanary.ab.container import SETTINGS, Container, probe_port, probe_urls
from infercanary.ab.daemon import LABEL, digests_of, find_image, is_overdue, labels, one_line, published_host
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import last_line
from infercanary.command.interruption import Interruption
from infercanary.command.settings import UsageError
from tests.scenarios import cases, typed


@cases([(-1.0, True), (3600.0, False), ("²", False), ("", False)])
def test_an_experiment_is_overdue_after_its_time(until, expected):
    text = f"{time.time() + until:.0f}" if isinstance(until, float) else until
    assert is_overdue({LABEL: text}) is expected
    assert not is_overdue(labels(0.0))


LOGS = r"""
                                       |
\n \n                                  |
first\nlast\n\n                         | last
a\r\nCUDA error: out of memory\r\n     | CUDA error: out of memory
\xc2\xb5 \xff                          | \u00b5 \ufffd
"""


@cases(LOGS)
def test_last_words(log, line):
    assert last_line(log.encode("latin-1")) == line


@cases(
    [
        (docker.errors.APIError("x", explanation="no space\nleft"), "no space left"),
        (docker.errors.DockerException("not\tfound"), "not found"),
        (docker.errors.APIError("x", explanation="of a registry: \x1b[2J"), "of a registry: ?[2J"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_messages_of_docker_are_one_line(error, line):
    assert one_line(error) == line


def test_a_pull_that_fails_says_why_and_what_to_do():
    answer = 'Get "http://h/v2/": dial tcp 127.0.0.1:1: connect: connection refused'
    client: Any = Registry({"error": answer})
    with pytest.raises(UsageError) as error:
        find_image(client, "h/i:1", Interruption())
    assert f"cannot be pulled ({answer}); build the image, fix its name, log in" in str(error.value)


def test_only_a_missing_image_is_pulled(capsys):
    client: Any = Registry({"status": "Pulling from i"})
    pulled, here = (find_image(client, "h/i:1", Interruption()) for _ in range(2))
    assert pulled[1]["pull"] > 0
    assert here[1] == {}
    assert capsys.readouterr().err == "pulling h/i:1\n"


DIGESTS = """
# A built image, and an image that Docker pulled: the kind of the registry's digest is unknown.
{Id: c, RepoDigests: []} | [c, "", ""]
{Id: c, RepoDigests: [h/i@m, other/i@n]} | [c, m, ""]
{Id: c, RepoDigests: ~} | [c, "", ""]
# Docker with containerd's image store: the id is a digest of the registry.
{Id: i, RepoDigests: [h/i@i], Descriptor: {mediaType: application/vnd.oci.image.index.v1+json, digest: i}} | ["", "", i]
{Id: i, Descriptor: {mediaType: application/vnd.docker.distribution.manifest.list.v2+json}} | ["", "", i]
{Id: m, Descriptor: {mediaType: application/vnd.oci.image.manifest.v1+json, digest: m}} | ["", m, ""]
"""


@pytest.mark.parametrize(("image", "digests"), typed(DIGESTS))
def test_the_known_digests_of_an_image(image, digests):
    assert [*astuple(digests_of(image))] == digests


class Registry:
    """Docker client of a daemon that must pull the image; the pull prints this line."""

    def __init__(self, line):
        self._line, self._is_here = line, False

    def inspect_image(self, name):
        if not self._is_here:
            raise docker.errors.ImageNotFound("no such image")
        return {"Id": "sha256:1", "Size": 5, "Config": None}

    def pull(self, repository, **options):
        self._is_here = "error" not in self._line
        yield self._line


def docker_client():
    answers = {"inspect_image": {"Id": "sha256:1"}, "inspect_container": {}}
    return Mock(
        base_url="http+docker://localhost",
        **{f"{name}.return_value": answer for name, answer in answers.items()},
    )


def test_settings_are_copied_into_the_container():
    """The Docker daemon may be unable to read this host's files."""
    client, copied = docker_client(), []
    client.put_archive.side_effect = lambda id_, path, archive: copied.append((path, archive))
    probe = {"canaries": {"c": {"target": "µ"}}}
    assert [*Container(client, Side(image="i", probe=probe), 60, Mock(), Interruption()).start()] == []
    [(path, archive)] = copied
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        [file] = opened.getmembers()
        assert (f"{path}{file.name}", file.mode) == (SETTINGS, 0o644)
        assert "µ" in opened.extractfile(file).read().decode()


@cases(
    [
        (None, True),
        (docker.errors.NotFound("it was never created"), True),
        (docker.errors.APIError("removal is already in progress"), False),
        (ConnectionResetError(), False),
    ],
)
def test_the_reaper_watches_a_container_until_docker_confirms_its_end(answer, is_forgotten):
    """The reaper watches even before the container exists, because the experiment's process may be killed meanwhile."""
    client, reaper, order = docker_client(), Mock(spec=Reaper), []
    client.remove_container.side_effect = answer
    client.create_container.side_effect = lambda *_, **options: order.append(options["name"])
    reaper.send.side_effect = order.append
    container = Container(client, Side(image="i"), 60, reaper, Interruption())
    container.start()
    container.end()
    name = order[1]
    assert order == [f"watch {name}", name, *([f"forget {name}"] if is_forgotten else [])]


PORTS = """
{}                                                              | 9798
{infercanary.port: "80"}                                        | 80
{infercanary.port: "80", infercanary.socket: "unix:///x"}       | 80
{infercanary.port: "0"}                                         | is not a port; set the label
{infercanary.port: "65536"}                                     | is not a port; set the label
{infercanary.port: http}                                        | is not a port; set the label
{infercanary.port: ²}                                           | is not a port; set the label
{infercanary.socket: "unix:///x"}                               | is 'unix:///x'.*or give config=
"""


@cases(typed(PORTS))
def test_the_port_of_an_image(labels, port):
    if isinstance(port, int):
        assert probe_port("i", labels) == port
    else:
        with pytest.raises(UsageError, match=f"image i: .*{port}"):
            probe_port("i", labels)


# Docker's host | True if `ab` runs in a container | network settings of the probe's container | addresses
BOTH = '{Ports: {9798/tcp: [{HostPort: "32768"}]}, Networks: {n: {IPAddress: 172.18.0.2}, m: ~}}'
ADDRESSES = f"""
127.0.0.1 | false | {{IPAddress: ~, Ports: ~, Networks: ~}} | []
127.0.0.1 | true  | {{IPAddress: ~, Ports: ~, Networks: ~}} | []
127.0.0.1 | false | {BOTH} | ["http://127.0.0.1:32768"]
127.0.0.1 | true  | {BOTH} | ["http://172.18.0.2:9798"]
docker    | true  | {BOTH} | ["http://docker:32768"]
"fd00::9" | false | {{Ports: {{9798/tcp: [{{HostPort: "1"}}, {{HostPort: "2"}}]}}}} | ["http://[fd00::9]:1", "http://[fd00::9]:2"]
"""


@cases(typed(ADDRESSES))
def test_a_probe_is_asked_at_its_published_port_or_from_a_container_at_its_address(
    host, inside, settings, urls, monkeypatch
):
    monkeypatch.setattr("infercanary.ab.container._IN_CONTAINER", ("/",) if inside else ())
    assert probe_urls(settings, 9798, host) == urls


HOSTS = """
unix:///run/docker.sock | 127.0.0.1
tcp://127.0.0.1:1       | 127.0.0.1
tcp://docker:1          | docker
"""


@cases(HOSTS)
def test_ports_are_published_on_the_daemons_host(address, host):
    with closing(docker.APIClient(address, version="1.41")) as client:
        assert published_host(client) == host
