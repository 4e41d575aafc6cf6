"""What the checks look at: queries with judgments, the documents near them, and what models return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from closecall.bm25 import Bm25Index
from closecall.corpus import by_id
from closecall.dataset import Dataset
from closecall.measures import Gain, Measure, per_query
from closecall.records import Document, Qrels, Query, Run
from closecall.search import as_run
from closecall.text import near_duplicate_groups, words

SAMPLE_QUERIES = 1000
"""Of a larger set so many queries are looked at, drawn with seed 0."""
MAX_DOCUMENTS = 200_000
"""Of larger corpora no BM25 index is made for a check alone; evaluation has rankings anyway."""
DEPTH = 20
NEAR = 0.8
"""Jaccard similarity of word sets from which two queries count as the same question (`split`)."""
BM25 = "bm25"


@dataclass(frozen=True)
class Deciding:
    """The queries that a verdict would rest on."""

    queries: int
    groups: int
    """Independent ones: near-duplicates count once."""
    resolvable_gain: float
    """The smallest gain that so many show with 80 % power."""
    slices: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Name -> column ("" for derived ones) and size."""
    min_slice: int = 0


@dataclass(frozen=True)
class Material:
    """A judged set with rankings. Queries without a positive are left out; documents may lack (run files alone)."""

    queries: Sequence[Query]
    qrels: Qrels
    documents: Mapping[str, Document]
    runs: Mapping[str, Run]
    measure: Measure
    gain: Gain = "exp"
    test: Deciding | None = None

    @cached_property
    def cutoff(self) -> int:
        """The depth that the measure looks at; 10 for one without."""
        return self.measure.cutoff or 10

    @cached_property
    def words(self) -> list[list[str]]:
        """Of each query."""
        return [words(query.text) for query in self.queries]

    @cached_property
    def document_words(self) -> dict[str, frozenset[str]]:
        """Word sets of the positives and of what the runs return."""
        positives = {doc_id for query in self.queries for doc_id in self.qrels.positives(query.query_id)}
        near = {doc_id for query in self.queries for found in self.tops(query.query_id).values() for doc_id in found}
        known = sorted(doc_id for doc_id in positives | near if doc_id in self.documents)
        return {doc_id: frozenset(words(self.documents[doc_id].full_text)) for doc_id in known}

    @cached_property
    def groups(self) -> list[int]:
        """The group of each query: near-duplicates have the same."""
        from scipy.cluster.hierarchy import DisjointSet

        sets = DisjointSet(range(len(self.queries)))
        for one, other in near_duplicate_groups([query.text for query in self.queries], NEAR):
            sets.merge(one, other)
        return [int(sets[row]) for row in range(len(self.queries))]

    def tops(self, query_id: str, depth: int = DEPTH) -> dict[str, list[str]]:
        """The first documents of each run."""
        return {name: [one.doc_id for one in run.ranking(query_id)[:depth]] for name, run in self.runs.items()}

    def values(self, name: str, qrels: Qrels | None = None) -> npt.NDArray[np.float64]:
        """float64 (n_queries,): the measure of a run for each query, in their order."""
        asked = (qrels or self.qrels).only(query.query_id for query in self.queries)
        return per_query(asked, self.runs[name], [self.measure], self.gain).values[str(self.measure)]


def material_of(dataset: Dataset, measure: Measure, gain: Gain, test: Deciding | None) -> Material:
    """The set with BM25's rankings, which need no model."""
    qrels = dataset.qrels
    queries = [query for query in dataset.queries if qrels.positives(query.query_id)]
    if len(queries) > SAMPLE_QUERIES:
        rows = np.random.default_rng(0).choice(len(queries), SAMPLE_QUERIES, replace=False)
        queries = [queries[row] for row in sorted(rows.tolist())]
    runs = {BM25: _bm25(dataset.documents, queries)} if len(dataset.documents) <= MAX_DOCUMENTS else {}
    return Material(queries, qrels, by_id(dataset.documents), runs, measure, gain, test)


def _bm25(documents: Sequence[Document], queries: Sequence[Query]) -> Run:
    index = Bm25Index(documents)
    hits = index.search([index.known_words(query.text) for query in queries], DEPTH)
    return as_run(hits, [query.query_id for query in queries], [document.doc_id for document in documents])
