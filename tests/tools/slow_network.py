"""A network between exporter and database that delays or holds packets."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Proxy in front of a database. Held packets are neither delivered nor refused.

    Args:
        port: Loopback port of the database.
    """

    def __init__(self, port):
        self._to = port
        self._open = threading.Event()
        self._open.set()
        self._passes: int | None = None
        self.delay_seconds = 0.0
        """Delay of each packet, in both directions."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_back(self, yes, *, but=None):
        """Hold all packets from now on, or let all packets pass again.

        Args:
            yes: True to hold packets.
            but: Number of a connection (from 0) whose packets still pass.
        """
        self._passes = but
        if yes:
            self._open.clear()
        else:
            self._open.set()

    def close(self):
        self._open.set()
        self._listening.close()

    def _accept(self):
        with suppress(OSError):
            for number in itertools.count():
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # the database is down, and may return
                    near.close()
                    continue
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(number, one, other), daemon=True).start()

    def _pass(self, number, one, other):
        with suppress(OSError), one, other:
            try:
                while data := one.recv(1 << 16):
                    if number != self._passes:
                        self._open.wait()
                    time.sleep(self.delay_seconds)
                    other.sendall(data)
            finally:  # close() alone would leave the connection open while the other thread reads from it
                other.shutdown(socket.SHUT_RDWR)
