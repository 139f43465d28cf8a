"""Process in which checks are made: it is killed if a driver hangs, and a crash of a library ends only it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from infercanary.doctor.ability import answered, checks


def main() -> None:
    """Receive the machine, then checks, and send answers. Argument: the file descriptor of the connection."""
    connection = Connection(int(sys.argv[1]))
    machine = connection.recv()
    checks()  # imports their modules first, because a deadline is for the check alone
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libraries print
    connection.send("ready")
    with suppress(EOFError):
        while True:
            connection.send(answered(connection.recv(), machine))
    os._exit(0)  # a library's own clean-up may hang


if __name__ == "__main__":
    main()
