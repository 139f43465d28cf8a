"""Hosts that are not as most are: without IPv6, with a name in capitals, with other limits."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.exporter.__main__ import listen_on
from infercanary.exporter.discovery.docker_listing import own_ids
from infercanary.probe.serve import ReportServer


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel with `ipv6.disable=1`: it knows no such family."""
    make = socket.socket

    def refuse(family: int = -1, *arguments: int, **options: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, *arguments, **options)

    monkeypatch.setattr(socket, "socket", refuse)


def test_a_host_without_ipv6_says_it_in_one_line(without_ipv6: None) -> None:
    with pytest.raises(UsageError, match=r"^cannot listen on \[::1\]:0 .*; stop what uses it, or choose"):
        listen_on("[::1]:0")


@pytest.mark.parametrize(("host", "listens"), [("::", "0.0.0.0"), ("0.0.0.0",) * 2, ("127.0.0.1",) * 2])
def test_a_host_without_ipv6_listens_as_others_do(without_ipv6: None, host: str, listens: str) -> None:
    with listen_on(f"[{host}]:0" if ":" in host else f"{host}:0") as sock:
        assert sock.getsockname()[0] == listens
    server = ReportServer(f"{in_url(host)}:0", lambda since: b"report")
    assert server.address.startswith(f"http://{listens}:")
    server.close()


@pytest.mark.parametrize("name", ["GPU-Node-01", "GPU-NODE.Example.COM", "DEADBEEF0123", "deadbeef012"])
def test_a_name_of_a_host_is_no_id_of_a_container(name: str) -> None:
    assert own_ids(name, "") == []
