from __future__ import annotations

import time
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


def listed(number: int = 1, mode: str = "app_default", networks: Any = None, **labels: str) -> dict[str, Any]:
    """An entry of GET /containers/json, as Docker 20.10 gives it, in what is used of it."""
    return {
        "Id": f"{number:064x}",
        "Names": [f"/app-resnet-{number}"],
        "Image": "registry.example:5000/team/resnet:2",
        "ImageID": IMAGE,
        "State": "running",
        "Labels": {
            "infercanary.enable": "true",
            "com.docker.compose.service": "resnet",
            "com.docker.compose.config-hash": "c0ffee",
        }
        | {f"infercanary.{key}": value for key, value in labels.items()},
        "HostConfig": {"NetworkMode": mode},
        "NetworkSettings": {
            "Networks": {"app_default": address("172.18.0.5")} if networks is None else networks
        },
    }


def address(ipv4: str = "", ipv6: str = "") -> dict[str, Any]:
    return {"NetworkID": "f" * 64, "IPAddress": ipv4, "GlobalIPv6Address": ipv6, "Aliases": None}


def exporter(mode: str = "app_default", **networks: dict[str, Any]) -> dict[str, Any]:
    entry = listed(0, mode, networks or {"app_default": address("172.18.0.9")}, enable="false")
    return {**entry, "Id": HERE, "Names": ["/app-exporter-1"]}


def containers(
    entries: Sequence[dict[str, Any]], images: Sequence[ListedImage], own: Sequence[str] = (HERE,)
) -> list[Container]:
    listed = [read_entry(entry, ListedContainer) for entry in entries]
    listing = Listing(listed, images, own)
    found = (listing.container(each) for each in listed)
    return sorted(filter(None, found), key=lambda container: (container.service, container.name))


def seen(*entries: dict[str, Any], digests: Sequence[str] = ()) -> list[Container]:
    return containers(entries, [ListedImage(IMAGE, [*digests])])


def test_the_identity_of_a_container() -> None:
    digests = ["other/name@sha256:bbb", "registry.example:5000/team/resnet@sha256:aaa"]
    [container] = seen(listed(), exporter(), digests=digests)
    assert container == Container(
        service="resnet",
        name="app-resnet-1",
        id=f"{1:064x}",
        image="registry.example:5000/team/resnet:2",
        image_id=IMAGE,
        image_digest="sha256:aaa",
        url="http://172.18.0.5:9798",
    )


@pytest.mark.parametrize(
    ("reference", "digests", "digest"),
    [
        ("sha256:1234", ["<none>@<none>"], ""),
        ("redis:7", ["redis@sha256:r"], "sha256:r"),
        ("redis", ["mirror/redis@sha256:m", "redis@sha256:r"], "sha256:r"),
        (
            "docker.io/library/redis:7",
            ["mirror/redis@sha256:m", "docker.io/library/redis@sha256:r"],
            "sha256:r",
        ),
        ("team/app@sha256:pinned", ["team/app@sha256:pinned"], "sha256:pinned"),
        (IMAGE, ["team/app@sha256:first", "team/b@sha256:second"], "sha256:first"),  # retagged since
        ("built-here:latest", [], ""),
    ],
)
def test_the_digest_is_of_the_references_repository(reference: str, digests: list[str], digest: str) -> None:
    [container] = seen({**listed(), "Image": reference}, digests=digests)
    assert (container.image, container.image_digest) == (reference, digest)


def test_what_podman_has_from_no_registry_has_the_name_that_docker_gives_it() -> None:
    digests = ["other@sha256:b", "localhost/app@sha256:a"]
    [container] = seen({**listed(), "Image": "localhost/app:dev"}, digests=digests)
    assert (container.image, container.image_digest) == ("app:dev", "sha256:a")


def test_only_labelled_containers_and_names_in_order() -> None:
    unlabelled = {**listed(3), "Labels": None}
    linked = {**listed(2), "Names": ["/web/alias", "/app-resnet-2"]}
    assert [c.name for c in seen(linked, unlabelled, listed(1), exporter())] == [
        "app-resnet-1",
        "app-resnet-2",
    ]


def test_the_service_is_labelled_or_composes_or_the_name() -> None:
    plain = {**listed(2), "Labels": {"infercanary.enable": "True"}}
    assert [c.service for c in seen(listed(1, service="vision"), plain)] == ["app-resnet-2", "vision"]


