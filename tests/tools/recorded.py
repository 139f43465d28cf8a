"""Stores that were recorded in a real stack."""

from __future__ import annotations

import gzip
from pathlib import Path

from infercanary.judge.model import ServiceKey, Start
from infercanary.store.sqlite import SqliteStore

GOLDEN = Path(__file__).parents[1] / "golden"


def starts(name: str, folder: Path) -> dict[str, list[Start]]:
    """What a record holds of the example's services.

    Args:
        name: Of its file in ``tests/golden``, without what it ends with.
        folder: Where it may be unpacked.

    Returns:
        Service → its starts, in order of time.
    """
    path = folder / "judge.sqlite"
    path.write_bytes(gzip.decompress((GOLDEN / f"{name}.sqlite.gz").read_bytes()))
    store = SqliteStore.open(path)
    found = {
        service: [Start(*each) for each in store.generations(ServiceKey("", service), "resnet18")]
        for service in ("classify", "moderate")
    }
    store.close()
    return found
