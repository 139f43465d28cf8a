"""How lines look whose names are not known beforehand, such as those of containers: by their letters, so that a name
has the same hue and strokes on every panel.

Grafana's own hues by name are 64, of which every fourth can hardly be seen on a light page or on a dark one. Here they
are eight, and four kinds of strokes. A letter or digit counts if it is met an odd number of times: that is what a
regular expression can say of a name, and names that differ in one digit differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours
from grafana.dashboards.panels import colour, option

Strokes = tuple[int, ...]

STROKES: tuple[Strokes, ...] = ((), (12, 4), (3, 4), (12, 4, 3, 4))
"""Lengths of strokes and gaps in pixels; the first one is a line without gaps."""
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
"""What counts for each bit of the number of a hue, and of strokes: no two letters for the same, nor two digits."""


def looks() -> Iterator[tuple[str, list[dashboard.DynamicConfigValue]]]:
    """Hues by the whole name; strokes by its first word alone, which is a replica's container and not its host.

    Yields:
        A regular expression of names, and what lines of such a name have.
    """
    for number, hue in enumerate(_HUES):
        yield f"/^{_lookaheads(number, _HUE_SIGNS, '', '$')}/", [colour(hue)]
    for number, strokes in enumerate(STROKES):
        yield f"/^{_lookaheads(number, _STROKE_SIGNS, ' /', '([ /]|$)')}/", [_strokes(strokes)]


def _strokes(strokes: Strokes) -> dashboard.DynamicConfigValue:
    style = {"fill": "dash", "dash": [*strokes]} if strokes else {"fill": "solid"}
    return option("custom.lineStyle", style)


def _lookaheads(number: int, signs: Sequence[str], outside: str, end: str) -> str:
    """One for each bit of a number: not, or so, that the signs of the bit are met an even number of times."""
    return "".join(
        f"(?{'!' if number >> bit & 1 else '='}(([^{each}{outside}]*[{each}]){{2}})*[^{each}{outside}]*{end})"
        for bit, each in enumerate(signs)
    )
