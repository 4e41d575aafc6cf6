"""Where candidates come from: the base model's index, other encoders, BM25, run files, judgments, and chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from closecall.bm25 import Bm25Index
from closecall.encoding import Vectors
from closecall.errors import DataError
from closecall.readers import some
from closecall.records import Document, Query, Run
from closecall.search import NOTHING, ExactIndex, Hits
from mining.candidates import Integers
from mining.known import Known


class Source(Protocol):
    """Finds documents for queries."""

    ranked: bool
    """Whether its order means nearness, so that the rank window applies."""
    scored: bool
    """Whether its hits have scores of its own."""
    deepens: bool
    """Whether it finds more when asked for more."""

    def find(self, queries: Integers, depth: int) -> Hits:
        """Rows int64 and scores float64, both (n_queries, up to depth), best first; row -1 where there are no more."""
        ...

    def facts(self) -> dict[str, Any]:
        """Counts for the report beside those of its candidates."""
        ...


class DenseSource:
    """The nearest documents of an encoder's index."""

    ranked = scored = deepens = True

    def __init__(self, index: ExactIndex, query_vectors: Vectors) -> None:
        self.index, self.query_vectors = index, query_vectors

    def find(self, queries: Integers, depth: int) -> Hits:
        """The `depth` nearest, cosine."""
        return self.index.search(self.query_vectors[queries], depth)

    def facts(self) -> dict[str, Any]:
        """The measured recall of an approximate search."""
        return self.index.facts()


class Bm25Source:
    """Documents that share words with the query, by BM25."""

    ranked = scored = deepens = True

    def __init__(self, documents: Sequence[Document], queries: Sequence[Query]) -> None:
        self.index = Bm25Index(documents)
        self.queries = [self.index.known_words(query.text) for query in queries]

    def find(self, queries: Integers, depth: int) -> Hits:
        """The `depth` best that share a word, ties by document id."""
        return self.index.search([self.queries[query] for query in queries.tolist()], depth)

    def facts(self) -> dict[str, Any]:
        """Queries that share no word with any document."""
        return {"queries_without": sum(not query.size for query in self.queries)}


class RunSource:
    """The rankings of a TREC run file. What it says of queries that are not mined is not looked at."""

    ranked = scored = deepens = True

    def __init__(self, label: str, run: Run, documents: Sequence[Document], queries: Sequence[Query]) -> None:
        named = {query.query_id for query in queries}
        wanted = {scored.doc_id for query_id in run if query_id in named for scored in run.ranking(query_id)}
        row_of = {document.doc_id: row for row, document in enumerate(documents) if document.doc_id in wanted}
        unknown = sorted(wanted - row_of.keys())
        self.queries_without = sum(query.query_id not in run for query in queries)
        self.unknown_documents = len(unknown)
        if self.queries_without == len(queries):
            raise DataError(
                f"mining source {label}: none of the {len(queries):,} training queries is in the run, which has "
                f"{some(map(repr, run))}; search with the queries of split/train"
            )
        if wanted and not row_of:
            raise DataError(
                f"mining source {label}: none of the run's {len(wanted):,} documents is in the corpus "
                f"({some(map(repr, unknown))}); search the same corpus, with the same ids"
            )
        self.rankings = [
            [(row_of[doc.doc_id], doc.score) for doc in run.ranking(query.query_id) if doc.doc_id in row_of]
            for query in queries
        ]

    def find(self, queries: Integers, depth: int) -> Hits:
        """The first `depth` of each ranking that the corpus holds."""
        chosen = [self.rankings[query][:depth] for query in queries.tolist()]
        return _padded([[row for row, _ in ranking] for ranking in chosen], [[s for _, s in r] for r in chosen])

    def facts(self) -> dict[str, Any]:
        """Training queries that the run lacks, and documents that the corpus lacks."""
        return {"queries_without": self.queries_without, "unknown_documents": self.unknown_documents}


class JudgedSource:
    """The documents that people judged not relevant: certified negatives."""

    ranked, scored, deepens = False, False, False

    def __init__(self, known: Known) -> None:
        self.queries, self.rows = known.certified()

    def find(self, queries: Integers, depth: int) -> Hits:
        """All of them, whatever `depth` says."""
        starts, ends = (np.searchsorted(self.queries, queries, side) for side in ("left", "right"))
        return _padded([self.rows[a:b].tolist() for a, b in zip(starts, ends, strict=True)], None)

    def facts(self) -> dict[str, Any]:
        """How many there are."""
        return {"certified": len(self.rows)}


class RandomSource:
    """Documents drawn for each query, for contrast; the draw depends on the seed and the query id alone."""

    ranked, scored, deepens = False, False, False

    def __init__(self, hashes: npt.NDArray[np.uint64], size: int, seed: int) -> None:
        self.hashes, self.size, self.seed = hashes, size, seed

    def find(self, queries: Integers, depth: int) -> Hits:
        """`depth` different documents, or the whole corpus in random order."""
        drawn = [
            np.random.default_rng([self.seed, int(self.hashes[query])]).choice(
                self.size, min(depth, self.size), replace=False
            )
            for query in queries.tolist()
        ]
        rows = np.asarray(drawn, dtype=np.int64).reshape(len(queries), -1)
        return Hits(rows, np.full(rows.shape, np.nan))

    def facts(self) -> dict[str, Any]:
        """Nothing more."""
        return {}


def _padded(rows: Sequence[Sequence[int]], scores: Sequence[Sequence[float]] | None) -> Hits:
    """Lists of different lengths as arrays."""
    width = max(map(len, rows), default=0)
    filled = np.full((len(rows), width), NOTHING, dtype=np.int64)
    values = np.full((len(rows), width), np.nan)
    for line, found in enumerate(rows):
        filled[line, : len(found)] = found
        if scores is not None:
            values[line, : len(found)] = scores[line]
    return Hits(filled, values)


def facts_of(sources: Mapping[str, Source]) -> dict[str, dict[str, Any]]:
    """The facts of each source by its name."""
    return {name: source.facts() for name, source in sources.items()}
