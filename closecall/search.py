"""Queries x corpus -> the nearest documents: exact search by FAISS, ties by document id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from closecall.encoder import Vectors
from closecall.records import Run, ScoredDoc

SCORE_DECIMALS = 6
"""Scores are rounded to what a run file holds: float32 noise (1e-7) decides no rank, and file and memory agree."""


@dataclass(frozen=True)
class Hits:
    """The nearest documents of each query, best first."""

    rows: npt.NDArray[np.int64]
    """int64 (n_queries, depth): row of the document in the corpus."""
    scores: npt.NDArray[np.float64]
    """float64 (n_queries, depth): cosine in [-1, 1], rounded to 6 decimals, descending; ties by document id."""


def rounded(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Scores as they are compared and written: float64, 6 decimals, no negative zero."""
    return np.asarray(np.round(scores.astype(np.float64), SCORE_DECIMALS) + 0.0, dtype=np.float64)


class ExactIndex:
    """All document vectors in a flat inner-product index; with unit rows the score is the cosine."""

    def __init__(self, vectors: Vectors, doc_ids: Sequence[str]) -> None:
        import faiss  # loaded after torch: on macOS the other order can crash the process (faiss issue 2317)

        if len(vectors) != len(doc_ids):
            raise ValueError(f"{len(vectors)} vectors for {len(doc_ids)} document ids")
        if not np.isfinite(vectors).all():
            raise ValueError("a document vector is not finite; FAISS would rank it anywhere")
        self.doc_ids = list(doc_ids)
        self._vectors = vectors
        order = np.argsort(np.asarray(self.doc_ids, dtype=object), kind="stable")
        self._id_rank = np.empty(len(order), dtype=np.int64)
        self._id_rank[order] = np.arange(len(order))
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def __len__(self) -> int:
        return len(self.doc_ids)

    def search(self, queries: Vectors, depth: int) -> Hits:
        """The `depth` nearest documents of each query, fewer only when the corpus is smaller.

        Exact, ties included: where the score at the cut equals the next one, that query is searched deeper until the
        tie ends, so that the documents kept are those with the smallest ids.
        """
        depth = min(depth, len(self))
        if depth == 0 or len(queries) == 0:
            return Hits(np.empty((len(queries), depth), np.int64), np.empty((len(queries), depth)))
        rows = np.empty((len(queries), depth), dtype=np.int64)
        scores = np.empty((len(queries), depth), dtype=np.float64)
        pending, fetch = np.arange(len(queries)), min(depth + 1, len(self))
        while pending.size:
            raw_scores, found_rows = self._index.search(queries[pending], fetch)
            found_scores = rounded(raw_scores)
            order = np.lexsort((self._id_rank[found_rows], -found_scores), axis=1)[:, :depth]
            rows[pending] = np.take_along_axis(found_rows, order, axis=1)
            scores[pending] = np.take_along_axis(found_scores, order, axis=1)
            open_tie = found_scores[:, depth - 1] == found_scores[:, -1]
            done = fetch == len(self)
            pending = pending[:0] if done else pending[open_tie]
            fetch = min(fetch * 4, len(self))
        return Hits(rows, scores)

    def score(self, queries: Vectors, doc_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """float64 (n,): the score of query i with document `doc_rows[i]`, rounded as in `search`."""
        return rounded(np.einsum("nd,nd->n", queries, self._vectors[doc_rows], dtype=np.float32))


def as_run(hits: Hits, query_ids: Sequence[str], doc_ids: Sequence[str]) -> Run:
    """Hits as a run: the ranked, scored list of each query."""
    return Run(
        {
            query_id: [ScoredDoc(doc_ids[row], float(score)) for row, score in zip(rows, scores, strict=True)]
            for query_id, rows, scores in zip(query_ids, hits.rows.tolist(), hits.scores.tolist(), strict=True)
        }
    )
