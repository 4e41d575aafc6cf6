"""Pictures for pages: SVG to put into HTML as it is, the same bytes for the same numbers.

Text, axes and grid have the colour of the page's text, so a picture is legible on light and dark pages. What is drawn
differs in colour (a choice of Okabe and Ito, with 3:1 and more on white and on near black) and in dashes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#00875F", "#B0579A")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
BARS = 60
"""A histogram is drawn with at most so many bins, neighbours joined."""
WIDTH, PLOT, BELOW, LINE = 5.0, 2.1, 0.48, 0.21
"""Inches: the picture's width, the heights of what is inside the axes, below them, and of a line of the legend."""
INK = "#010203"
"""Stands for the colour of the page's text, until the SVG is written."""
FONT = "DejaVu Sans"
"""Comes with matplotlib, so text is measured alike everywhere; the page shows its own, which is narrower."""

Floats = npt.NDArray[np.float64]


def histogram_picture(edges: Sequence[float], counts: Mapping[str, Sequence[int]], title: str, x_label: str) -> str:
    """SVG of histograms over the same bins, each as shares of its sum, cropped to where there is data.

    Empty ones are left out; an empty text when all are.
    """
    found = {label: np.asarray(values) for label, values in counts.items() if sum(values)}
    if not found:
        return ""
    borders, bins = _cropped(np.asarray(edges, dtype=np.float64), list(found.values()))
    figure, axes = frame(title, x_label, "share", list(found))
    for number, (label, values) in enumerate(zip(found, bins, strict=True)):
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes(number)}
        shares = values / values.sum()
        axes.stairs(shares, borders, fill=True, alpha=0.12, color=style["color"], linewidth=0)
        axes.stairs(shares, borders, label=label, linewidth=1.8, **style)
    axes.set_xlim(borders[0], borders[-1])
    axes.set_ylim(bottom=0)
    return svg(figure, title)


def curve_picture(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    title: str,
    x_label: str,
    marker: float | None = None,
    y_label: str = "share",
) -> str:
    """SVG of curves of shares, 0 to 1, over the same x; a vertical line with its value at `marker` if x reaches it."""
    figure, axes = frame(title, x_label, y_label, list(curves))
    for number, (label, values) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(x, values, label=label, linewidth=1.8, color=colour, linestyle=dashes(number))
    axes.set_xlim(min(x), max(x))
    axes.set_ylim(0, 1.14)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if marker is not None and min(x) <= marker <= max(x):
        _mark(axes, marker)
    return svg(figure, title)


def _mark(axes: Axes, marker: float) -> None:
    """A line with its value above the curves, on the side where there is more room."""
    first, last = axes.get_xlim()
    before = marker > (first + last) / 2
    place = marker + (last - first) * (-0.012 if before else 0.012)
    axes.axvline(marker, color=INK, linewidth=1)
    axes.text(place, 1.08, f"{marker:g}", ha="right" if before else "left", va="center", color=INK, fontsize=10)


def dashes(number: int) -> Any:
    """The line style of curve number `number`: differs with its colour, and where colours come again."""
    return DASHES[(number + number // len(COLOURS)) % len(DASHES)]


def _cropped(edges: Floats, counts: Sequence[npt.NDArray[Any]]) -> tuple[Floats, list[npt.NDArray[Any]]]:
    """Edges and counts from the first to the last bin with data, joined by 1, 2, 5, 10, ... until they are few."""
    filled = np.flatnonzero(np.sum(counts, axis=0))
    first, last = int(filled[0]), int(filled[-1]) + 1
    joined = next(
        step * 10**power for power in range(9) for step in (1, 2, 5) if last - first <= BARS * step * 10**power
    )
    starts = np.arange(first // joined * joined, last, joined)
    borders = np.append(edges[starts], edges[min(int(starts[-1]) + joined, len(edges) - 1)])
    return borders, [np.add.reduceat(values, starts) for values in counts]


def frame(title: str, x_label: str, y_label: str, labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with a title and room for a legend of these labels, and its empty axes; shares are in percent.

    Places are set in inches: matplotlib's own layout takes longer than all the drawing.
    """
    from matplotlib.figure import Figure

    top = 0.38 + LINE * -(-len(labels) // _columns(labels))
    height = top + PLOT + BELOW
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    axes = figure.add_axes((0.75 / WIDTH, BELOW / height, 1 - 1 / WIDTH, PLOT / height), facecolor="none")
    figure.text(0.06 / WIDTH, 1 - 0.06 / height, title, va="top", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x_label, color=INK, fontsize=10)
    axes.set_ylabel(y_label, color=INK, fontsize=10)
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    axes.tick_params(colors=INK, labelsize=10)
    axes.grid(color=INK, alpha=0.15, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    return figure, axes


def _columns(labels: Sequence[str]) -> int:
    """Of the legend: so many that the longest label fits."""
    return 3 if max(map(len, labels)) <= 13 else 2


def svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element that scales with the page and says what it is; a legend if anything has a label."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    if labels := figure.axes[0].get_legend_handles_labels()[1]:
        look = {"ncols": _columns(labels), "frameon": False, "fontsize": 10, "labelcolor": INK, "handlelength": 2.6}
        place = (0, 1 - 0.27 / figure.get_figheight())
        figure.legend(loc="upper left", bbox_to_anchor=place, borderaxespad=0.2, **look)
    text = StringIO()
    for found in figure.findobj(Text):
        found.set_parse_math(False)  # a label is what the user wrote: `$a_{$` is no formula
    with (
        rc_context({"svg.hashsalt": title, "svg.fonttype": "none", "font.family": [FONT], "text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page has fonts of its own
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing)
    return _for_html(text.getvalue(), title)


def _for_html(text: str, title: str) -> str:
    """The SVG element alone, without what a page has no use for: doctype, style for all elements, names of groups."""
    name = escape(title)
    text = text[text.index("<svg") :]
    for pattern, by in (
        (r"\s*<(metadata|style)\b.*?</\1>", ""),
        (r' xmlns:xlink="[^"]*"| version="1.1"|(?<=pt") height="[^"]*"|(?<=<g) id="[^"]*"|\s*<!--.*?-->', ""),
        ("xlink:href", "href"),
        (INK, "currentColor"),
        ("font-family: [^;]*", "font-family: system-ui, sans-serif"),
        (
            "<svg ",
            f'<svg role="img" aria-label="{name}" style="max-width: 100%" stroke-linejoin="round" ',
        ),
    ):
        text = re.sub(pattern, lambda _, by=by: by, text, flags=re.DOTALL)  # type: ignore[misc]
    head, tail = text.split(">", 1)
    return f"{head}><title>{name}</title>{tail}".strip()
