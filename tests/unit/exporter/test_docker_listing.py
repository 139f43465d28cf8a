from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.docker_listing import (
    ListedContainer,
    ListedImage,
    Listing,
    own_ids,
    read_entry,
)
from infercanary.judge.origin import Origin

HERE = "a" * 64
IMAGE = "sha256:" + "1" * 64
COMPOSE = {"com.docker.compose.service": "resnet", "com.docker.compose.config-hash": "c0ffee"}


def ours(labels: dict[str, str]) -> dict[str, str]:
    return {f"infercanary.{key}": value for key, value in labels.items()}


def listed(
    number: int = 1,
    networks: str = "app_default=172.18.0.5",
    mode: str = "app_default",
    given: dict[str, Any] | None = None,
    **labels: str,
) -> dict[str, Any]:
    """An entry of GET /containers/json, as Docker 20.10 gives it, in what is used of it.

    Args:
        number: In its name and id.
        networks: Name=address of each.
        mode: Of the network.
        given: Fields in place of these.
        labels: Of ours, without the prefix.
    """
    addresses = {}
    for name, _, address in (each.partition("=") for each in networks.split()):
        kind, none = ("GlobalIPv6Address", "IPAddress")[:: 1 if ":" in address else -1]
        addresses[name] = {"NetworkID": "f" * 64, kind: address, none: "", "Aliases": None}
    return {
        "Id": f"{number:064x}",
        "Names": [f"/app-resnet-{number}"],
        "Image": "registry.example:5000/team/resnet:2",
        "ImageID": IMAGE,
        "State": "running",
        "Labels": COMPOSE | ours({"enable": "true", **labels}),
        "HostConfig": {"NetworkMode": mode},
        "NetworkSettings": {"Networks": addresses},
        **(given or {}),
    }


def exporter(networks: str = "app_default=172.18.0.9", **given: Any) -> dict[str, Any]:
    mode = networks.partition("=")[0]
    return listed(0, networks, mode, {"Id": HERE, "Names": ["/app-exporter-1"], **given}, enable="false")


def containers(entries: Sequence[dict[str, Any]], *images: ListedImage) -> list[Container]:
    every = [read_entry(entry, ListedContainer) for entry in entries]
    found = filter(None, map(Listing(every, images, [HERE]).container, every))
    return sorted(found, key=lambda container: (container.service, container.name))


def seen(*entries: dict[str, Any], digests: Sequence[str] = ()) -> list[Container]:
    return containers([*entries, exporter()], ListedImage(IMAGE, [*digests]))


def one(entry: dict[str, Any], *digests: str) -> Container:
    [container] = seen(entry, digests=digests)
    return container


def test_the_identity_of_a_container() -> None:
    assert one(
        listed(), "other/name@sha256:bbb", "registry.example:5000/team/resnet@sha256:aaa"
    ) == Container(
        service="resnet",
        name="app-resnet-1",
        id=f"{1:064x}",
        image="registry.example:5000/team/resnet:2",
        image_id=IMAGE,
        image_digest="sha256:aaa",
        url="http://172.18.0.5:9798",
    )


@pytest.mark.parametrize(
    ("reference", "digests", "image", "digest"),
    [
        ("sha256:1234", "<none>@<none>", "sha256:1234", ""),
        ("redis", "mirror/redis@sha256:m redis@sha256:r", "redis", "sha256:r"),
        ("docker.io/library/redis:7", "mirror/redis@sha256:m docker.io/library/redis@sha256:r",
         "docker.io/library/redis:7", "sha256:r"),
        ("team/app@sha256:p", "team/app@sha256:p", "team/app@sha256:p", "sha256:p"),
        (IMAGE, "team/app@sha256:first team/b@sha256:second", IMAGE, "sha256:first"),  # retagged since
        ("built-here:latest", "", "built-here:latest", ""),
        # What Podman has from no registry has the name that Docker gives it.
        ("localhost/app:dev", "other@sha256:b localhost/app@sha256:a", "app:dev", "sha256:a"),
    ],
)  # fmt: skip
def test_the_digest_is_of_the_references_repository(
    reference: str, digests: str, image: str, digest: str
) -> None:
    container = one(listed(given={"Image": reference}), *digests.split())
    assert (container.image, container.image_digest) == (image, digest)


