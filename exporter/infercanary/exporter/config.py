"""What ``exporter.yaml`` says: typed, and checked in full before any of it is used."""

from __future__ import annotations

import os
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from infercanary.client.limits import Limits
from infercanary.command import settings
from infercanary.command.settings import UsageError

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Docker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Discovery by Docker. Without ``url``: DOCKER_HOST, else unix:///var/run/docker.sock."""

    enabled: bool = True
    url: str | None = None
    relist_seconds: Seconds = 30.0


class StaticProbe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A probe that Docker does not know: where it answers, and what to call it."""

    url: str
    service: str
    container: str


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file; every key has a default that works on a Docker host.

    ``store`` is the judge's file; without one, baselines live as long as the exporter does.
    """

    listen: str = "0.0.0.0:9797"
    poll_seconds: Seconds = 5.0
    timeout_seconds: Seconds = 3.0
    store: str | None = None
    docker: Docker = Docker()
    probes: tuple[StaticProbe, ...] = ()
    limits: Limits = Limits()


def check(path: str | os.PathLike[str]) -> Config:
    """The config in the file ``path``. Raises :class:`UsageError` with the place, the mistake and the mend."""
    config = settings.load(path, Config)
    listen_address(config.listen, f"{path}: listen")
    seen: dict[tuple[str, str], int] = {}
    for index, probe in enumerate(config.probes):
        place = f"{path}: probes[{index}]"
        if mistake := url_mistake(probe.url):
            raise UsageError(f"{place}.url: {mistake}")
        for key, text in (("service", probe.service), ("container", probe.container)):
            if not text or not text.isprintable() or len(text.encode()) > config.limits.label_bytes:
                raise UsageError(
                    f"{place}.{key}: must be 1 to {config.limits.label_bytes} bytes of printable text; "
                    "it becomes a label"
                )
        first = seen.setdefault((probe.service, probe.container), index)
        if first != index:
            raise UsageError(
                f"{place}: same service and container as probes[{first}]; give one of them another container"
            )
    return config


def listen_address(text: str, place: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as host and port; no host means every address. Raises :class:`UsageError`."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not colon
        or not (port.isascii() and port.isdigit())
        or int(port) > 65_535
        or (":" in bare and bare == host)
    ):
        raise UsageError(f"{place}: {text!r} is not HOST:PORT; write for example 0.0.0.0:9797 or [::]:9797")
    return bare or "0.0.0.0", int(port)  # noqa: S104


def url_mistake(url: str) -> str | None:
    """What is wrong with a probe's URL and how to mend it, or None."""
    mend = "write http://host:9798 or unix:///path/to/probe.sock"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"{url!r} is not a URL ({error}); {mend}"
    if not url.isprintable() or " " in url:
        return f"{url!r} has blanks or control characters; {mend}"
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
            return f"{url!r} needs an absolute path; {mend}"
    elif parts.scheme not in ("http", "https"):
        return f"{url!r} has no scheme that is known; {mend}"
    elif not parts.hostname or port == 0:
        return f"{url!r} names no host or an impossible port; {mend}"
    if parts.query or parts.fragment:
        return f"{url!r} has a query or a fragment; {mend}"
    return None
