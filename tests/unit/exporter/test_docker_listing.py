from functools import reduce
from operator import getitem
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from infercanary.exporter.discovery.docker import DockerSource
from infercanary.exporter.discovery.docker_listing import (
    ListedContainer,
    ListedImage,
    Listing,
    own_ids,
    read_entry,
)
from infercanary.judge.origin import Origin
from tests.programs import GOLDEN
from tests.unit.exporter.factories import have

HERE = "a" * 64
IMAGE = "sha256:" + "1" * 64
COMPOSE = {"com.docker.compose.service": "resnet", "com.docker.compose.config-hash": "c0ffee"}
TABLE = yaml.safe_load((GOLDEN / "docker_listing.yaml").read_text())["listings"]


def ours(labels):
    return {f"infercanary.{key}": value for key, value in labels.items()}


def listed(number=1, networks="app_default=172.18.0.5", mode="app_default", given=None, project="", **labels):
    """Return an entry of GET /containers/json of Docker 20.10, with the fields that the exporter uses.

    Args:
        number: Number in the container's name and id.
        networks: Name=address of each network.
        mode: Network mode.
        given: Fields that replace these.
        project: Compose project.
        labels: InferCanary's labels, without the prefix.
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
        "Labels": COMPOSE | {"com.docker.compose.project": project} | ours({"enable": "true", **labels}),
        "HostConfig": {"NetworkMode": mode.replace("HERE", HERE).replace("SECOND", f"{2:064x}")},
        "NetworkSettings": {"Networks": addresses},
        **(given or {}),
    }


def containers(entries, *images):
    every = [read_entry(entry, ListedContainer) for entry in entries]
    found = filter(None, map(Listing(every, images, [HERE]).container, every))
    return sorted(found, key=lambda container: (container.service, container.name))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_containers_from_a_listing(row):
    entries = [listed(number, **entry) for number, entry in enumerate(row["listed"], 1)]
    if here := row.get("exporter", "app_default=172.18.0.9"):
        own = {"Id": HERE, "Names": ["/app-exporter-1"], "Mounts": row.get("mounts", [])}
        entries.append(listed(0, here, here.partition("=")[0], own, enable="false"))
    image = ListedImage(IMAGE, row.get("digests", "").split(), ours(row.get("brings", {})))
    others = [ListedImage(name, labels=ours(labels)) for name, labels in row.get("images", {}).items()]
    have(containers(entries, image, *others), row["found"])


def test_own_id_from_the_files_that_docker_mounts_or_the_host_name():
    mounted = "1 0:1 /var/lib/docker/containers/{}/{} rw - tmpfs shm rw\n"
    assert own_ids("exporter", mounted.format(HERE, "hostname /etc/hostname")) == [HERE]
    assert own_ids("0123456789ab", "") == ["0123456789ab"]
    # mounts of other containers on a host
    assert own_ids("my-laptop", mounted.format("b" * 64, "mounts/shm")) == []
    for name in ("GPU-Node-01", "GPU-NODE.Example.COM", "DEADBEEF0123", "deadbeef012"):
        assert own_ids(name, "") == []  # a host's name is no container id


def test_the_origin_comes_from_labels_of_the_image():
    name = "org.opencontainers.image."
    entry = listed()
    entry["Labels"][f"{name}revision"] = "given at docker run"
    labels = {f"{name}revision": "9f8e", f"{name}source": "https://git.example/a", **listed()["Labels"]}
    [found] = containers([entry], ListedImage(IMAGE, labels=labels))
    assert found.origin == Origin("9f8e", "https://git.example/a", "")
    assert found.service == "app-resnet-1"  # Compose's labels count only if Compose set them
    [alone] = containers([entry])
    assert alone.origin.revision == "given at docker run"


def test_few_of_thousands_of_names_are_reported():
    """A container with thousands of names must not cost other containers time."""
    many = {f"{number}{'x' * 200}": "" for number in range(10_000)}
    [found] = containers([listed(service="x" * 999, **many)])
    assert len(found.notes) == 8
    assert found.service == "x" * 256
    [found] = containers([listed(sevice="search", colour="red")])
    names = [note.partition(":")[0] for note in found.notes]
    assert names == ["label infercanary.colour", "label infercanary.sevice"]


FIELDS = """
Id Names Image ImageID Created Labels Labels.a State Ports Mounts HostConfig HostConfig.NetworkMode NetworkSettings
NetworkSettings.Networks NetworkSettings.Networks.app_default NetworkSettings.Networks.app_default.IPAddress
NetworkSettings.Networks.app_default.GlobalIPv6Address
"""


def test_odd_entries_and_events_cost_no_other_container():
    """Any field of Docker's answer may be null, or have a value of a wrong type."""

    def odd(field, value):
        plain = {"Names": ["/odd"], "Labels": {"a": "b"}, "Ports": [], "Created": 1, "Mounts": []}
        entry = listed(7, given=plain)
        *folders, last = field.split(".")
        reduce(getitem, folders, entry)[last] = value
        return dict(entry)

    values: list[Any] = [None, 5, "text", [[]], "\ud800"]
    listing = [listed(), "nothing", None, *(odd(f, value) for f in FIELDS.split() for value in values)]
    images = [
        {"Id": None},
        {"Id": IMAGE, "RepoDigests": 5},
        {"Id": IMAGE, "RepoDigests": [f"{IMAGE}@sha256:1"]},
    ]
    client: Any = SimpleNamespace(containers=lambda: listing, images=lambda **_: images)
    source = DockerSource()
    with capture_logs() as logs:
        for _ in range(2):
            [found] = source._list(client)
    assert (found.name, found.image_digest) == ("app-resnet-1", "sha256:1")
    entries = [line["entry"] for line in logs]
    assert "nothing" in entries
    assert sum("'Names': ['/odd']" in entry for entry in entries) > 1
    assert len(entries) == len({*entries})
    for line in (b"null", b"nothing", b'{"Actor": null}', b'{"Actor": 5}', b'{"timeNano": "now"}'):
        assert not source._take(line)
