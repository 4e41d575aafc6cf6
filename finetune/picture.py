"""The picture of a training: loss and dev by step."""

from __future__ import annotations

from closecall.pictures import COLOURS, INK, dashes, frame, svg
from finetune.artifact import Curve


def curve_picture(curve: Curve) -> str:
    """SVG: dev of each seed in points (left axis), its training loss (right axis), the checkpoint as a ring."""
    title = "Dev and training loss by step"
    labels = [f"dev {curve.measure}" + (f", seed {one.seed}" if len(curve.seeds) > 1 else "") for one in curve.seeds]
    figure, axes = frame(title, "step", f"dev {curve.measure}, points", [*labels, "training loss"])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right = axes.twinx()
    for number, (one, label) in enumerate(zip(curve.seeds, labels, strict=True)):
        steps, values = [point.step for point in one.points], [100 * point.dev for point in one.points]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(steps, values, label=label, color=colour, linestyle=dashes(number), marker="o", ms=3.5, lw=1.8)
        if one.losses:
            loss = right.plot(*zip(*one.losses, strict=True), color=INK, alpha=0.45, lw=1)
            if number == 0:
                axes.plot([], [], label="training loss", color=loss[0].get_color(), alpha=0.45, lw=1)
    chosen = curve.of(curve.chosen.seed)
    dev = chosen.best[0] if curve.chosen.share else chosen.points[0].dev
    axes.plot([curve.chosen.step], [100 * dev], label="checkpoint", ls="", marker="o", ms=9, mfc="none", color=INK)
    right.set_ylabel("training loss", color=INK, fontsize=10)
    right.set_ylim(bottom=0)
    right.tick_params(colors=INK, labelsize=10)
    for spine in right.spines.values():
        spine.set_visible(False)
    place = axes.get_position()
    axes.set_position((place.x0, place.y0, place.width - 0.05, place.height))
    right.set_position(axes.get_position())
    return svg(figure, title)
