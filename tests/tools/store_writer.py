"""Writes batches of runs into a store, for tests in which its process or its disk fails."""

import os
import sys
from pathlib import Path

from stores import generation, samples

from infercanary.judge.model import ServiceKey
from infercanary.store import sqlite
from infercanary.store.retention import Retention
from infercanary.store.store import open_store

S = ServiceKey("", "s")
RUNS = 10  # number of runs of each of the two containers in a batch
_STARTS = 40  # number of batches in a start
# Small limits, so that the store merges and drops rows often.
KEEP = Retention(opening=20, opening_starts=2, raw=60, slack=24, first=120, blocks=4, hours=2)


def take(store, batch):
    """Store a batch in one transaction: runs of two containers, one of which restarts at times, and a document."""
    runs = samples(RUNS * (batch - 1), RUNS * batch, canary="c")
    with store.session.transaction():
        new = 0
        for name, boot in (("a", "a"), ("b", f"b-{batch // _STARTS}")):
            start = generation(boot, service=S.name, container=name, environment={"torch": boot})
            new += store.take(start, runs)
        if new:
            store.save(S, "c", "answer", float(batch), b"%d" % batch)
    return new


def main(folder, batches):
    """Write batches into ``store.db``, and the number of finished batches into ``done``."""
    sqlite._WAL_PAGES = 24  # SQLite copies its log into the file often
    store = open_store(folder / "store.db", KEEP)
    done = os.open(folder / "done", os.O_WRONLY | os.O_CREAT)
    for batch in range(1, batches + 1):
        take(store, batch)
        os.pwrite(done, b"%d" % batch, 0)
        if batch % 6 == 0:
            store.thin(600.0 * batch)
        if batch % 50 == 0:
            store.close()
            store = open_store(folder / "store.db", KEEP)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
