"""A record of a stack is what its store had."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import recorded

from infercanary.store.store import open_store


def test_a_record_has_what_the_store_had(tmp_path: Path) -> None:
    location = str(tmp_path / "store.db")
    known = recorded.starts("neighbour_gone")
    with closing(open_store(location)) as store:
        for start in [start for starts in known.values() for start in starts]:
            store.take(start.generation, start.samples)
    assert recorded.parsed(b"".join(recorded.lines(location, "resnet18"))) == known