def test_one_service_name_in_two_compose_projects_is_said() -> None:
    def notes(*projects: str, **labels: str) -> str:
        entries = [listed(number) for number in range(1, len(projects))] + [listed(len(projects), **labels)]
        for entry, project in zip(entries, projects, strict=True):
            entry["Labels"]["com.docker.compose.project"] = project
        return "".join(containers(entries, [ListedImage(IMAGE)])[0].notes)

    assert notes("prod", "staging", "prod") == (
        "the Compose projects prod, staging have this service, and are judged as one: give the containers of one of "
        "them another name by the label infercanary.service"
    )
    assert notes("prod", "prod") == ""
    assert notes("prod", "staging", service="resnet-staging") == ""
    assert notes("prod", "staging", enable="false") == ""


FOREIGN = {"other": address("10.0.0.2")}


@pytest.mark.parametrize(
    ("here", "there", "url"),
    [
        ([exporter()], listed(port="8000"), "http://172.18.0.5:8000"),
        (
            [exporter()],
            listed(networks={**FOREIGN, "app_default": address("172.18.0.5")}),
            "http://172.18.0.5:9798",
        ),
        ([exporter()], listed(networks={"app_default": address(ipv6="fd00::5")}), "http://[fd00::5]:9798"),
        ([], listed(networks=FOREIGN), "http://10.0.0.2:9798"),  # on the host every bridge is near
        ([exporter("host", host=address())], listed(networks=FOREIGN), "http://10.0.0.2:9798"),
        (
            [exporter("host", host=address())],
            listed(mode="host", networks={"host": address()}),
            "http://127.0.0.1:9798",
        ),
        ([], listed(mode="host", networks={"host": address()}), "http://127.0.0.1:9798"),
        ([exporter()], listed(mode=f"container:{HERE}", networks={}), "http://127.0.0.1:9798"),
        ([exporter(), listed(2)], listed(mode=f"container:{2:064x}", networks={}), "http://172.18.0.5:9798"),
        ([exporter()], listed(networks=FOREIGN, socket="unix:///run/p.sock"), "unix:///run/p.sock"),
    ],
)
def test_the_address_is_one_that_the_exporter_can_reach(
    here: list[dict[str, Any]], there: dict[str, Any], url: str
) -> None:
    assert next(c.url for c in seen(*here, there) if c.name == "app-resnet-1") == url


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (listed(networks=FOREIGN), "attach both to one network"),
        (listed(mode="none", networks={"none": address()}), "attach both to one network"),
        (listed(mode="host", networks={"host": address()}), "run the exporter with network_mode: host"),
        (listed(mode=f"container:{9:064x}", networks={}), "attach both to one network"),
        (listed(mode="", networks={}), "share a socket by the label"),
        (listed(port="web"), "label infercanary.port: 'web' is not a port"),
        (listed(port="1" * 5000), "' is not a port; write a number from 1 to 65535"),
        (
            listed(socket="/run/p.sock"),
            "label infercanary.socket: '/run/p.sock' is not a socket; write unix:///",
        ),
        (listed(socket="unix:run/p.sock"), "label infercanary.socket: 'unix:run/p.sock' is not a socket"),
        (
            listed(socket="http://elsewhere:80"),
            "label infercanary.socket: 'http://elsewhere:80' is not a socket",
        ),
    ],
)
def test_without_an_address_there_is_a_reason_and_a_fix(there: dict[str, Any], why: str) -> None:
    [container] = seen(exporter(), there)
    assert container.url is None
    assert why in container.url_missing


def test_a_sidecar_has_the_image_of_the_server_that_it_watches() -> None:
    server = {
        **listed(7), "Names": ["/server"], "Id": "7" * 64, "Image": "search:2", "ImageID": "sha256:22",
        "Created": 1000, "Labels": {"infercanary.watched-by": "app-resnet-2"},
    }  # fmt: skip
    sidecar = listed(2, watches="server", service="search")
    [found] = seen(sidecar, server, exporter())
    assert (found.image, found.image_id) == ("search:2", "sha256:22")
    assert (found.watched_id, found.watched_since) == ("7" * 64, 1000)
    assert found.url is not None
    [alone] = seen(sidecar, exporter())
    assert alone.url is None and alone.watched_id == ""
    assert alone.url_missing.startswith("label infercanary.watches: no container 'server' runs; start it")
    assert alone.ids != found.ids


