"""Starts recorded in a real stack: gzipped JSON Lines, with a line for each start and its settled runs.

``python tests/tools/recorded.py STORE CANARY >FILE.jsonl.gz`` makes such a file from an unused store of an
exporter. The file stays valid when the store's tables change.
"""

from __future__ import annotations

import gzip
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from infercanary.judge.model import Generation, Sample, Start
from infercanary.store.store import open_store

GOLDEN = Path(__file__).parents[1] / "golden"


class _Line(msgspec.Struct):
    generation: Generation
    samples: list[dict[str, object]]
    """Samples as maps by field name, because an encoded sample is an array that depends on the order of fields."""


def starts(name):
    """Return the starts of each service in order of time, from ``tests/golden/NAME.jsonl.gz``."""
    return parsed(gzip.decompress((GOLDEN / f"{name}.jsonl.gz").read_bytes()))


def parsed(text):
    found = {}
    fields = {field.name: field for field in msgspec.structs.fields(Sample)}
    for line in msgspec.json.Decoder(_Line).decode_lines(text):
        samples = [
            Sample(**{name: msgspec.convert(value, fields[name].type) for name, value in sample.items()})
            for sample in line.samples
        ]
        found.setdefault(line.generation.service, []).append(Start(line.generation, samples))
    return found


def lines(location, canary):
    with closing(open_store(location)) as store:
        for service, name in store.canaries():
            for generation, samples in store.generations(service, name) if name == canary else ():
                named = [
                    {field: getattr(sample, field) for field in sample.__struct_fields__}
                    for sample in Start.of(generation, samples).samples
                ]
                yield msgspec.json.encode(_Line(generation, named)) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(gzip.compress(b"".join(lines(*sys.argv[1:])), mtime=0))
