"""The process in which checks are made: it reads which one, and writes its answer as a line of JSON.

An empty line comes first, when it is ready. Only this process loads drivers: it is killed where one hangs, and where
one crashes it, the doctor says so.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter

import msgspec

from infercanary.doctor.ability import Machine, answered, checks


def main() -> None:
    """Answer until standard input ends. Arguments: the file descriptor for answers, and the machine as JSON."""
    descriptor = int(sys.argv[1])
    machine = msgspec.json.decode(sys.argv[2], type=Machine, dec_hook=lambda kind, value: kind(value))
    table = {(each.section, each.name): each for each in checks()}
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stderr.fileno())  # libraries print; until now it was what went wrong here
    os.write(descriptor, b"\n")  # ready
    for line in sys.stdin:
        section, _, name = line.rstrip("\n").partition("\t")
        begin = perf_counter()
        found = answered(table[section, name], machine)
        found = msgspec.structs.replace(found, seconds=perf_counter() - begin)
        os.write(descriptor, msgspec.json.encode(found) + b"\n")
    os._exit(0)  # a library's own clean-up may hang


if __name__ == "__main__":
    main()
