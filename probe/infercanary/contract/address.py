"""Addresses of sockets: parsing, listening, and the name under which a caller's connections are counted."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

EVERY_ADDRESS = "::"
"""Address of a socket that accepts IPv4 and IPv6."""
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT)


def listen_address(listen: str) -> tuple[str, int]:
    """Split ``HOST:PORT``. Without a host, the result has :data:`EVERY_ADDRESS`.

    Args:
        listen: Address, with an IPv6 address in brackets; a port alone is allowed.

    Returns:
        Host without brackets, and port.

    Raises:
        ValueError: The text is not HOST:PORT.
    """
    with suppress(ValueError):
        parts = urlsplit(f"//:{listen}" if listen.isdigit() else f"//{listen}")
        if parts.port is not None and not parts.path:
            return parts.hostname or EVERY_ADDRESS, parts.port
    raise ValueError(f"'{listen}' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797")


def listen_place(listen: str) -> Path | tuple[str, int]:
    """Return the path of ``unix:///path``, or host and port as :func:`listen_address` does.

    Raises:
        ValueError: The text is neither a path nor an address.
    """
    if listen.startswith("unix:///"):
        return Path(listen.removeprefix("unix://"))
    try:
        return listen_address(listen)
    except ValueError as error:
        raise ValueError(f"{error}; or unix:///path") from None


def listening_socket(
    host: str, port: int, *, backlog: int, receive_bytes: int = 0, send_bytes: int = 0
) -> socket.socket:
    """Return a socket that listens on TCP. ``::`` means all IPv4 and IPv6 addresses, or all IPv4 addresses if the
    kernel has no IPv6.

    Args:
        host: Name or address, without brackets.
        port: Port; 0 for any free port.
        backlog: Connections that the kernel keeps until they are accepted.
        receive_bytes: Kernel's receive buffer for each connection; 0 for the default size.
        send_bytes: Kernel's send buffer for each connection; 0 for the default size.

    Raises:
        OSError: The process cannot listen on this address.
    """
    with suppress(ValueError):  # `::0` becomes `::`, and `::ffff:192.0.2.1` an IPv4 address
        ip = ipaddress.ip_address(host)
        host = str((ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip)
    try:
        return _listen(
            socket.AF_INET6 if ":" in host else socket.AF_INET, host, port, backlog, receive_bytes, send_bytes
        )
    except OSError as error:
        if host != EVERY_ADDRESS or error.errno not in _NO_IPV6:
            raise
    return _listen(socket.AF_INET, "0.0.0.0", port, backlog, receive_bytes, send_bytes)  # noqa: S104


def _listen(
    family: socket.AddressFamily, host: str, port: int, backlog: int, receive_bytes: int, send_bytes: int
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # set explicitly, because the default is the sysctl net.ipv6.bindv6only
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != EVERY_ADDRESS))
        for option, size in ((socket.SO_RCVBUF, receive_bytes), (socket.SO_SNDBUF, send_bytes)):
            if size:  # connections inherit the size from the listening socket
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        sock.bind((host, port))
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def counted_as(host: str) -> str:
    """Return the name under which a caller's connections are counted: the IPv4 address, or the IPv6 network.

    The network has a prefix of 64 bits, because one host may own all addresses of the network.

    Args:
        host: Address as a socket reports it. A mapped address (``::ffff:192.0.2.1``) counts as its IPv4 address.
    """
    if ":" not in host:
        return host
    if host.startswith("::ffff:") and "." in host:  # an IPv4 caller on a socket for IPv4 and IPv6
        return host[7:]
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.ip_network((ip, 64), strict=False))


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
