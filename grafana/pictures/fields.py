"""How a panel's series and columns look, by its JSON: colours, units, words for values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

INK, FADED = "#1f2126", "#6b6f76"
NEUTRAL = "#999999"


class Fields:
    """A panel's field config: what holds for all fields, and what is overridden by name or by query.

    Args:
        panel: Its JSON.
    """

    def __init__(self, panel: Mapping[str, Any]) -> None:
        config = panel.get("fieldConfig") or {}
        self.defaults: Mapping[str, Any] = config.get("defaults") or {}
        self._overrides: Sequence[Mapping[str, Any]] = config.get("overrides") or ()

    def look(self, name: str, reference: str = "") -> Mapping[str, Any]:
        """All properties of one field; the last override that fits has the last word.

        Args:
            name: Of the series or column.
            reference: Of its query, such as ``A``; empty where overrides by query do not matter.

        Returns:
            Property's name, as in overrides → value.
        """
        custom = {f"custom.{key}": value for key, value in (self.defaults.get("custom") or {}).items()}
        found = {**self.defaults, **custom}
        for override in self._overrides:
            if _fits(override["matcher"], name, reference):
                found |= {item["id"]: item["value"] for item in override["properties"]}
        return found

    def colours(self, fields: Sequence[tuple[str, str]]) -> list[str]:
        """For each field, by name and query: its colour, or a shade of it where others have the same.

        Args:
            fields: Name and query of each.

        Returns:
            A colour for each, such as ``#0072b2``.
        """
        chosen = [self.look(*field).get("color") or {} for field in fields]
        made = []
        for i, colour in enumerate(chosen):
            base = str(colour.get("fixedColor") or NEUTRAL)
            if colour.get("mode") == "shades":
                alike = [j for j, other in enumerate(chosen) if other == colour]
                base = shade(base, alike.index(i), len(alike))
            made.append(base)
        return made

    def threshold(self, value: float) -> str:
        """The colour of the highest threshold that the value has reached.

        Args:
            value: In the panel's unit.
        """
        steps = (self.defaults.get("thresholds") or {}).get("steps") or ()
        reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
        return str(reached[-1]) if reached else INK


def _fits(matcher: Mapping[str, Any], name: str, reference: str) -> bool:
    if matcher["id"] == "byRegexp":
        return re.search(matcher["options"].strip("/"), name) is not None
    return bool(matcher["options"] == {"byName": name, "byFrameRefID": reference}[matcher["id"]])


class Word(NamedTuple):
    """What is said for a value, and in which colour."""

    text: str
    colour: str


def words(look: Mapping[str, Any]) -> dict[str, Word]:
    """Value → what is said for it, in the mapping's own order.

    Args:
        look: From :meth:`Fields.look`.

    Returns:
        Value as text → word and colour; empty without mappings.
    """
    shown: dict[str, Word] = {}
    for mapping in look.get("mappings") or ():
        options = sorted(mapping["options"].items(), key=lambda item: item[1].get("index", 0))
        shown |= {value: Word(option["text"], option.get("color") or NEUTRAL) for value, option in options}
    return shown


def shade(colour: str, place: int, of: int) -> str:
    """One of several shades, from the colour itself towards black and white by turns.

    Args:
        colour: Such as ``#0072b2``.
        place: Which one, from 0 on.
        of: How many there are.
    """
    if place == 0:
        return colour
    share = (place + 1) // 2 / (of // 2 + 1) * 0.75
    towards = 0 if place % 2 == 0 else 255
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (towards - part) * share):02x}" for part in parts)


def on(colour: str) -> str:
    """The ink that can be read on a colour (relative luminance as in WCAG 2, 1.4.3).

    Args:
        colour: Such as ``#0072b2``.
    """
    return INK if _luminance(colour) > 0.22 else "#ffffff"


def legible(colour: str) -> str:
    """A colour as words on white may have: of yellow a darker one.

    Args:
        colour: Such as ``#0072b2``.
    """
    while _luminance(colour) > 0.45:
        colour = "#" + "".join(f"{int(int(colour[i : i + 2], 16) * 0.9):02x}" for i in (1, 3, 5))
    return colour


def _luminance(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    light: float = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return light
