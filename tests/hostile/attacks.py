"""Attacks by network connections: ``python attacks.py NAME HOST PORT SECONDS`` (only the standard library).

Each attack runs in a container or process beside the exporter, and prints the number of its attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable

ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: identity\r\n"
# Start of a TLS 1.2 handshake: a record header that announces 512 bytes. The attack never sends these bytes.
HELLO = bytes([0x16, 3, 1, 2, 0])


class Peer:
    """A connection that is reopened after each close."""

    tried = 0

    def __init__(self, host, port, buffer=0):
        self.host, self.port, self.buffer = host, port, buffer

    async def connected(self):
        Peer.tried += 1
        sock = socket.socket()
        sock.setblocking(False)
        if (
            self.buffer
        ):  # Set before connect, so that the kernel buffers no more data for a client that does not read.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, (self.host, self.port)), 5)
        return sock


async def until_closed(sock):
    while True:
        await asyncio.sleep(0.5)
        with contextlib.suppress(BlockingIOError):
            if not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return


async def silent(peer):
    with await peer.connected() as sock:
        await until_closed(sock)


async def half_hello(peer):
    with await peer.connected() as sock:
        await asyncio.get_running_loop().sock_sendall(sock, HELLO)
        await until_closed(sock)


async def slow_header(peer):
    loop = asyncio.get_running_loop()
    with await peer.connected() as sock:
        await loop.sock_sendall(sock, ASK)
        while True:
            await asyncio.sleep(0.5)
            await loop.sock_sendall(sock, b"X: y\r\n")


async def slow_reader(peer):
    with await peer.connected() as sock:
        await asyncio.get_running_loop().sock_sendall(sock, ASK + b"\r\n")
        while True:
            await asyncio.sleep(1)
            # raises an error when the connection is closed
            await asyncio.get_running_loop().sock_sendall(sock, b"\r\n")


async def idle(peer):
    loop = asyncio.get_running_loop()
    with await peer.connected() as sock:
        await loop.sock_sendall(sock, b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
        await loop.sock_recv(sock, 4096)
        await until_closed(sock)


async def garbage(peer):
    with await peer.connected() as sock:
        await asyncio.get_running_loop().sock_sendall(sock, b"\x00\xff no HTTP\r\n\r\n")
        await asyncio.sleep(0.2)


async def hang_up(peer):
    with await peer.connected() as sock:
        await asyncio.get_running_loop().sock_sendall(sock, ASK + b"\r\n")
        await asyncio.sleep(0.05)


Attack = Callable[[Peer], Awaitable[None]]
ATTACKS = {
    "slow_readers": (slow_reader, 400, 4096),
    "silent": (silent, 1600, 0),
    "silent_in_clear": (silent, 1600, 0),
    "half_hellos": (half_hello, 1600, 0),
    "slow_headers": (slow_header, 400, 0),
    "idle": (idle, 1100, 0),
    "garbage": (garbage, 20, 0),
    "hang_ups": (hang_up, 50, 0),
}
"""Name → function of one connection, number of connections, and size of the kernel's receive buffer."""


async def attack(name, host, port, seconds):
    """Run all connections of the attack at the same time, and repeat them until the time is over."""
    one, count, buffer = ATTACKS[name]
    end = time.monotonic() + seconds

    async def again():
        while time.monotonic() < end:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(one(Peer(host, port, buffer)), max(0.1, end - time.monotonic()))
            await asyncio.sleep(0.1)

    # asyncio can lose a cancellation if the connection fails at the same moment. The timeout ends the wait
    # for such a task.
    await asyncio.wait([asyncio.create_task(again()) for _ in range(count)], timeout=seconds + 1)
    print(f"{name}: {Peer.tried} connections", flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
