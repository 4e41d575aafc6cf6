"""Queries x corpus -> the nearest documents: exact search, ties by document id."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from closecall.encoding import Vectors
from closecall.errors import DataError
from closecall.processes import helpers, share
from closecall.records import Run, ScoredDoc

if TYPE_CHECKING:
    from torch import Tensor

NOTHING = -1
"""Stands for "no document" in the rows of hits."""
SCORE_DECIMALS = 6
"""Scores are rounded to what a run file holds: float32 noise (1e-7) decides no rank, and file and memory agree."""


@dataclass(frozen=True)
class Hits:
    """The nearest documents of each query, best first."""

    rows: npt.NDArray[np.int64]
    """int64 (n_queries, depth): row of the document in the corpus; NOTHING where there are no more."""
    scores: npt.NDArray[np.float64]
    """float64 (n_queries, depth): cosine in [-1, 1], rounded to 6 decimals, descending; ties by document id."""

    def first(self, depth: int) -> Hits:
        """The first `depth` of each line."""
        return Hits(self.rows[:, :depth], self.scores[:, :depth])


def rounded(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Scores as they are compared and written: float64, 6 decimals, no negative zero."""
    return np.asarray(np.round(scores.astype(np.float64), SCORE_DECIMALS) + 0.0, dtype=np.float64)


TIE_SLACK = 8
"""So many more are fetched than asked for: ties at the cut end within them, but for corpora full of copies."""

DOCUMENTS_AT_ONCE, QUERIES_AT_ONCE = 65_536, 256
"""Scores that are in memory at once: 64 MiB."""
SCORED_AT_ONCE = 4096
"""Pairs whose vectors are gathered at once: 12 MiB at 384 dimensions."""


