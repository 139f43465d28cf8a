"""Addresses of IPv4 and IPv6: counting of callers, and selection among several addresses."""

import errno
import os
import socket

import pytest

from infercanary.contract.address import counted_as, in_url, listening_socket
from tests.scenarios import cases


@cases(
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_caller_is_an_address_or_a_network_of_64_bits(host, counted):
    assert counted_as(host) == counted


@cases([("::", "[::]"), ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("gpu-1", "gpu-1")])
def test_brackets(host, text):
    assert in_url(host) == text


@pytest.mark.parametrize("listen", ["::", "::0"])
@pytest.mark.parametrize(
    ("call", "number"),
    [("__init__", errno.EAFNOSUPPORT), ("setsockopt", errno.ENOPROTOOPT), ("bind", errno.EADDRNOTAVAIL)],
)
def test_without_ipv6_every_address_is_of_ipv4(monkeypatch, listen, call, number):
    class WithoutIPv6(socket.socket):
        """Refuses IPv6 like a kernel without IPv6, or a sandbox."""

    def refuse(self, *args, **options):
        family = args[0] if call == "__init__" else self.family
        if family == socket.AF_INET6:
            raise OSError(number, os.strerror(number))
        return getattr(super(WithoutIPv6, self), call)(*args, **options)

    setattr(WithoutIPv6, call, refuse)
    monkeypatch.setattr(socket, "socket", WithoutIPv6)
    with listening_socket(listen, 0, backlog=8) as sock:
        assert sock.getsockname()[0] == "0.0.0.0"
    with pytest.raises(OSError, match=os.strerror(number)):
        listening_socket("::1", 0, backlog=8)
