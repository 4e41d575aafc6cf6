"""The pictures of a verdict: deltas with their intervals, recall by depth, and what quality costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from closecall.pictures import COLOURS, INK, WIDTH, curve_picture, frame, svg

ROWS = 30
"""Slices in the picture: the largest; the table has all."""
ROW_INCHES = 0.24


def forest_picture(content: Mapping[str, Any]) -> str:
    """SVG of the delta of the deciding measure overall and per slice, with its interval; harm in another colour."""
    from matplotlib.figure import Figure

    rows = [("all queries", content["overall"][content["measure"]], False, True)]
    rows += [(f"mean of {item['column']}", item, False, True) for item in content.get("means_of_slices", ())]
    slices = sorted(content["slices"], key=lambda item: -item["n"])[:ROWS]
    kept = [item for item in content["slices"] if item in slices]
    rows += [(item["name"], item, item["harmed"], item["large_enough"]) for item in kept]
    title = f"Delta in {content['measure']}, in points"
    height = 0.75 + ROW_INCHES * len(rows)
    figure = Figure(figsize=(WIDTH * 1.4, height), facecolor="none")
    axes = figure.add_axes((0.34, 0.42 / height, 0.63, 1 - 0.75 / height), facecolor="none")
    figure.text(0.01, 1 - 0.06 / height, title, va="top", fontsize=11, fontweight="bold", color=INK)
    for place, (_, item, harmed, judged) in enumerate(reversed(rows)):
        colour = COLOURS[1] if harmed else COLOURS[0]
        alpha = 1.0 if judged else 0.45
        if judged and item["low"] is not None and item["high"] is not None:
            axes.plot([100 * item["low"], 100 * item["high"]], [place, place], color=colour, linewidth=2, alpha=alpha)
        axes.plot(
            [100 * item["delta"]], [place], marker="s" if harmed else "o", color=colour, alpha=alpha, markersize=5
        )
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{_short(name)}  n={item['n']}" for name, item, *_ in reversed(rows)])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return svg(figure, title)


def recall_picture(content: Mapping[str, Any]) -> str:
    """SVG of mean recall@k by k for each system; a line where the contender's flattens."""
    curves = {name: found["recall"] for name, found in content["recall_curves"].items()}
    depth = max(map(len, curves.values()))
    if depth < 2:
        return ""
    marker = content["recall_curves"][content["contender"]]["flattens_at"]
    return curve_picture(range(1, depth + 1), curves, "Recall by depth", "k", marker, "recall@k")


def cost_picture(content: Mapping[str, Any], costs: Mapping[str, Mapping[str, Any]], by: str) -> str:
    """SVG of each system's mean against its bytes per vector or its latency; empty where fewer than two have one."""
    means = _means(content)
    if by == "bytes":
        found = {name: size["bytes_per_vector"] for name, size in content["sizes"].items()}
        title, label = "Quality against bytes per vector", "bytes per vector"
    else:
        found = {name: times["latency_p50_ms"] for name, times in costs.items()}
        title, label = "Quality against latency", "ms for one query, median"
    points = {name: (value, means[name]) for name, value in found.items() if value and name in means}
    if len(points) < 2:
        return ""
    figure, axes = frame(title, label, content["measure"], list(points))
    for number, (name, (x, y)) in enumerate(points.items()):
        colour, marker = COLOURS[number % len(COLOURS)], "osD^vP"[number % 6]
        axes.plot([x], [y], marker=marker, markersize=8, color=colour, label=name, linestyle="none")
    places = [x for x, _ in points.values()]
    axes.set_xscale("log")
    axes.set_xlim(min(places) / 1.6, max(places) * 1.6)
    axes.set_xticks(sorted(set(places)), [f"{x:,.3g}" if x < 1000 else f"{x:,.0f}" for x in sorted(set(places))])
    axes.set_xticks([], minor=True)
    values = np.asarray([y for _, y in points.values()])
    room = max(0.02, float(np.ptp(values)) * 0.3)
    axes.set_ylim(max(0.0, float(values.min()) - room), min(1.0, float(values.max()) + room))
    return svg(figure, title)


def _means(content: Mapping[str, Any]) -> dict[str, float]:
    """The mean of the deciding measure of each system."""
    measure = content["measure"]
    own = content["overall"][measure]
    others = {name: other["overall"][measure]["tuned"] for name, other in content["others"].items()}
    return {content["incumbent"]: own["base"], content["contender"]: own["tuned"], **others}


def _short(text: str, length: int = 26) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def all_pictures(content: Mapping[str, Any], costs: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Those that there is something to show in."""
    found = [recall_picture(content), cost_picture(content, costs, "bytes"), cost_picture(content, costs, "latency")]
    return [picture for picture in found if picture]
