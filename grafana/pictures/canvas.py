"""A figure in pixels from its upper left corner, as a page is laid out: boxes, words that fit, and room for charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from grafana.pictures.fields import FADED, INK

PAGE, PAPER, EDGE, GRID = "#e8ebee", "#ffffff", "#dcdee1", "#ebecee"

_DOTS = (
    150  # an inch, of which a page's pixels are 100: sharp on a screen with two dots to a pixel, and small
)
_POINT = 0.72

mpl.rcParams["text.parse_math"] = False  # a name may have a $
mpl.rcParams["font.family"] = "DejaVu Sans"  # matplotlib brings it along, so pictures are alike everywhere


class Area(NamedTuple):
    """Pixels: from the left, from the top, and how far."""

    x: float
    y: float
    width: float
    height: float

    def inside(self, left: float = 0, top: float = 0, right: float = 0, bottom: float = 0) -> Area:
        """What is left of it without its margins.

        Args:
            left: Pixels, as all margins.
            top: Of the upper margin.
            right: Of the right margin.
            bottom: Of the lower margin.

        Returns:
            An area of one pixel or more each way.
        """
        return Area(
            self.x + left,
            self.y + top,
            max(1.0, self.width - left - right),
            max(1.0, self.height - top - bottom),
        )


class Canvas:
    """A page of ``width`` by ``height`` pixels.

    Args:
        width: Pixels.
        height: Pixels.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._figure = Figure(figsize=(width / 100, height / 100), dpi=_DOTS, facecolor=PAGE)
        self._agg: Any = FigureCanvasAgg(self._figure)
        self._renderer: Any = self._agg.get_renderer()  # type: ignore[no-untyped-call]

    def box(self, area: Area, face: str, edge: str = "none", round_by: float = 0) -> None:
        """A filled rectangle.

        Args:
            area: Where.
            face: Colour of the inside.
            edge: Colour of the border.
            round_by: Pixels that the corners are rounded by.
        """
        at, size = (
            self._at(area.x, area.y + area.height),
            (area.width / self.width, area.height / self.height),
        )
        if round_by == 0:
            self._figure.add_artist(Rectangle(at, *size, facecolor=face, edgecolor=edge, linewidth=0.7))
            return
        self._figure.add_artist(
            FancyBboxPatch(
                at,
                *size,
                boxstyle=f"round,pad=0,rounding_size={round_by / self.width}",
                mutation_aspect=self.width / self.height,
                facecolor=face,
                edgecolor=edge,
                linewidth=0.7,
            )
        )

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1.0) -> None:
        """Draw a straight line.

        Args:
            x0: Pixels from the left, of one end.
            y0: Pixels from the top, of one end.
            x1: Of the other end.
            y1: Of the other end.
            colour: Such as ``#0072b2``.
            width: Pixels.
        """
        (left, top), (right, bottom) = self._at(x0, y0), self._at(x1, y1)
        self._figure.add_artist(
            Line2D(
                [left, right], [top, bottom], color=colour, linewidth=width * _POINT, solid_capstyle="butt"
            )
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        colour: str = INK,
        weight: str = "normal",
        align: str = "left",
    ) -> float:
        """Write one line of words around the height ``y``.

        Args:
            x: Pixels from the left, of the end that ``align`` names.
            y: Pixels from the top.
            words: They are not cut.
            size: Pixels.
            colour: Such as ``#0072b2``.
            weight: ``normal`` or ``bold``.
            align: ``left``, ``center`` or ``right``.

        Returns:
            Its length in pixels.
        """
        self._figure.text(
            *self._at(x, y),
            words,
            fontsize=size * _POINT,
            color=colour,
            fontweight=weight,
            horizontalalignment=align,
            verticalalignment="center_baseline",
        )
        return self.length(words, size, weight)

    def length(self, words: str, size: float = 12, weight: str = "normal") -> float:
        """Pixels that a line of words takes.

        Args:
            words: One line.
            size: Pixels.
            weight: ``normal`` or ``bold``.

        Returns:
            Pixels.
        """
        font = FontProperties(size=size * _POINT, weight=weight)
        wide, _, _ = self._renderer.get_text_width_height_descent(words, font, ismath=False)
        return float(wide) * 100 / _DOTS

    def fit(self, words: str, room: float, size: float = 12, weight: str = "normal") -> str:
        """As much of the words as there is room for.

        Args:
            words: One line.
            room: Pixels.
            size: Pixels.
            weight: ``normal`` or ``bold``.

        Returns:
            The words; where they were cut, with ``…`` at the end.
        """
        if self.length(words, size, weight) <= room:
            return words
        while words and self.length(f"{words}…", size, weight) > room:
            words = words[:-1].rstrip()
        return f"{words}…"

    def wrap(self, words: str, room: float, size: float = 12) -> list[str]:
        """The words as lines for which there is room.

        Args:
            words: Any white space separates them.
            room: Pixels.
            size: Pixels.

        Returns:
            One line or more; a word that is too long is cut.
        """
        lines = [""]
        for word in words.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and self.length(longer, size) > room:
                lines.append(word)
            else:
                lines[-1] = longer
        return [self.fit(line, room, size) for line in lines]

    def axes(self, area: Area) -> Axes:
        """Room for a chart, without a frame.

        Args:
            area: Of the chart itself; its labels lie outside.

        Returns:
            matplotlib's axes.
        """
        axes: Axes = self._figure.add_axes(self._share(area))
        axes.set_facecolor("none")
        axes.set_zorder(2)  # above the boxes
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0, labelsize=10.5 * _POINT, labelcolor=FADED, pad=4)
        axes.tick_params(axis="x", pad=7)
        axes.grid(True, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        return axes

    def move(self, axes: Axes, area: Area) -> None:
        """Move a chart.

        Args:
            axes: From :meth:`axes`.
            area: Where it is to be.
        """
        axes.set_position(self._share(area))

    def save(self, path: Path) -> None:
        """As a PNG of 256 colours, which is a third of the size and looks the same.

        Args:
            path: Replaced if it is there.
        """
        self._agg.draw()
        image = Image.fromarray(np.asarray(self._agg.buffer_rgba())).convert("RGB")
        image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)

    def _share(self, area: Area) -> tuple[float, float, float, float]:
        at = self._at(area.x, area.y + area.height)
        return (*at, area.width / self.width, area.height / self.height)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return x / self.width, 1 - y / self.height
