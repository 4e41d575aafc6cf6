"""The numbers of a mining run: counts that add up, score distributions, survival by margin, slices, hub documents."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from closecall.slices import Slice
from mining.artifact import Found, Integers, Pairs
from mining.filters import CODE, OUTCOMES, SUSPECTED
from mining.select import count_uses
from mining.survival import OPEN, Survival, gaps, survivors

MOST_USED = 10
BINS = 100
"""Of the histograms: so many for scores from 0 to 1."""

Floats = npt.NDArray[np.float64]


class Statistics:
    """Takes the candidates block by block; memory grows with pairs and kept negatives, not with candidates."""

    def __init__(self, pairs: Pairs, ceilings: Floats, negatives: int, sources: Sequence[str]) -> None:
        self.pairs, self.ceilings, self.negatives, self.sources = pairs, ceilings, negatives, tuple(sources)
        self.survival = Survival(negatives)
        self.counts = np.zeros((len(pairs), len(OUTCOMES)), dtype=np.int32)
        self.uses = np.zeros(len(pairs.documents), dtype=np.int32)
        self.candidates = Histogram()
        self.found = np.zeros((len(self.sources), 2), dtype=np.int64)
        self._next = 0
        self.kept_pair: list[Integers] = []
        self.kept_score: list[Floats] = []

    def add(self, block: Found, last: int) -> None:
        """Count the pairs up to before `last`, whose candidates are all in the block."""
        size, first = len(OUTCOMES), self._next
        self._next = last
        codes = (block.pair - first) * size + block.outcome
        self.counts[first:last] += np.bincount(codes, minlength=(last - first) * size).reshape(-1, size)
        self.candidates.add(block.score[~_SETTLED[block.outcome]])
        gap = gaps(block, self.ceilings)
        self.survival.add(survivors(block, gap, _LEFT_TO_MARGIN[block.outcome], first, last - first))
        kept = np.flatnonzero(block.outcome == CODE["kept"])
        count_uses(self.uses, block.row[kept], self.pairs.query[block.pair[kept]])
        self.kept_pair.append(block.pair[kept])
        self.kept_score.append(block.score[kept])
        for number, name in enumerate(self.sources):
            ranks = block.source_ranks[name]
            self.found[number] += (np.count_nonzero(ranks), np.count_nonzero(ranks[kept]))

    def result(self, facts: Mapping[str, Mapping[str, Any]], slices: Sequence[Slice]) -> dict[str, Any]:
        """The content of `stats.json`: retrieved = kept + dropped, asked = kept + short, in all and by slice."""
        pair = np.concatenate(self.kept_pair)
        score = np.concatenate(self.kept_score)
        scores = {"positive": self.pairs.score, "negative": score, "difference": self.pairs.score[pair] - score}
        return {
            **self._counted(np.ones(len(self.pairs), dtype=np.bool_)),
            "sources": {
                name: {"candidates": int(found), "kept": int(kept), **facts[name]}
                for name, (found, kept) in zip(self.sources, self.found, strict=True)
            },
            "scores": {name: distribution(values) for name, values in scores.items()},
            "histograms": {
                "edges": Histogram.edges(),
                "candidate": self.candidates.counts.tolist(),
                **{name: Histogram.of(values) for name, values in scores.items()},
            },
            "survival": self.survival.as_json(),
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
        used = [(-uses, row) for row, uses in enumerate(self.uses.tolist()) if uses]
        most = heapq.nsmallest(MOST_USED, used, key=lambda item: (item[0], self.pairs.documents[item[1]].doc_id))
        return [{"doc_id": self.pairs.documents[row].doc_id, "queries": -uses} for uses, row in most]


def distribution(values: Floats) -> dict[str, float] | None:
    """Mean and quantiles of scores, rounded to 4 decimals; None when there are none."""
    if not values.size:
        return None
    quantiles = zip(("min", "p25", "median", "p75", "max"), np.quantile(values, [0, 0.25, 0.5, 0.75, 1]), strict=True)
    return {"mean": round(float(np.mean(values)), 4)} | {name: round(float(value), 4) for name, value in quantiles}


class Histogram:
    """Counts of scores in 200 bins of 0.01 from -1 to 1; what lies beyond is counted in the last bin."""

    def __init__(self) -> None:
        self.counts: Integers = np.zeros(2 * BINS, dtype=np.int64)

    def add(self, scores: Floats) -> None:
        """Count some scores."""
        bins = np.clip(np.floor(scores * BINS + BINS + 1e-9), 0, 2 * BINS - 1).astype(np.int64)
        self.counts += np.bincount(bins, minlength=2 * BINS)

    @classmethod
    def of(cls, scores: Floats) -> list[int]:
        """The counts of these scores alone."""
        histogram = cls()
        histogram.add(scores)
        return [int(count) for count in histogram.counts]

    @staticmethod
    def edges() -> list[float]:
        """The 201 edges of the bins."""
        return [round(number / BINS - 1, 2) for number in range(2 * BINS + 1)]

    def distribution(self) -> dict[str, float] | None:
        """Mean and quantiles to the middle of a bin; None when there are no scores."""
        middles = (np.arange(2 * BINS) + 0.5) / BINS - 1
        return distribution(np.repeat(middles, _at_most(self.counts, 100_000)))


def _at_most(counts: Integers, total: int) -> Integers:
    """The counts, scaled down where they are more in all; none that is above 0 becomes 0."""
    scale = max(1.0, counts.sum() / total)
    return np.asarray(np.ceil(counts / scale), dtype=np.int64)


_SETTLED = np.isin(np.arange(len(OUTCOMES)), [CODE[name] for name in OUTCOMES[1:5]])
"""By outcome: whether the judgments or the text alone rule the candidate out."""

_LEFT_TO_MARGIN = np.isin(np.arange(len(OUTCOMES)), OPEN)
"""By outcome: whether the margin and what follows decided on the candidate."""
