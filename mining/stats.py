"""The numbers of a mining run: counts that add up, score distributions, survival by margin, slices, hub documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from closecall.slices import Slice
from mining.artifact import Found, Integers, Pairs
from mining.filters import CODE, OUTCOMES, SUSPECTED

MOST_USED = 10
BINS = 100
EDGES = np.linspace(-1.0, 1.0, 2 * BINS + 1)
"""Of the histograms of scores: 200 bins of 0.01."""

Floats = npt.NDArray[np.float64]


class Statistics:
    """Takes the candidates block by block; memory grows with pairs and kept negatives, not with candidates."""

    def __init__(self, pairs: Pairs, negatives: int, sources: Sequence[str]) -> None:
        self.pairs, self.negatives, self.sources = pairs, negatives, tuple(sources)
        self.counts = np.zeros((len(pairs), len(OUTCOMES)), dtype=np.int32)
        self.uses = np.zeros(len(pairs.documents), dtype=np.int32)
        self.candidate_histogram = np.zeros(2 * BINS, dtype=np.int64)
        self.found = np.zeros((len(self.sources), 2), dtype=np.int64)
        self.kept_pair: list[Integers] = []
        self.kept_score: list[Floats] = []

    def add(self, block: Found) -> None:
        """Count a block."""
        size = len(OUTCOMES)
        first, last = int(block.pair[0]), int(block.pair[-1]) + 1
        codes = (block.pair - first) * size + block.outcome
        self.counts[first:last] += np.bincount(codes, minlength=(last - first) * size).reshape(-1, size)
        self.candidate_histogram += _histogram(block.score[_unjudged(block)])
        kept = np.flatnonzero(block.outcome == CODE["kept"])
        np.add.at(self.uses, _once_per_query(block.row[kept], self.pairs.query[block.pair[kept]]), 1)
        self.kept_pair.append(block.pair[kept])
        self.kept_score.append(block.score[kept])
        for number, name in enumerate(self.sources):
            ranks = block.source_ranks[name]
            self.found[number] += (np.count_nonzero(ranks), np.count_nonzero(ranks[kept]))

    def result(self, facts: Mapping[str, Mapping[str, Any]], slices: Sequence[Slice]) -> dict[str, Any]:
        """The content of `stats.json`: retrieved = kept + dropped, asked = kept + short, in all and by slice."""
        pair = np.concatenate(self.kept_pair)
        score = np.concatenate(self.kept_score)
        negatives = {"positive": self.pairs.score, "negative": score, "difference": self.pairs.score[pair] - score}
        return {
            **self._counted(np.ones(len(self.pairs), dtype=np.bool_)),
            "sources": {
                name: {"candidates": int(found), "kept": int(kept), **facts[name]}
                for name, (found, kept) in zip(self.sources, self.found, strict=True)
            },
            "scores": {name: distribution(values) for name, values in negatives.items()},
            "histograms": {
                "edges": [round(float(edge), 2) for edge in EDGES],
                "positive": _histogram(self.pairs.score).tolist(),
                "candidate": self.candidate_histogram.tolist(),
                "negative": _histogram(score).tolist(),
                "difference": _histogram(self.pairs.score[pair] - score).tolist(),
            },
            "most_used": self._most_used(),
            "slices": {item.name: self._counted(self._members(item)) for item in slices},
        }

    def _counted(self, members: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Counts over some of the pairs."""
        counts = self.counts[members]
        totals, kept = counts.sum(axis=0).tolist(), counts[:, CODE["kept"]]
        asked = len(counts) * self.negatives
        dropped = {name: count for name, count in zip(OUTCOMES[1:], totals[1:], strict=True) if count}
        return {
            "queries": len(np.unique(self.pairs.query[members])),
            "pairs": len(counts),
            "asked": asked,
            "kept": totals[0],
            "short": asked - totals[0],
            "pairs_short": int((kept < self.negatives).sum()),
            "pairs_without_negatives": int((kept == 0).sum()),
            "retrieved": int(counts.sum()),
            "suspected": sum(dropped.get(reason, 0) for reason in SUSPECTED),
            "dropped": dropped,
        }

    def _members(self, item: Slice) -> npt.NDArray[np.bool_]:
        inside = np.asarray([query.query_id in item.query_ids for query in self.pairs.queries], dtype=np.bool_)
        return np.asarray(inside[self.pairs.query])

    def _most_used(self) -> list[dict[str, Any]]:
        """The documents that are a negative of most queries; ties by document id."""
        used = np.flatnonzero(self.uses)
        order = sorted(used.tolist(), key=lambda row: (-self.uses[row], self.pairs.documents[row].doc_id))
        return [
            {"doc_id": self.pairs.documents[row].doc_id, "queries": int(self.uses[row])} for row in order[:MOST_USED]
        ]


def distribution(values: Floats) -> dict[str, float] | None:
    """Mean and quantiles of scores, rounded to 4 decimals; None when there are none."""
    if not values.size:
        return None
    quantiles = zip(("min", "p25", "median", "p75", "max"), np.quantile(values, [0, 0.25, 0.5, 0.75, 1]), strict=True)
    return {"mean": round(float(np.mean(values)), 4)} | {name: round(float(value), 4) for name, value in quantiles}


def _histogram(scores: Floats) -> Integers:
    """Counts in bins of 0.01 from -1 to 1; what lies beyond is counted in the last bin."""
    bins = np.clip(np.floor(scores * BINS + BINS + 1e-9), 0, 2 * BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=2 * BINS)


_JUDGED = (CODE["not_finite"], CODE["judged_positive"], CODE["partly_relevant"], CODE["same_text"])


def _unjudged(block: Found) -> npt.NDArray[np.bool_]:
    """The candidates that the judgments and texts leave open."""
    return np.asarray(~np.isin(block.outcome, _JUDGED))


def _once_per_query(rows: Integers, queries: Integers) -> Integers:
    """The document row of each different (document, query)."""
    return np.asarray(np.unique(np.stack([rows, queries]), axis=1)[0])
