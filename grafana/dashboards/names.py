"""Looks of lines with unknown names, such as names of containers.

The look depends on the name's characters, so a name has the same hue and strokes on every panel.

Grafana's own method has 64 hues, and every fourth hue is hardly visible on a light or a dark page. This module has
eight hues and four kinds of strokes. A character counts if it occurs an odd number of times, because a regular
expression can test this. Names that differ in one digit get different looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours
from grafana.dashboards.panels import colour, option

Strokes = tuple[int, ...]

STROKES: tuple[Strokes, ...] = ((), (12, 4), (3, 4), (12, 4, 3, 4))
"""Lengths of strokes and gaps in pixels; the first entry is a solid line."""
_HUES = (
    colours.BLUE,
    colours.VERMILLION,
    colours.GREEN,
    colours.ORANGE,
    colours.PURPLE,
    colours.SKY,
    colours.OLIVE,
    colours.GREY,
)
_HUE_SIGNS = ("13579a-m", "2367a-gn-t", "4567a-dh-kn-qu-x")
_STROKE_SIGNS = ("1368acegikmoqswy", "23789abefijmnqruvyz")
"""Counted characters for each bit of a number: of the hue (above), and of the strokes. No two letters, and no two
digits, set the same bits.
"""


def looks() -> Iterator[tuple[str, list[dashboard.DynamicConfigValue]]]:
    """Yield a regular expression of names, and the look of their lines.

    The hue depends on the whole name. The strokes depend on its first word, which is a replica's container
    without its host.
    """
    for number, hue in enumerate(_HUES):
        yield f"/^{_lookaheads(number, _HUE_SIGNS, '', '$')}/", [colour(hue)]
    for number, strokes in enumerate(STROKES):
        yield f"/^{_lookaheads(number, _STROKE_SIGNS, ' /', '([ /]|$)')}/", [_strokes(strokes)]


def _strokes(strokes: Strokes) -> dashboard.DynamicConfigValue:
    style = {"fill": "dash", "dash": [*strokes]} if strokes else {"fill": "solid"}
    return option("custom.lineStyle", style)


def _lookaheads(number: int, signs: Sequence[str], outside: str, end: str) -> str:
    """Return a lookahead for each bit: positive if the bit is 0, negative if it is 1.

    A lookahead matches if the bit's characters occur an even number of times.
    """
    return "".join(
        f"(?{'!' if number >> bit & 1 else '='}(([^{each}{outside}]*[{each}]){{2}})*[^{each}{outside}]*{end})"
        for bit, each in enumerate(signs)
    )
