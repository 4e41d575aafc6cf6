"""What a person sees of a calibration: two tables for the terminal, a sentence, and a page with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from closecall.manifest import Artifact
from closecall.pages import render
from closecall.pictures import curve_picture, histogram_picture
from closecall.progress import console, say
from mining.artifact import CALIBRATION

SHOWN = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
BAR = 24
"""Columns of the bar that shows the share of filled pairs."""

Row = tuple[str, str, str, str, str]
HEADER = ("", "pairs with all negatives", "", "negatives there are", "relevant taken")


def sentence(content: Mapping[str, Any]) -> str:
    """The proposal and its reason, as one sentence."""
    found = content["proposal"]
    risk = "" if found["risk"] is None else f": {found['risk']:.1%} would"
    return (
        f"mining.margin_fraction: {found['margin_fraction']:g} ({found['reason']}{risk}; {found['filled']:.1%} of "
        f"{content['pairs']:,} pairs have all {content['negatives']} negatives within rank {content['depth']})"
    )


def tables(content: Mapping[str, Any]) -> Group:
    """The tables of margins and of rank windows for the terminal."""
    notes = Text("\n".join([*_notes(content), *_scores(content)]), style="dim")
    return Group(
        _table("margin_fraction", margin_rows(content)), "", _table("first rank", window_rows(content)), "", notes
    )


def margin_rows(content: Mapping[str, Any]) -> list[Row]:
    """A row for each margin, without a rank window; the setting in use and the proposal are named."""
    named = {content["in_use"]["margin_fraction"]: "in use", content["proposal"]["margin_fraction"]: "proposed"}
    shown = sorted({*SHOWN, *(margin for margin in named if margin is not None)})
    margins = [margin for margin in shown if margin in content["margin_fraction"]]
    return [_row(content, "1", margin, " ".join([f"{margin:g}", named.get(margin, "")]).strip()) for margin in margins]


def window_rows(content: Mapping[str, Any]) -> list[Row]:
    """A row for each rank window, at the margin in use (0 when there is none)."""
    margin = min(content["margin_fraction"], key=lambda value: abs(value - (content["in_use"]["margin_fraction"] or 0)))
    return [_row(content, rank, margin, rank) for rank in content["windows"]]


def _row(content: Mapping[str, Any], rank: str, margin: float, name: str) -> Row:
    number, window = content["margin_fraction"].index(margin), content["windows"][rank]
    filled = window["filled"][number] / window["pairs"]
    available = window["available"][number] / window["asked"]
    bar = "█" * round(filled * BAR)
    risk = "not known" if content["risk"] is None else f"{content['risk'][rank][number]:.1%}"
    return (name, f"{filled:.1%}", bar, f"{available:.1%}", risk)


def _table(name: str, rows: Sequence[Row]) -> Table:
    view = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate((name, *HEADER[1:])):
        view.add_column(title, justify="left" if number in (0, 2) else "right", no_wrap=True)
    for row in rows:
        style = "bold" if "proposed" in row[0] else "cyan" if "in use" in row[0] else ""
        view.add_row(*map(Text, row), style=style)
    return view


def _notes(content: Mapping[str, Any]) -> list[str]:
    """What the columns mean, and what they were counted on."""
    known = content["known_other_positives"]
    risk = (
        f"not known: {known:,} positives have another one beside them, too few"
        if content["risk"] is None
        else f"share of relevant documents that would become negatives: {known:,} times another positive of the query "
        "was taken for one that nobody judged"
    )
    return [
        f"{content['queries']:,} training queries, {content['pairs']:,} (query, positive) pairs, "
        f"{content['negatives']} negatives asked, one search to rank {content['depth']}.",
        f"relevant taken: {risk}.",
        "A first rank above 1 drops the nearest candidates whatever they score; shown at the margin in use.",
    ]


def _scores(content: Mapping[str, Any]) -> list[str]:
    """A line for each distribution of scores."""
    return [
        f"scores of {name}s: median {values['median']:.3f}, quartiles {values['p25']:.3f} to {values['p75']:.3f}, "
        f"range {values['min']:.3f} to {values['max']:.3f}"
        for name, values in content["scores"].items()
        if values
    ]


def page(content: Mapping[str, Any]) -> str:
    """The whole calibration as a self-contained HTML page."""
    return render(
        "mining",
        "calibration.html.j2",
        content=content,
        sentence=sentence(content),
        notes=[*_notes(content), *_scores(content)],
        header=[title for title in HEADER if title],
        tables={"margin_fraction": margin_rows(content), "first rank": window_rows(content)},
        pictures=_pictures(content),
    )


def _pictures(content: Mapping[str, Any]) -> list[str]:
    margins, window = content["margin_fraction"], content["windows"]["1"]
    curves = {
        "pairs with all negatives": [count / window["pairs"] for count in window["filled"]],
        "negatives there are": [count / window["asked"] for count in window["available"]],
    }
    if content["risk"] is not None:
        curves["relevant documents taken"] = content["risk"]["1"]
    windows = {
        f"from rank {rank}": [count / found["pairs"] for count in found["filled"]]
        for rank, found in content["windows"].items()
    }
    counts = {name: values for name, values in content["histograms"].items() if name != "edges"}
    marker = content["proposal"]["margin_fraction"]
    return [
        curve_picture(margins, curves, "What each margin leaves, and what it lets through", "margin_fraction", marker),
        curve_picture(margins, windows, "Pairs with all negatives, by rank window", "margin_fraction", marker),
        histogram_picture(content["histograms"]["edges"], counts, "Scores of positives and open candidates", "cosine"),
    ]


def show(artifact: Artifact, as_json: bool) -> str | dict[str, Any]:
    """Print the tables on stderr; the sentence, or the whole content, for stdout."""
    content: dict[str, Any] = artifact.read_json(CALIBRATION)
    console.print(tables(content))
    say(f"page: {artifact.folder / 'report.html'}")
    return content if as_json else sentence(content)
