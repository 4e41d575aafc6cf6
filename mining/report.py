"""What a person reads of a mined artifact: a line for the terminal, and a page with counts, pictures and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from closecall.pages import render
from closecall.pictures import curve_picture, histogram_picture
from mining.artifact import HardNegative, Integers, Triple, read_triples_table
from mining.config import MiningConfig
from mining.filters import OUTCOMES, SUSPECTED

SHOWN = 10
"""Examples of each kind."""

LONG_TEXT = 400
"""Characters: what is longer is folded, and its first part shown."""

MEANINGS = {
    "kept": "a hard negative: passed every filter and was chosen",
    "not_finite": "the score is no number",
    "judged_positive": "judged relevant to the query",
    "partly_relevant": "judged relevant in part: neither positive nor negative",
    "same_text": "has the text of a positive or of the query",
    "outside_ranks": "ranked above min_rank, or nowhere as high as max_rank",
    "outside_scores": "below min_score or above max_score",
    "within_margin": "too near to the positive, or above it: margin_fraction, margin",
    "near_copy": "has almost the words of a positive: near_copy",
    "guide_not_finite": "the guide's score is no number",
    "within_guide_margin": "the guide scores it too near to the positive, or above it",
    "overused": "its document is a negative of max_uses other queries already",
    "over_quota": "passed, but others were chosen for the row",
}
"""One line for each outcome."""

FACTS = {
    "queries_without": "queries without any",
    "unknown_documents": "documents that are not in the corpus",
    "certified": "judged not relevant",
}
"""What sources count beside their candidates."""

UNRANKED = ("judged", "random")
"""Kinds of sources whose ranks say nothing."""


def summary(stats: Mapping[str, Any]) -> str:
    """One line: what was kept of what was retrieved, and what is short; one more when nothing was kept."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in stats["dropped"].items())
    short = f"; {stats['short']:,} short in {stats['pairs_short']:,} pairs" if stats["short"] else ""
    return (
        f"mine: {stats['kept']:,} hard negatives for {stats['pairs']:,} (query, positive) pairs of "
        f"{stats['queries']:,} queries{short}; {stats['retrieved']:,} candidates, dropped: {dropped}" + _advice(stats)
    )


def _advice(stats: Mapping[str, Any]) -> str:
    """What to do when no candidate was kept: training on such triples has in-batch negatives alone."""
    if stats["kept"]:
        return ""
    most = max(stats["dropped"], key=lambda reason: int(stats["dropped"][reason]), default="")
    cause = f"most candidates are {most}; widen what drops them" if most else "no source found any; add one"
    return f"\nmine: NO HARD NEGATIVE was kept, training would have in-batch negatives alone: {cause}"


@dataclass(frozen=True)
class Example:
    """A kept negative, with the row it stands in."""

    triple: Triple
    negative: HardNegative

    @property
    def difference(self) -> float:
        """The positive's score minus the negative's."""
        return self.triple.positive_score - self.negative.score

    @property
    def gap(self) -> float:
        """The difference as a fraction of the positive's magnitude: it would pass a margin_fraction of that."""
        return float(_gaps(np.asarray(self.triple.positive_score), np.asarray(self.negative.score)))


def examples(triples: Path, random: np.random.Generator) -> tuple[list[Example], list[Example]]:
    """The kept negatives nearest to their positive, nearest first, and as many drawn ones in the order of the file.

    Of `triples.parquet` ids and scores are read as arrays, and texts of the few row groups that hold an example.
    """
    with pq.ParquetFile(triples) as file:
        table = file.read(["query_id", "positive_score", "negative_ids", "negative_scores"])
        counts = pc.list_value_length(table["negative_ids"]).to_numpy()
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        worst = _nearest(table, rows)
        drawn = np.sort(random.choice(len(rows), min(SHOWN, len(rows)), replace=False))
        both = np.concatenate([worst, drawn])
        found = _taken(file, rows[both], places[both])
    return found[: len(worst)], found[len(worst) :]


