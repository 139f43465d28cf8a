"""Hosts that are not as most are: without IPv6, with a name in capitals, with other limits."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from infercanary.command.settings import UsageError
from infercanary.exporter.__main__ import listen_on
from infercanary.exporter.discovery.docker_listing import own_ids


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel with `ipv6.disable=1`: it knows no such family."""
    make = socket.socket

    def refuse(family: int = -1, *arguments: int, **options: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, *arguments, **options)

    monkeypatch.setattr(socket, "socket", refuse)


@pytest.mark.parametrize("host", ["::", "::1"])
def test_a_host_without_ipv6_says_it_in_one_line(without_ipv6: None, host: str) -> None:
    with pytest.raises(UsageError, match=r"^--listen: cannot listen on .*; stop what uses it, or choose"):
        listen_on(host, 0, "--listen")


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_host_without_ipv6_listens_as_others_do(without_ipv6: None, host: str) -> None:
    listen_on(host, 0, "--listen").close()


@pytest.mark.parametrize("name", ["GPU-Node-01", "GPU-NODE.Example.COM", "DEADBEEF0123", "deadbeef012"])
def test_a_name_of_a_host_is_no_id_of_a_container(name: str) -> None:
    assert own_ids(name, "") == []
