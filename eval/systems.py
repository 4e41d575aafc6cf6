"""Systems under evaluation: anything that ranks the corpus for a query, alone or made of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from closecall.approximate import EXACT, SearchConfig, open_index
from closecall.bm25 import Bm25Index
from closecall.corpus import Texts, ids_of
from closecall.cross_encoder import CrossEncoderScorer
from closecall.encoder import Encoder, encode_alone
from closecall.encoding import Vectors
from closecall.records import Document, Query, Run
from closecall.search import NOTHING, ExactIndex, Hits, rounded
from closecall.vectors import VectorStore
from eval.answers import answers_of_run, best_first
from eval.quantised import Quantise, QuantisedIndex, bytes_per_vector

Rows = npt.NDArray[np.int64]


class System(Protocol):
    """Ranks documents for queries. Rows count in the corpus, or beyond it for documents that only a run knows."""

    def search(self, queries: Sequence[Query], depth: int, only: Rows | None = None, fresh: bool = False) -> Hits:
        """The `depth` best of the corpus, or of its documents `only` (rows, ascending), ties by document id.

        `fresh`: nothing that was computed before for these queries is used, as when a user asks.
        """
        ...

    @property
    def parts(self) -> tuple[Dense, ...]:
        """The dense indexes it searches, for what they take in memory."""
        ...

    @property
    def doc_ids(self) -> Sequence[str]:
        """What rows mean."""
        ...


@dataclass(frozen=True)
class Searched:
    """The corpus as every system needs it."""

    documents: Sequence[Document]
    search: SearchConfig = EXACT
    indexes: Path | None = None
    """Where approximate indexes are kept."""

    @cached_property
    def doc_ids(self) -> list[str]:
        """Of each document."""
        return ids_of(self.documents)

    @cached_property
    def texts(self) -> Sequence[str]:
        """What is encoded of each document."""
        return Texts(self.documents)

    @cached_property
    def id_rank(self) -> npt.NDArray[np.int32]:
        """int32 (n_documents,): the place of each in the order of ids, which decides ties."""
        rank = np.empty(len(self.documents), dtype=np.int32)
        rank[np.argsort(np.asarray(self.doc_ids, dtype=object), kind="stable")] = np.arange(len(rank))
        return rank

    def known(self, hits: Hits) -> Hits:
        """The hits without documents that only a run knows: they have no text."""
        return Hits(np.where(hits.rows < len(self.documents), hits.rows, NOTHING), hits.scores)


@dataclass
class Dense:
    """Nearest vectors of an encoder, whole, cut to their first dimensions, or quantised."""

    corpus: Searched
    encoder: Encoder
    store: VectorStore
    label: str
    dimensions: int | None = None
    quantise: Quantise | None = None
    rescore: int = 4
    _opened: ExactIndex | None = field(default=None, init=False, repr=False)

    def search(self, queries: Sequence[Query], depth: int, only: Rows | None = None, fresh: bool = False) -> Hits:
        """By cosine; of quantised vectors, `rescore` times as many are fetched and scored again in float32."""
        texts = [query.text for query in queries]
        if fresh:
            vectors = encode_alone(self.encoder, texts, "query")
        else:
            vectors = self.store.get(self.encoder, texts, "query", f"{len(texts):,} queries ({self.label})")
        vectors = cut(vectors, self.dimensions)
        if only is None:
            return self._approximate(vectors, depth).search(vectors, depth)
        hits = self._index(self.documents[only], [self.corpus.doc_ids[row] for row in only]).search(vectors, depth)
        return Hits(only[hits.rows], hits.scores)

    @cached_property
    def documents(self) -> Vectors:
        """float32 (n_documents, dimensions), unit rows."""
        label = f"{len(self.corpus.texts):,} documents ({self.label})"
        return cut(self.store.get(self.encoder, self.corpus.texts, "document", label), self.dimensions)

    @cached_property
    def index(self) -> ExactIndex | QuantisedIndex:
        """Over the whole corpus."""
        return self._index(self.documents, self.corpus.doc_ids)

    def _approximate(self, queries: Vectors, depth: int) -> ExactIndex | QuantisedIndex:
        """The index that the config asks for, its recall measured with the first queries that are searched."""
        corpus = self.corpus
        if corpus.search.kind == "exact" or self.quantise is not None:
            return self.index
        if self._opened is None:
            self._opened = open_index(self.documents, corpus.doc_ids, corpus.search, corpus.indexes, queries, depth)
        return self._opened

    def facts(self) -> dict[str, Any]:
        """The measured recall of an approximate search; nothing where it is exact."""
        return {} if self._opened is None else self._opened.facts()

    def _index(self, vectors: Vectors, doc_ids: Sequence[str]) -> ExactIndex | QuantisedIndex:
        exact = ExactIndex(vectors, doc_ids)
        return exact if self.quantise is None else QuantisedIndex(exact, vectors, self.quantise, self.rescore)

    @property
    def parts(self) -> tuple[Dense, ...]:
        """Itself."""
        return (self,)

    @property
    def doc_ids(self) -> Sequence[str]:
        """Of the corpus."""
        return self.corpus.doc_ids

    @property
    def width(self) -> int:
        """Dimensions of a vector that is searched."""
        return self.dimensions or self.encoder.dimension

    @property
    def bytes_per_vector(self) -> int:
        """What the index holds of a document."""
        return bytes_per_vector(self.width, self.quantise)


def cut(vectors: Vectors, dimensions: int | None) -> Vectors:
    """The first dimensions of each vector, unit rows again."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    kept = vectors[:, :dimensions]
    norms = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.ascontiguousarray(kept / np.maximum(norms, np.finfo(np.float32).tiny), dtype=np.float32)