class ExactIndex:
    """Exact search over document vectors where they lie, without a copy; with unit rows the score is the cosine."""

    def __init__(self, vectors: Vectors, doc_ids: Sequence[str]) -> None:
        if len(vectors) != len(doc_ids):
            raise ValueError(f"{len(vectors)} vectors for {len(doc_ids)} document ids")
        if not np.isfinite(vectors @ np.ones(vectors.shape[1], dtype=np.float32)).all():
            raise ValueError("a document vector is not finite; it would be ranked anywhere")
        self.doc_ids, self._vectors = doc_ids, np.asarray(vectors)
        self._shared: list[_Shard] | None = None
        order = np.argsort(np.asarray(doc_ids, dtype=object), kind="stable")
        self.id_rank = np.empty(len(order), dtype=np.int32)
        """int32 (n_documents,): the place of each document in the order of ids, which decides ties."""
        self.id_rank[order] = np.arange(len(order), dtype=np.int32)

    def __len__(self) -> int:
        return len(self._vectors)

    def facts(self) -> dict[str, Any]:
        """What manifests say of the search; nothing where it is exact."""
        return {}

    def search(self, queries: Vectors, depth: int) -> Hits:
        """The `depth` nearest documents of each query, fewer only when the corpus is smaller.

        Exact, ties included: where the score at the cut equals the next one, that query is searched deeper until the
        tie ends, so that the documents kept are those with the smallest ids.
        """
        if queries.shape[1] != self._vectors.shape[1]:
            raise DataError(
                f"search: query vectors have {queries.shape[1]} dimensions, the documents' {self._vectors.shape[1]}: "
                "they come from two models; encode both with one"
            )
        depth = min(depth, len(self))
        if depth == 0 or len(queries) == 0:
            return Hits(np.empty((len(queries), depth), np.int64), np.empty((len(queries), depth)))
        fetch = min(depth + TIE_SLACK, len(self))
        scores, rows = self._nearest(queries, fetch)
        open_tie = np.flatnonzero(scores[:, depth - 1] == scores[:, -1]) if fetch > depth else np.empty(0, np.int64)
        scores, rows = self._by_id_in_ties(scores, rows)
        scores, rows = scores[:, :depth], rows[:, :depth]
        while open_tie.size and fetch < len(self):
            fetch = min(fetch * 4, len(self))
            deeper, found = self._nearest(queries[open_tie], fetch)
            still = open_tie[deeper[:, depth - 1] == deeper[:, -1]]
            deeper, found = self._by_id_in_ties(deeper, found)
            scores[open_tie], rows[open_tie] = deeper[:, :depth], found[:, :depth]
            open_tie = still
        return Hits(rows, scores)

    def _nearest(self, queries: Vectors, depth: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Rounded scores and rows, both (n_queries, depth), scores descending, ties in any order.

        A block of documents after the other, so that memory does not grow with the corpus. torch's matrix product and
        selection: FAISS's flat index takes 2.5 times as long on a CPU with AVX512 (10,000 queries x 100,000 documents x
        384, two cores; `benchmarks/evaluation-speed.md`).
        """
        shards = self._shards()
        if shards is None:
            best = _nearest(self._vectors, queries, depth)
        else:
            best = _merged(share(_search_shard, [(shard, queries, depth) for shard in shards]), depth)
        return rounded(best[0]), best[1]

    def _shards(self) -> list[_Shard] | None:
        """Where several processes wait for work and there are blocks for them: what each searches, which it then has.

        Blocks are those of one process, so that every score has the same last bit.
        """
        if not helpers() or len(self) <= DOCUMENTS_AT_ONCE:
            return None
        if self._shared is None or self._shared[0].index not in _held:
            blocks = np.array_split(np.arange(0, len(self), DOCUMENTS_AT_ONCE), helpers() + 1)
            starts = [int(block[0]) if len(block) else len(self) for block in blocks]
            name = str(uuid.uuid4())
            self._shared = [_Shard(name, start) for start in starts]
            parts = [self._vectors[start:end] for start, end in pairwise([*starts, len(self)])]
            share(_hold_shard, list(zip(self._shared, parts, strict=True)))
        return self._shared

    def _by_id_in_ties(
        self, scores: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The same hits with equal scores in the order of document ids; only lines that have a tie are sorted."""
        tied = np.flatnonzero((scores[:, 1:] == scores[:, :-1]).any(axis=1))
        order = np.lexsort((self.id_rank[rows[tied]], -scores[tied]), axis=1)
        rows[tied] = np.take_along_axis(rows[tied], order, axis=1)
        scores[tied] = np.take_along_axis(scores[tied], order, axis=1)
        return scores, rows

    def score(
        self, queries: Vectors, doc_rows: npt.NDArray[np.int64], query_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """float64 (n,): the score of query `query_rows[i]` with document `doc_rows[i]`, rounded as in `search`."""
        result = np.empty(len(doc_rows), dtype=np.float32)
        for start in range(0, len(doc_rows), SCORED_AT_ONCE):
            part = slice(start, start + SCORED_AT_ONCE)
            np.einsum("nd,nd->n", queries[query_rows[part]], self._vectors[doc_rows[part]], out=result[part])
        return rounded(result)


Best = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
"""Scores and rows, both (n_queries, up to depth), scores descending."""


@dataclass(frozen=True)
class _Shard:
    """A part of the documents that one process searches."""

    index: str
    start: int
    """Row of its first document in the corpus."""


_held: dict[str, Vectors] = {}
"""The shards of this process by index, those of the last two: base and tuned are searched in turn."""
HELD_INDEXES = 2


def _hold_shard(shard: _Shard, vectors: Vectors) -> None:
    while len(_held) >= HELD_INDEXES:
        del _held[next(iter(_held))]
    _held[shard.index] = vectors


def _search_shard(shard: _Shard, queries: Vectors, depth: int) -> Best:
    scores, rows = _nearest(_held[shard.index], queries, depth)
    return scores, rows + shard.start


def _merged(found: Sequence[Best], depth: int) -> Best:
    """The best of several shards."""
    import torch

    scores = torch.cat([torch.from_numpy(part[0]) for part in found], dim=1)
    rows = torch.cat([torch.from_numpy(part[1]) for part in found], dim=1)
    kept = torch.topk(scores, min(depth, scores.shape[1]), dim=1)
    return kept.values.numpy(), rows.gather(1, kept.indices).numpy()


def _nearest(vectors: Vectors, queries: Vectors, depth: int) -> Best:
    """The best of these vectors, block by block; on a GPU where there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = [_tensor(part).to(device) for part in _blocks(queries)]
    scores = torch.empty((len(queries), 0), device=device)
    rows = torch.empty((len(queries), 0), dtype=torch.int64, device=device)
    for start in range(0, len(vectors), DOCUMENTS_AT_ONCE):
        documents = _tensor(vectors[start : start + DOCUMENTS_AT_ONCE]).to(device)
        found = [_top(part @ documents.T, depth) for part in asked]
        scores = torch.cat([scores, torch.cat([values for values, _ in found])], dim=1)
        rows = torch.cat([rows, torch.cat([rows for _, rows in found]) + start], dim=1)
        kept = torch.topk(scores, min(depth, scores.shape[1]), dim=1)
        scores, rows = kept.values, rows.gather(1, kept.indices)
    return scores.cpu().numpy(), rows.cpu().numpy()


def _blocks(queries: Vectors) -> Iterator[Vectors]:
    return (queries[start : start + QUERIES_AT_ONCE] for start in range(0, len(queries), QUERIES_AT_ONCE))


def _tensor(vectors: Vectors) -> Tensor:
    """The same memory as a tensor; that a mapped file cannot be written to is no matter, it is only read."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(vectors))


def _top(scores: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The largest scores of each line and their columns, in any order."""
    import torch

    found = torch.topk(scores, min(depth, scores.shape[1]), dim=1, sorted=False)
    return found.values, found.indices


def as_run(hits: Hits, query_ids: Sequence[str], doc_ids: Sequence[str]) -> Run:
    """Hits as a run: the ranked, scored list of each query."""
    return Run(
        {
            query_id: [ScoredDoc(doc_ids[row], float(score)) for row, score in zip(rows, scores, strict=True)]
            for query_id, rows, scores in zip(query_ids, hits.rows.tolist(), hits.scores.tolist(), strict=True)
        }
    )
