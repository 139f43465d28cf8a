"""The answers as text for people, and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from infercanary.doctor.ability import Ability, State
from infercanary.render.document import Document, Fact

VERSION = 1
"""Of what ``--json`` prints; it grows by fields only."""

_STATES: tuple[State, ...] = ("OK", "limited", "refused", "absent")


def answer_document(answer: Ability) -> Document:
    """Return one answer, whose label is its state. Names of NVML's functions would not fit into a column."""
    finding = "; ".join(filter(None, (answer.found, answer.why))) + (answer.fix and f" → {answer.fix}")
    return Document(facts=[Fact(answer.state, ": ".join(filter(None, (answer.name, finding))))])


def summary(abilities: Sequence[Ability]) -> str:
    """The last line: how many answers of each kind.

    Args:
        abilities: All of them.
    """
    counts = Counter(each.state for each in abilities)
    parts = ", ".join(f"{counts[state]} {state}" for state in _STATES)
    gpu = next((each for each in abilities if (each.section, each.name) == ("driver", "NVIDIA driver")), None)
    ending = "" if gpu is None or gpu.state != "absent" else "; a machine without an NVIDIA GPU"
    return f"{len(abilities)} checks: {parts}{ending}"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    schema_version: int = VERSION
    infercanary: str
    """The version that looked."""
    python: str
    counts: dict[State, int]
    """How many checks have each state."""
    checks: list[Ability]


def diagnosis(abilities: Sequence[Ability], infercanary: str, python: str) -> Diagnosis:
    """Put the answers together for programs.

    Args:
        abilities: All of them.
        infercanary: Its version.
        python: The interpreter's version.

    Returns:
        What is printed.
    """
    counts = Counter(each.state for each in abilities)
    return Diagnosis(
        infercanary=infercanary,
        python=python,
        counts={state: counts[state] for state in _STATES},
        checks=list(abilities),
    )


def schema() -> dict[str, Any]:
    """Make the JSON Schema of what ``--json`` prints.

    Returns:
        The schema, with a title that has its version.
    """
    _, definitions = msgspec.json.schema_components([Diagnosis], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"infercanary doctor --json, version {VERSION}",
        "$ref": "#/$defs/Diagnosis",
        "$defs": definitions,
    }
