"""``infercanary doctor --limits``: reports the limit of each canary as text or JSON."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import click
import msgspec

import infercanary
from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.probe.config import read
from infercanary.probe.roofline import CAUSES_OF_IO, CanaryLimit
from infercanary.render.document import Document, Fact, Table
from infercanary.render.json import json_line, plain_values
from infercanary.render.text import render_texts
from infercanary.render.units import quantities, quantity

VERSION = 1
"""Version of the format of ``--limits --json``. A new field does not change the version."""

_OPERATORS = 8


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``--limits --json``."""

    schema_version: int = VERSION
    infercanary: str
    """Version of the doctor."""
    canaries: list[CanaryLimit]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``--limits --json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"infercanary doctor --limits --json, version {VERSION}",
        **msgspec.json.schema(Limits),
    }


def report_limits(path: str, as_json: bool, width: int) -> int:
    """Measure the limits of the canaries of a probe.yaml, and print them.

    Returns:
        Exit code: 3 if the limit of a canary is unknown.

    Raises:
        UsageError: A mistake in the file.
    """
    logging.basicConfig(level="INFO", format="%(message)s")
    probe = read(path)
    try:
        probe.open()
        found = probe.limits()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    finally:
        probe.close()
    limits = Limits(infercanary=infercanary.__version__, canaries=found)
    text = (
        json_line(plain_values(limits))
        if as_json
        else render_texts(list(map(limit_document, found)), width=width)
    )
    click.echo(text, nl=False)
    return ExitCode.INCONCLUSIVE if any(limit.why for limit in found) else ExitCode.FINE


def limit_document(limit: CanaryLimit) -> Document:
    """Return the limit of one canary as a document."""
    facts = [
        Fact("latency", limit.seconds, "s"),
        Fact("shares", _shares(limit.shares)),
        Fact("causes", _shares(limit.causes)),
    ]
    if (known := limit.ceilings) is not None:
        arithmetic, bandwidth = known.flops_per_second / 1e9, known.bytes_per_second / 1e9
        facts.append(Fact("ceilings", f"{arithmetic:,.0f} GFLOP/s ({known.dtype}), {bandwidth:,.0f} GB/s"))
    rows = [
        [
            row.operator,
            quantity(row.share, "ratio"),
            row.limit,
            quantity(row.arithmetic, "ratio"),
            quantity(row.bandwidth, "ratio"),
            row.shapes,
        ]
        for row in limit.operators[:_OPERATORS]
    ]
    table = Table("", ("operator", "share", "limit", "arithmetic", "bandwidth", "shapes"), rows)
    return Document(
        name=f"canary {limit.canary}", sentence=limit_sentence(limit), facts=facts, tables=[table]
    )


def _shares(of: Mapping[Any, float]) -> str:
    return quantities({name: round(share, 3) for name, share in of.items()}, "ratio")


def limit_sentence(limit: CanaryLimit) -> str:
    """Return the limit in one sentence without a full stop."""
    if limit.why:
        return f"unknown: {limit.why}"
    names = " and nearly as much ".join(f"{name}-bound" for name in (limit.limit, limit.tied_with) if name)
    reached = f"{limit.bandwidth:.0%} of this container's bandwidth, {limit.arithmetic:.0%} of its arithmetic"
    if limit.limit in ("io", "scheduling"):
        causes = {
            name: x for name, x in limit.causes.items() if (name in CAUSES_OF_IO) == (limit.limit == "io")
        }
        cause, share = max(causes.items(), key=lambda item: item[1])
        reached = f"{share:.0%} of the time is {cause}"
    hint = f"; larger batches help until {limit.useful_batch}" if limit.useful_batch else ""
    return f"{names}: {reached}{hint}".replace("%", " %")