def test_only_labelled_containers_names_in_order_and_services() -> None:
    """The service is labelled, Compose's, or the name; by hand Compose's label is of an image that Compose built."""
    by_hand = {"com.docker.compose.service": "resnet"} | ours({"enable": "True"})
    entries = [
        listed(3, given={"Labels": None}),
        listed(2, given={"Names": ["/web/alias", "/app-resnet-2"], "Labels": by_hand}),
        listed(4, service="a\nb" + "x" * 999),
        listed(1),
    ]
    assert [(found.service, found.name) for found in seen(*entries)] == [
        ("a?b" + "x" * 253, "app-resnet-4"), ("app-resnet-2", "app-resnet-2"), ("resnet", "app-resnet-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("projects", "labels", "said"),
    [
        ("prod staging prod", {}, "prod, staging"),
        ("prod prod", {}, ""),
        ("prod staging", {"service": "resnet-staging"}, ""),
        ("prod staging", {"enable": "false"}, ""),
    ],
)
def test_one_service_name_in_two_compose_projects_is_said(
    projects: str, labels: dict[str, Any], said: str
) -> None:
    entries = [listed(), *(listed(n, **labels) for n in range(2, len(projects.split()) + 1))]
    for entry, project in zip(entries, projects.split(), strict=True):
        entry["Labels"]["com.docker.compose.project"] = project
    notes = "".join(seen(*entries)[0].notes)
    assert notes.startswith(f"the Compose projects {said} have this service" if said else "")
    assert bool(notes) == bool(said)


SOCKET = "unix:///run/p.sock"
COMPOSED = "app_default=172.18.0.5"


def asking(networks: str, mode: str, label: str) -> dict[str, Any]:
    """A container in these networks, with a label of ours."""
    name, _, value = label.partition("=")
    labels: dict[str, Any] = {name: value} if name else {}
    return listed(1, networks, mode.replace("HERE", HERE).replace("SECOND", f"{2:064x}"), **labels)


ADDRESSES = f"""
app_default=172.18.0.9 | {COMPOSED}                | app_default      | port=8000       | http://172.18.0.5:8000
app_default=172.18.0.9 | other=10.0.0.2 {COMPOSED} | app_default      |                 | http://172.18.0.5:9798
app_default=172.18.0.9 | app_default=fd00::5       | app_default      |                 | http://[fd00::5]:9798
                       | other=10.0.0.2            | app_default      |                 | http://10.0.0.2:9798
host=                  | other=10.0.0.2            | app_default      |                 | http://10.0.0.2:9798
host=                  | host=                     | host             |                 | http://127.0.0.1:9798
                       | host=                     | host             |                 | http://127.0.0.1:9798
app_default=172.18.0.9 |                           | container:HERE   |                 | http://127.0.0.1:9798
app_default=172.18.0.9 |                           | container:SECOND |                 | http://172.18.0.5:9798
app_default=172.18.0.9 | other=10.0.0.2            | app_default      | socket={SOCKET} | {SOCKET}
"""
"""Networks of the exporter, of which there is none on the host; those of the container, its mode, a label; its URL."""


@pytest.mark.parametrize("row", ADDRESSES.strip("\n").splitlines())
def test_the_address_is_one_that_the_exporter_can_reach(row: str) -> None:
    here, networks, mode, label, url = map(str.strip, row.split("|"))
    entries = [asking(networks, mode, label), listed(2), *([exporter(here)] if here else [])]
    assert next(c.url for c in containers(entries) if c.name == "app-resnet-1") == url


NO_ADDRESSES = f"""
other=10.0.0.2 | app_default     |                       | attach both to one network
none=          | none            |                       | attach both to one network
host=          | host            |                       | run the exporter with network_mode: host
               | container:nobody |                      | attach both to one network
               |                 |                       | share a socket by the label
{COMPOSED}     | app_default     | port=web              | label infercanary.port: 'web' is not a port
{COMPOSED}     | app_default     | port={"1" * 5000}     | ' is not a port; write a number from 1 to 65535
{COMPOSED}     | app_default     | socket=/run/p.sock    | '/run/p.sock' is not a socket; write unix:///
{COMPOSED}     | app_default     | socket=unix:run/p     | label infercanary.socket: 'unix:run/p' is not a socket
{COMPOSED}     | app_default     | socket=http://h:80    | label infercanary.socket: 'http://h:80' is not a socket
{COMPOSED}     | app_default     | enable=ture           | 'ture' is neither true nor false; write true
{COMPOSED}     | app_default     | watches=server        | label infercanary.watches: no container 'server' runs; start
"""


@pytest.mark.parametrize("row", NO_ADDRESSES.strip("\n").splitlines(), ids=lambda row: row[-50:])
def test_without_an_address_there_is_a_reason_and_a_fix(row: str) -> None:
    networks, mode, label, why = map(str.strip, row.split("|"))
    found = one(asking(networks, mode, label))
    assert found.url is None and why in found.url_missing and found.is_asked


@pytest.mark.parametrize(
    ("labels", "brought", "is_lent"),
    [
        ({"watched-by": "app-resnet-2"}, {}, True),
        ({}, {}, False),
        ({"watched-by": "another"}, {}, False),
        ({"watched-by": "app-resnet-2"}, {"watched-by": "app-resnet-2"}, False),  # its image says it
    ],
)
def test_a_sidecar_has_the_image_of_a_server_that_says_that_it_is_watched(
    labels: dict[str, str], brought: dict[str, str], is_lent: bool
) -> None:
    of_server = {
        "Names": ["/server"], "Image": "search:2", "ImageID": "sha256:22", "Created": 1000, "Labels": ours(labels),
    }  # fmt: skip
    entries = [listed(2, watches="server", service="search"), listed(7, given=of_server), exporter()]
    [found] = containers(entries, ListedImage(IMAGE), ListedImage("sha256:22", labels=ours(brought)))
    if is_lent:
        assert (found.image, found.image_id) == ("search:2", "sha256:22")
        assert (found.watched_id, found.watched_since) == (f"{7:064x}", 1000)
        assert found.url is not None and one(entries[0]).ids != found.ids
    else:
        assert (found.url, found.image_id, found.watched_id) == (None, IMAGE, "")
        assert "start it with the label infercanary.watched-by=app-resnet-2" in found.url_missing


def test_own_id_from_the_files_that_docker_mounts_or_the_host_name() -> None:
    mounted = "1 0:1 /var/lib/docker/containers/{}/{} rw - tmpfs shm rw\n"
    assert own_ids("exporter", mounted.format(HERE, "hostname /etc/hostname")) == [HERE]
    assert own_ids("0123456789ab", "") == ["0123456789ab"]
    assert own_ids("my-laptop", mounted.format("b" * 64, "mounts/shm")) == [], "of others on a host"
    for name in ("GPU-Node-01", "GPU-NODE.Example.COM", "DEADBEEF0123", "deadbeef012"):
        assert own_ids(name, "") == [], "the name of a host"


def test_where_an_image_came_from_is_read_of_its_own_labels() -> None:
    name = "org.opencontainers.image."
    entry = listed()
    entry["Labels"][f"{name}revision"] = "given at docker run"
    image = ListedImage(IMAGE, labels={f"{name}revision": "9f8e", f"{name}source": "https://git.example/a"})
    [found], [alone] = (containers([entry], *images) for images in ([image], []))
    assert found.origin == Origin("9f8e", "https://git.example/a", "")
    assert alone.origin.revision == "given at docker run", "the container's labels are all there is"


@pytest.mark.parametrize("given", ["enabled", "enalbe", "service", "port"])
def test_labels_of_ours_without_enable_are_found_and_said(given: str) -> None:
    """`infercanary.enabled=true` was silent: neither the page nor the log knew of the container."""
    found = one(listed(given={"Labels": ours({given: "true"})}))
    assert found.url is None and not found.is_asked
    assert found.url_missing.startswith("label infercanary.enable is missing, so the probe is not polled")
    meant = f"label infercanary.{given}: not known; the labels are infercanary.enable, infercanary.service,"
    assert (meant in "".join(found.notes)) == given.startswith("en")


def test_a_server_that_is_watched_and_labels_that_an_image_brings_ask_for_nothing() -> None:
    for labels in ({"watched-by": "side"}, {"watched-by": "side", "service": "search"}):
        assert seen(listed(given={"Labels": ours(labels)})) == []
    entry = listed(given={"Labels": ours({"port": "8000"})})
    assert containers([entry], ListedImage(IMAGE, labels=entry["Labels"])) == []
    assert len(containers([entry], ListedImage(IMAGE))) == 1


def test_of_thousands_of_names_few_are_said() -> None:
    """Whoever writes them would take the time of all."""
    many: dict[str, Any] = {f"{number}{'x' * 200}": "" for number in range(10_000)}
    assert len(one(listed(**many)).notes) == 8
    assert [note.partition(":")[0] for note in one(listed(sevice="search", colour="red")).notes] == [
        "label infercanary.colour", "label infercanary.sevice",
    ]  # fmt: skip


@pytest.mark.parametrize("enable", ["no", "False", "off", "0", ""])
def test_enable_that_says_no_is_no(enable: str) -> None:
    assert seen(listed(enable=enable)) == []


def brought(labels: dict[str, str], **given: Any) -> Container:
    [found] = containers([listed(**given), exporter()], ListedImage(IMAGE, labels=ours(labels)))
    return found


def test_what_an_image_says_of_identity_is_ignored_and_said() -> None:
    found = brought({"service": "search", "port": "8000"}, service="search", port="8000")
    assert (found.service, found.url) == ("resnet", "http://172.18.0.5:8000"), "an image knows its port"
    [note] = found.notes
    assert note.startswith("label infercanary.service: its image brings it, and it is ignored")
    assert brought({"service": "other"}, service="search").service == "search"
    assert brought({"socket": SOCKET}, socket=SOCKET).url == "http://172.18.0.5:9798"
    [found] = containers([listed(), exporter()], ListedImage(IMAGE, labels=listed()["Labels"]))
    assert found.service == "app-resnet-1", "Compose's labels count where Compose alone gives them"


@pytest.mark.parametrize(
    ("where", "source", "writable", "is_refused"),
    [
        ("compose", "/v/shared", True, True),
        ("compose", "/v/shared/1", True, True),  # a part of the volume in which the socket is
        ("compose", "/v/shared", False, False),
        ("compose", "/v/shared/2", True, False),
        ("compose", "/v", True, False),  # who may write to Docker's own folders administers the host
        ("host", "/run/infercanary", True, True),
        ("host", "/run/infercanary/2", True, False),
        ("elsewhere", "/v/shared", True, False),
    ],
)
def test_a_volume_of_sockets_has_one_writer(
    where: str, source: str, writable: bool, is_refused: bool
) -> None:
    def mounts(source: str, destination: str, writable: bool = True) -> dict[str, Any]:
        return {"Mounts": [{"Source": source, "Destination": destination, "RW": writable}]}

    own = mounts("/run/infercanary" if where == "host" else "/v/shared", "/run/infercanary")
    entries = [
        listed(number, given=given, socket=f"unix:///run/infercanary/{number}/probe.sock")
        for number, given in ((1, own), (2, mounts(source, "/run/infercanary", writable)))
    ]
    if where != "host":
        here = "/run/infercanary" if where == "compose" else "/run/another"
        entries.append(exporter(**mounts("/v/shared", here)))
    found, _ = containers(entries, ListedImage(IMAGE))
    assert ("its socket's volume is writable for app-resnet-2, too" in found.url_missing) == is_refused
    assert found.url == (None if is_refused else "unix:///run/infercanary/1/probe.sock")
