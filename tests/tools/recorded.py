"""Starts that were recorded in a real stack: gzipped JSON Lines, a line for each start with its settled runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec

from infercanary.judge.model import Generation, Sample, Start

GOLDEN = Path(__file__).parents[1] / "golden"


def starts(name: str) -> dict[str, list[Start]]:
    """Service → its starts in order of time, from ``tests/golden/NAME.jsonl.gz``."""
    found: dict[str, list[Start]] = {}
    for line in gzip.decompress((GOLDEN / f"{name}.jsonl.gz").read_bytes()).splitlines():
        start = json.loads(line)
        samples = [Sample(**{**sample, "tags": tuple(sample.get("tags", ()))}) for sample in start["samples"]]
        generation = msgspec.convert(start["generation"], Generation)
        found.setdefault(generation.service, []).append(Start(generation, samples))
    return found
