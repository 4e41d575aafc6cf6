"""What the sources found for some queries, as one list of candidates each: found by several, listed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from closecall.encoding import Vectors
from closecall.search import NOTHING, ExactIndex, Hits

Integers = npt.NDArray[np.int64]
Ranks = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """One line per query, best candidate first. `NOTHING` fills the lines up at their ends."""

    rows: Integers
    """int64 (n, width): row of the document in the corpus."""
    scores: Scores
    """float64 (n, width): cosine with the base model, descending; ties by document id."""
    ranks: Mapping[str, Ranks]
    """By source, int32 (n, width): its rank there, from 1; 0 = this source did not find it."""
    source_scores: Mapping[str, Scores]
    """By source, float64 (n, width): its score there; NaN where there is none. The base model's are `scores`."""

    def lines(self, numbers: Integers) -> Candidates:
        """Some lines, in this order; a line may come more than once."""
        return Candidates(
            self.rows[numbers],
            self.scores[numbers],
            {name: ranks[numbers] for name, ranks in self.ranks.items()},
            {name: scores[numbers] for name, scores in self.source_scores.items()},
        )

    def best_ranks(self, names: Sequence[str]) -> Ranks:
        """int32 (n, width): the best rank in any of these sources; 0 where none of them ranks the candidate."""
        best = np.full(self.rows.shape, np.iinfo(np.int32).max, dtype=np.int32)
        for name in names:
            ranks = self.ranks[name]
            np.minimum(best, ranks, out=best, where=ranks > 0)
        return np.where(best == np.iinfo(np.int32).max, 0, best).astype(np.int32)


def of_one(name: str, hits: Hits, scored: Mapping[str, bool]) -> Candidates:
    """The hits of the base model's index as they are, when no other source found anything; `scored` as in `merge`."""
    shape = hits.rows.shape
    ranks = {other: np.broadcast_to(np.int32(0), shape) for other in scored}
    ranks[name] = np.broadcast_to(np.arange(1, shape[1] + 1, dtype=np.int32), shape)
    source_scores = {other: np.broadcast_to(np.nan, shape) for other, own in scored.items() if own}
    return Candidates(hits.rows, hits.scores, ranks, source_scores)


def merge(
    found: Mapping[str, Hits],
    scored: Mapping[str, bool],
    base: str | None,
    index: ExactIndex,
    query_vectors: Vectors,
) -> Candidates:
    """The hits of all sources as one list per query, every candidate scored by the base model.

    `scored` says of each source whether it has scores of its own to keep. `base` names the source whose scores are
    the base model's; `index` and `query_vectors` score what it did not find.
    """
    lines, rows, parts = _flat(found)
    keys, inverse = np.unique(lines * len(index) + rows, return_inverse=True)
    line, row = np.divmod(keys, max(1, len(index)))
    scores = np.full(len(keys), np.nan)
    if base is not None:
        scores[inverse[parts[base]]] = found[base].scores[found[base].rows != NOTHING]
    missing = np.flatnonzero(np.isnan(scores))
    scores[missing] = index.score(query_vectors, row[missing], line[missing])
    layout = _Layout.of(line, np.lexsort((index.id_rank[row], -scores, line)), len(query_vectors))
    ranks, source_scores = {}, {}
    for name, hits in found.items():
        there, at = hits.rows != NOTHING, inverse[parts[name]]
        ranks[name] = layout.block((np.nonzero(there)[1] + 1).astype(np.int32), 0, at)
        if scored[name]:
            source_scores[name] = layout.block(hits.scores[there], np.nan, at)
    every = np.arange(len(keys))
    return Candidates(layout.block(row, NOTHING, every), layout.block(scores, -np.inf, every), ranks, source_scores)


@dataclass(frozen=True)
class _Layout:
    """Where each of some flat values stands in lines of unequal length."""

    line: Integers
    column: Integers
    shape: tuple[int, int]

    @classmethod
    def of(cls, line: Integers, order: Integers, lines: int) -> _Layout:
        """For values of these lines, `order` sorting them by line and then by place."""
        counts = np.bincount(line, minlength=lines)
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(line, place - starts[line], (lines, int(counts.max(initial=0))))

    def block(self, values: npt.NDArray[Any], fill: float, at: Integers) -> npt.NDArray[Any]:
        """The values of `at` in their places, `fill` in all others: (lines, width)."""
        block = np.full(self.shape, fill, dtype=values.dtype)
        block[self.line[at], self.column[at]] = values
        return block


def _flat(found: Mapping[str, Hits]) -> tuple[Integers, Integers, dict[str, slice]]:
    """Line and row of every hit of every source, and which of them are whose."""
    lines, rows, parts, start = [], [], {}, 0
    for name, hits in found.items():
        line, column = np.nonzero(hits.rows != NOTHING)
        lines.append(line)
        rows.append(hits.rows[line, column])
        parts[name] = slice(start, start + len(line))
        start += len(line)
    return np.concatenate(lines), np.concatenate(rows), parts