@dataclass
class Lexical:
    """BM25."""

    corpus: Searched

    @cached_property
    def index(self) -> Bm25Index:
        """Over the whole corpus."""
        return Bm25Index(self.corpus.documents)

    def search(self, queries: Sequence[Query], depth: int, only: Rows | None = None, fresh: bool = False) -> Hits:
        """The best that share a word with the query; rare words are rare in the whole corpus, whatever `only` says."""
        asked = [self.index.known_words(query.text) for query in queries]
        return (
            self.index.search(asked, depth)
            if only is None
            else among(self.index.search(asked, len(self.doc_ids)), only, depth)
        )

    @property
    def parts(self) -> tuple[Dense, ...]:
        """None."""
        return ()

    @property
    def doc_ids(self) -> Sequence[str]:
        """Of the corpus."""
        return self.corpus.doc_ids


class RunFile:
    """What another engine returned."""

    def __init__(self, run: Run, corpus: Searched) -> None:
        self.answers = answers_of_run(run, corpus.doc_ids)

    def search(self, queries: Sequence[Query], depth: int, only: Rows | None = None, fresh: bool = False) -> Hits:
        """The first `depth` of each ranking; nothing for a query that the run lacks."""
        hits, place = self.answers.hits, self.answers.place
        lines = np.asarray([place.get(query.query_id, -1) for query in queries], dtype=np.int64)
        rows = np.where(lines[:, None] < 0, NOTHING, hits.rows[lines]) if len(hits.rows) else hits.rows[lines]
        found = Hits(rows, hits.scores[lines])
        return Hits(found.rows[:, :depth], found.scores[:, :depth]) if only is None else among(found, only, depth)

    @property
    def parts(self) -> tuple[Dense, ...]:
        """None."""
        return ()

    @property
    def doc_ids(self) -> Sequence[str]:
        """Of the corpus, then those of the run that it lacks."""
        return self.answers.doc_ids