def _nearest(table: pa.Table, rows: Integers) -> Integers:
    """Positions of the negatives with the smallest gaps, each (query, document) once; ties by query, then document."""
    query = pc.rank(table["query_id"], tiebreaker="dense").to_numpy().astype(np.int64)[rows]
    document = pc.rank(pc.list_flatten(table["negative_ids"]), tiebreaker="dense").to_numpy().astype(np.int64)
    scores = pc.list_flatten(table["negative_scores"]).to_numpy()
    gaps = np.round(_gaps(table["positive_score"].to_numpy()[rows], scores), 9)
    order = np.lexsort((document, query, gaps))
    codes = (query << 32) | document
    _, first = np.unique(codes[order], return_index=True)
    return np.asarray(order[np.sort(first)[:SHOWN]])


def _gaps(positive: npt.NDArray[np.float64], negative: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray((positive - negative) / np.maximum(np.abs(positive), 1e-9))


def _taken(file: pq.ParquetFile, rows: Integers, places: Integers) -> list[Example]:
    """The negatives at these places of these rows."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    starts = np.cumsum([0, *sizes])
    groups = np.searchsorted(starts, rows, side="right") - 1
    triples: dict[int, Triple] = {}
    for group in np.unique(groups).tolist():
        wanted = np.unique(rows[groups == group])
        found = file.read_row_group(group).take(pa.array(wanted - starts[group]))
        triples |= zip(wanted.tolist(), read_triples_table(found), strict=True)
    chosen = zip(rows.tolist(), places.tolist(), strict=True)
    return [Example(triples[row], triples[row].negatives[place]) for row, place in chosen]


def report_html(
    stats: Mapping[str, Any],
    config: MiningConfig,
    worst: Sequence[Example],
    drawn: Sequence[Example],
    texts: Mapping[str, str],
    model: str,
) -> str:
    """The page: counts, pictures and examples. `texts` are those of the most used documents, `model` names the base."""
    return render(
        "mining",
        "mined.html.j2",
        stats=stats,
        model=model,
        outcomes=_outcomes(stats),
        facts=FACTS,
        pictures=_pictures(stats, config),
        passing=_passing(stats, config.margin_fraction),
        examples={"Nearest to their positive": worst, "Drawn at random": drawn} if worst else {},
        texts=texts,
        judged=[source.label for source in config.sources if source.source == "judged"],
        unranked=[source.label for source in config.sources if source.source in UNRANKED],
        settings=yaml.safe_dump(config.resolved(), sort_keys=False, allow_unicode=True),
        long_text=LONG_TEXT,
    )


def _outcomes(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What became of candidates, in the order in which the reasons are asked."""
    counts = {"kept": stats["kept"], **stats["dropped"]}
    return [
        {
            "name": name,
            "count": counts[name],
            "share": counts[name] / max(1, stats["retrieved"]),
            "suspected": name in SUSPECTED,
            "meaning": MEANINGS[name],
        }
        for name in OUTCOMES
        if name in counts
    ]


def _pictures(stats: Mapping[str, Any], config: MiningConfig) -> dict[str, str]:
    """The survival curve, and the histograms that have something to show."""
    survival, histograms = stats["survival"], stats["histograms"]
    curves = {
        "pairs with all negatives": [count / survival["pairs"] for count in survival["filled"]],
        "negatives there are": [count / survival["asked"] for count in survival["available"]],
    }
    margins, edges = survival["margin_fraction"], histograms["edges"]
    scores = {f"{name}s": histograms[name] for name in ("positive", "candidate", "negative")}
    difference = {"differences": histograms["difference"]}
    return {
        "survival": curve_picture(
            margins, curves, "What each margin would leave", "margin_fraction", config.margin_fraction
        ),
        "scores": histogram_picture(edges, scores, "Scores with the base model", "cosine"),
        "difference": histogram_picture(
            edges, difference, "Positive's score minus negative's", "difference of cosines"
        ),
    }


def _passing(stats: Mapping[str, Any], margin_fraction: float | None) -> dict[str, Any] | None:
    """The point of the survival curve at the margin in use; None where the curve has none."""
    survival = stats["survival"]
    if margin_fraction not in survival["margin_fraction"]:
        return None
    place = survival["margin_fraction"].index(margin_fraction)
    return {
        "margin_fraction": margin_fraction,
        **{name: survival[name][place] for name in ("filled", "available")},
        **{name: survival[name] for name in ("pairs", "asked")},
    }
