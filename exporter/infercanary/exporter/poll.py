"""What is made of one answer of a probe, off the event loop: checked, written as lines, and in short for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from infercanary.client.fetch import Received, read
from infercanary.client.limits import Limits
from infercanary.exporter.expose import Lines, write
from infercanary.exporter.history import RunSummary, summarise


def prepared(
    body: bytes,
    identity: Mapping[str, str],
    before: Mapping[str, Lines],
    limits: Limits,
    reserved: Collection[str],
) -> tuple[Received, dict[str, Lines], list[RunSummary]]:
    """All that takes time of an answer, off the event loop; ``before`` is what the same probe showed last."""
    received = read(body, limits, reserved)
    families, runs = received.accepted.families, received.accepted.runs
    lines = {family.name: write(family, identity, before.get(family.name)) for family in families}
    return received, lines, [summarise(run) for run in runs]