def test_hostile_service_labels_are_made_harmless() -> None:
    [container] = seen(listed(service="a\nb" + "x" * 999))
    assert container.service == "a?b" + "x" * 253


def test_own_id_from_the_files_that_docker_mounts_or_the_host_name() -> None:
    inside = f"733 714 0:1 /var/lib/docker/containers/{HERE}/hostname /etc/hostname rw - ext4 /dev/sda rw\n"
    shm_of_others_on_a_host = (
        f"9 1 0:45 / /var/lib/docker/containers/{'b' * 64}/mounts/shm rw - tmpfs shm rw\n"
    )
    assert own_ids("exporter", inside) == [HERE]
    assert own_ids("0123456789ab", "") == ["0123456789ab"]
    assert own_ids("my-laptop", shm_of_others_on_a_host) == []


def test_where_an_image_came_from_is_read_of_its_own_labels() -> None:
    name = "org.opencontainers.image.revision"
    entry = listed()
    entry["Labels"][name] = "given at docker run"
    image = ListedImage(
        IMAGE, labels={name: "9f8e7d6c5b4a", "org.opencontainers.image.source": "https://git.example/a"}
    )
    [container] = containers([entry], [image])
    assert container.origin == Origin("9f8e7d6c5b4a", "https://git.example/a", "")
    [container] = containers([entry], [])
    assert container.origin.revision == "given at docker run", "the container's labels are all there is"


def test_a_compose_service_that_the_image_alone_names_is_none() -> None:
    """Eight containers of an image that Compose built were replicas of a service that they are no part of."""
    labels = {"infercanary.enable": "true", "com.docker.compose.service": "resnet"}
    by_hand = [{**listed(number), "Labels": labels} for number in (1, 2)]
    found = seen(*by_hand, listed(3), exporter())
    assert [container.service for container in found] == ["app-resnet-1", "app-resnet-2", "resnet"]


@pytest.mark.parametrize("enable", ["yes", "1", "ture"])
def test_enable_with_another_word_is_found_and_said(enable: str) -> None:
    [container] = seen(listed(enable=enable), exporter())
    assert container.url is None
    assert (
        container.url_missing == f"label infercanary.enable: '{enable}' is neither true nor false; write true"
    )
    assert container.failure == "label"


@pytest.mark.parametrize("given", ["enabled", "enalbe", "service", "port"])
def test_labels_of_ours_without_enable_are_found_and_said(given: str) -> None:
    """`infercanary.enabled=true` was silent: neither the page nor the log knew of the container."""
    entry = listed()
    entry["Labels"] = {f"infercanary.{given}": "true"}
    [container] = seen(entry, exporter())
    assert container.url is None and not container.is_asked
    assert container.url_missing == (
        "label infercanary.enable is missing, so the probe is not polled; write true, or false if no probe is meant"
    )
    meant = given.startswith("en")
    assert (f"label infercanary.{given}: not known; the labels are" in "".join(container.notes)) == meant


def test_a_server_that_is_watched_and_labels_that_an_image_brings_ask_for_nothing() -> None:
    for others in ({}, {"infercanary.service": "search"}):
        server = {**listed(), "Labels": {"infercanary.watched-by": "side", **others}}
        assert seen(server, exporter()) == []
    entry = {**listed(), "Labels": {"infercanary.port": "8000"}}
    assert containers([entry], [ListedImage(IMAGE, labels=entry["Labels"])]) == []
    assert len(containers([entry], [ListedImage(IMAGE)])) == 1


def test_thousands_of_names_take_no_time() -> None:
    """Whoever writes them would take the time of all: 60,000 took a second of each listing."""
    entry = listed()
    entry["Labels"] = {f"infercanary.{number}{'x' * 200}": "" for number in range(60_000)}
    began = time.process_time()
    assert len(seen(entry, exporter())) == 1
    entry["Labels"]["infercanary.enable"] = "true"
    [container] = seen(entry, exporter())
    assert len(container.notes) == 8 and time.process_time() - began < 0.5


@pytest.mark.parametrize("enable", ["no", "False", "off", "0", ""])
def test_enable_that_says_no_is_no(enable: str) -> None:
    assert seen(listed(enable=enable), exporter()) == []