@dataclass
class Fused:
    """Reciprocal rank fusion: the sum of 1 / (k + rank) over systems (Cormack et al. 2009, k = 60)."""

    corpus: Searched
    systems: Sequence[System]
    k: int = 60

    def search(self, queries: Sequence[Query], depth: int, only: Rows | None = None, fresh: bool = False) -> Hits:
        """Of the union of what each returns down to `depth`."""
        parts = [self.corpus.known(system.search(queries, depth, only, fresh)).rows for system in self.systems]
        rows = np.concatenate(parts, axis=1)
        worth = np.concatenate(
            [np.tile(1.0 / (self.k + np.arange(1, p.shape[1] + 1)), (len(p), 1)) for p in parts], axis=1
        )
        return best_first(*_summed(rows, worth), self.corpus.id_rank).first(depth)

    @property
    def parts(self) -> tuple[Dense, ...]:
        """Of all its systems."""
        return tuple(part for system in self.systems for part in system.parts)

    @property
    def doc_ids(self) -> Sequence[str]:
        """Of the corpus."""
        return self.corpus.doc_ids


@dataclass
class Reranked:
    """A system whose first documents a cross-encoder puts in a new order; those behind them stay behind."""

    corpus: Searched
    system: System
    scorer: CrossEncoderScorer
    top: int

    def search(self, queries: Sequence[Query], depth: int, only: Rows | None = None, fresh: bool = False) -> Hits:
        """Scores are the cross-encoder's; behind the first `top`, below the lowest of them, in the order found."""
        hits = self.corpus.known(self.system.search(queries, max(depth, self.top), only, fresh))
        lines, columns = np.nonzero(hits.rows[:, : self.top] != NOTHING)
        texts = self.corpus.texts
        pairs = [
            (queries[line].text, texts[row])
            for line, row in zip(lines.tolist(), hits.rows[lines, columns].tolist(), strict=True)
        ]
        found = np.asarray(self.scorer.predict(pairs)) if fresh else self.scorer.pair_scores(pairs)
        if not np.isfinite(found).all():
            raise self.scorer.not_finite(pairs[int(np.flatnonzero(~np.isfinite(found))[0])])
        scores = np.full(hits.rows.shape, np.nan)
        scores[lines, columns] = found
        lowest = np.nanmin(scores, axis=1, initial=np.inf) if len(scores) else np.empty(0)
        behind = np.arange(hits.rows.shape[1] - self.top) + 1.0
        scores[:, self.top :] = np.where(np.isfinite(lowest), lowest, 0.0)[:, None] - behind
        return best_first(hits.rows, scores, self.corpus.id_rank).first(depth)

    @property
    def parts(self) -> tuple[Dense, ...]:
        """Of what it puts in order."""
        return self.system.parts

    @property
    def doc_ids(self) -> Sequence[str]:
        """Of the corpus."""
        return self.corpus.doc_ids


def among(hits: Hits, only: Rows, depth: int) -> Hits:
    """The first `depth` of each line that are among `only`, in their order."""
    kept = np.isin(hits.rows, only)
    order = np.argsort(~kept, axis=1, kind="stable")
    rows = np.take_along_axis(np.where(kept, hits.rows, NOTHING), order, axis=1)
    return Hits(rows, np.take_along_axis(hits.scores, order, axis=1)).first(depth)


def _summed(rows: Rows, worth: npt.NDArray[np.float64]) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Each document of a line once, with the sum of what its places are worth; NOTHING in place of the others."""
    order = np.argsort(rows, axis=1, kind="stable")
    rows, worth = np.take_along_axis(rows, order, axis=1), np.take_along_axis(worth, order, axis=1)
    total = np.cumsum(worth, axis=1)
    last = np.ones(rows.shape, dtype=np.bool_)
    last[:, :-1] = rows[:, 1:] != rows[:, :-1]
    sums = np.zeros_like(total)
    for line in range(len(rows)):
        ends = np.flatnonzero(last[line])
        sums[line, ends] = np.diff(total[line, ends], prepend=0.0)
    return np.where(last, rows, NOTHING), rounded(sums)
