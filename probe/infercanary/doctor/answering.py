"""Separate process that runs the checks. If a driver hangs, the process is killed. If a library crashes, only this
process ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from infercanary.doctor.ability import answered, checks


def main() -> None:
    """Receive the machine and then checks, and send answers. ``sys.argv[1]`` is the connection's file descriptor."""
    connection = Connection(int(sys.argv[1]))
    machine = connection.recv()
    checks()  # import all modules now, because a check's deadline does not cover imports
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # hide messages of libraries
    connection.send("ready")
    with suppress(EOFError):
        while True:
            connection.send(answered(connection.recv(), machine))
    os._exit(0)  # skip the clean-up of libraries, which may hang


if __name__ == "__main__":
    main()