def test_labels_that_mean_nothing_are_said_with_those_that_do() -> None:
    [container] = seen(listed(sevice="search", colour="red"), exporter())
    assert container.notes == (
        "label infercanary.colour: not known; the labels are infercanary.enable, infercanary.service, "
        "infercanary.port, infercanary.socket, infercanary.watches, infercanary.watched-by",
        "label infercanary.sevice: not known; the labels are infercanary.enable, infercanary.service, "
        "infercanary.port, infercanary.socket, infercanary.watches, infercanary.watched-by",
    )


def brought(entry: dict[str, Any], **labels: str) -> Container:
    image = ListedImage(IMAGE, labels={f"infercanary.{key}": value for key, value in labels.items()})
    [found] = containers([entry, exporter()], [image])
    return found


def test_what_an_image_says_of_identity_is_ignored_and_said() -> None:
    found = brought(listed(service="search", port="8000"), service="search", port="8000")
    assert found.service == "resnet", "Compose started it"
    assert found.url == "http://172.18.0.5:8000", "an image knows its port"
    assert found.notes == (
        "label infercanary.service: its image brings it, and it is ignored; give it when the container is started, "
        "with another value than the image's",
    )
    assert brought(listed(service="search"), service="other").service == "search"
    socket = "unix:///run/infercanary/search-1.sock"
    assert brought(listed(socket=socket), socket=socket).url == "http://172.18.0.5:9798"


AGREES = {"infercanary.watched-by": "app-resnet-2"}


@pytest.mark.parametrize(
    ("labels", "brought"),
    [({}, {}), ({"infercanary.watched-by": "another"}, {}), (AGREES, AGREES)],
)
def test_a_server_that_does_not_say_that_it_is_watched_lends_no_identity(
    labels: dict[str, str], brought: dict[str, str]
) -> None:
    server = {**listed(7), "Names": ["/server"], "ImageID": "sha256:22", "Labels": labels}
    images = [ListedImage(IMAGE), ListedImage("sha256:22", labels=brought)]
    found = containers([listed(2, watches="server", service="search"), server, exporter()], images)[-1]
    assert (found.url, found.image_id, found.watched_id) == (None, IMAGE, "")
    assert found.url_missing == (
        "label infercanary.watches: 'server' does not say that it is watched; start it with the label "
        "infercanary.watched-by=app-resnet-2"
    )


def test_composes_labels_count_where_compose_alone_gives_them() -> None:
    entry = listed()
    [found] = containers([entry, exporter()], [ListedImage(IMAGE, labels=entry["Labels"])])
    assert found.service == "app-resnet-1"


WRITERS = "its socket's volume is writable for app-resnet-2, too; give each its own"


@pytest.mark.parametrize(
    ("where", "source", "writable", "missing"),
    [
        ("compose", "/v/shared", True, WRITERS),
        ("compose", "/v/shared/1", True, WRITERS),  # a part of the volume in which the socket is
        ("compose", "/v/shared", False, ""),
        ("compose", "/v/shared/2", True, ""),
        ("compose", "/v/own", True, ""),
        ("compose", "/v", True, ""),  # who may write to Docker's own folders administers the host
        ("host", "/run/infercanary", True, WRITERS),
        ("host", "/run/infercanary/2", True, ""),
        ("elsewhere", "/v/shared", True, ""),
    ],
)
def test_a_volume_of_sockets_has_one_writer(where: str, source: str, writable: bool, missing: str) -> None:
    own = "/run/infercanary" if where == "host" else "/v/shared"
    entries = [
        {
            **listed(number, socket=f"unix:///run/infercanary/{number}/probe.sock"),
            "Mounts": [{"Source": mounted, "Destination": "/run/infercanary", "RW": may_write}],
        }
        for number, mounted, may_write in ((1, own, True), (2, source, writable))
    ]
    if where != "host":
        here = "/run/infercanary" if where == "compose" else "/run/another"
        mount = {"Source": "/v/shared", "Destination": here, "RW": True}
        entries.append({**exporter(), "Mounts": [mount]})
    one, _ = seen(*entries)
    assert one.url_missing == missing
    assert one.url == (None if missing else "unix:///run/infercanary/1/probe.sock")
