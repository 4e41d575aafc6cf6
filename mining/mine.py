"""Judged queries and an encoder in, triples and dropped candidates out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from closecall.encoder import Vectors
from closecall.errors import DataError
from closecall.records import Document
from closecall.search import ExactIndex
from closecall.split import Part
from closecall.text import normalise
from mining.artifact import Dropped, HardNegative, Triple
from mining.config import MiningConfig
from mining.filters import (
    KEPT,
    judged_positive,
    not_finite,
    outcomes,
    partly_relevant,
    same_text,
    within_margin,
)


@dataclass(frozen=True)
class Mined:
    """What mining found: the triples, every candidate that was dropped, and the numbers of both."""

    triples: tuple[Triple, ...]
    dropped: tuple[Dropped, ...]
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class _Candidates:
    """The retrieved documents of one query, best first."""

    rows: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]


class Miner:
    """Mines one set of judged queries against one corpus. Vectors are unit rows in the order of the texts."""

    def __init__(
        self,
        documents: Sequence[Document],
        document_vectors: Vectors,
        part: Part,
        query_vectors: Vectors,
        config: MiningConfig,
    ) -> None:
        self.documents, self.part, self.config = documents, part, config
        self.query_vectors = query_vectors
        self.index = ExactIndex(document_vectors, [document.doc_id for document in documents])
        self._judged = _pooled(part)
        self._row = {document.doc_id: row for row, document in enumerate(documents)}
        self._keys: dict[str, int] = {}
        self._full_keys = self._text_keys(document.full_text for document in documents)
        self._bare_keys = self._text_keys(document.text for document in documents)

    def mine(self) -> Mined:
        """All triples and dropped candidates; a query short of negatives is searched deeper, that one alone."""
        pairs = self._pairs()
        triples: dict[tuple[int, str], Triple] = {}
        dropped: dict[tuple[int, str], list[Dropped]] = {}
        pending, depth = sorted({query for query, _ in pairs}), min(self.config.depth, len(self.index))
        positives: dict[int, list[str]] = {}
        for query, doc_id in pairs:
            positives.setdefault(query, []).append(doc_id)
        while pending:
            hits = self.index.search(self.query_vectors[pending], depth)
            short = []
            for query, rows, scores in zip(pending, hits.rows, hits.scores, strict=True):
                found = _Candidates(rows, scores)
                for doc_id in positives[query]:
                    triples[query, doc_id], dropped[query, doc_id] = self._judge(query, doc_id, found)
                if any(len(triples[query, doc_id].negatives) < self.config.negatives for doc_id in positives[query]):
                    short.append(query)
            limit = min(self.config.max_depth, len(self.index))
            pending, depth = ([], depth) if depth >= limit else (short, min(depth * 4, limit))
        rows_dropped = [row for pair in pairs for row in dropped[pair]]
        kept = [triples[pair] for pair in pairs]
        return Mined(tuple(kept), tuple(rows_dropped), _stats(kept, rows_dropped, self.config))

    def _pairs(self) -> list[tuple[int, str]]:
        """(position of the query, id of the positive), in the order of the file."""
        pairs = [
            (position, doc_id)
            for position, query in enumerate(self.part.queries)
            for doc_id in self.part.qrels.positives(query.query_id)
        ]
        if not pairs:
            raise DataError("mining: no training query has a positive; judge some documents as relevant first")
        return pairs

    def _judge(self, query: int, positive_id: str, found: _Candidates) -> tuple[Triple, list[Dropped]]:
        """The triple of one (query, positive), and its dropped candidates with their reasons."""
        record, qrels = self.part.queries[query], self.part.qrels
        grades = self._judged[normalise(record.text)]
        doc_ids = [self.documents[row].doc_id for row in found.rows.tolist()]
        given = np.asarray([grades.get(doc_id, -1) for doc_id in doc_ids], dtype=np.int64)
        positive_row = np.asarray([self._row[positive_id]])
        positive_score = float(self.index.score(self.query_vectors[query : query + 1], positive_row)[0])
        marks = [
            ("not_finite", not_finite(found.scores)),
            ("judged_positive", judged_positive(given, qrels.positive_from)),
            ("partly_relevant", partly_relevant(given, qrels.positive_from)),
            ("same_text", self._same_text(found.rows, query)),
            ("within_margin", within_margin(found.scores, positive_score, self.config.margin_fraction)),
        ]
        outcome = outcomes(marks, self.config.negatives)
        negatives, dropped = [], []
        for rank, (row, score, word) in enumerate(
            zip(found.rows.tolist(), found.scores.tolist(), outcome, strict=True), start=1
        ):
            document = self.documents[row]
            if word == KEPT:
                negatives.append(HardNegative(document.doc_id, document.full_text, score, rank))
            else:
                dropped.append(Dropped(record.query_id, positive_id, document.doc_id, rank, score, word))
        positive = self.documents[self._row[positive_id]].full_text
        triple = Triple(record.query_id, record.text, positive_id, positive, positive_score, tuple(negatives))
        return triple, dropped

    def _same_text(self, rows: npt.NDArray[np.int64], query: int) -> npt.NDArray[np.bool_]:
        """Copies (title and text) of a document of any grade above 0, and documents that are the query's own text."""
        text = normalise(self.part.queries[query].text)
        judged = self._judged[text].items()
        relevant = [int(self._full_keys[self._row[doc_id]]) for doc_id, grade in judged if grade > 0]
        own = self._keys.get(text)
        copies = same_text(self._full_keys[rows], [*relevant, *([own] if own is not None else [])])
        return copies | same_text(self._bare_keys[rows], [own] if own is not None else [])

    def _text_keys(self, texts: Any) -> npt.NDArray[np.int64]:
        return np.asarray([self._keys.setdefault(normalise(text), len(self._keys)) for text in texts], dtype=np.int64)


def _pooled(part: Part) -> dict[str, dict[str, int]]:
    """Grades by normalised query text: what is relevant to one of two queries with the same text is so to the other.

    Where they disagree the higher grade counts.
    """
    pooled: dict[str, dict[str, int]] = {}
    for query in part.queries:
        grades = pooled.setdefault(normalise(query.text), {})
        for doc_id, grade in part.qrels.grades(query.query_id).items():
            grades[doc_id] = max(grade, grades.get(doc_id, 0))
    return pooled


def _stats(triples: Sequence[Triple], dropped: Sequence[Dropped], config: MiningConfig) -> dict[str, Any]:
    """Counts that add up: retrieved = kept + dropped, asked = kept + short; and the distributions of scores."""
    kept = sum(len(triple.negatives) for triple in triples)
    asked = len(triples) * config.negatives
    short = [triple for triple in triples if len(triple.negatives) < config.negatives]
    positive = [triple.positive_score for triple in triples]
    negative = [negative.score for triple in triples for negative in triple.negatives]
    difference = [triple.positive_score - negative.score for triple in triples for negative in triple.negatives]
    return {
        "queries": len({triple.query_id for triple in triples}),
        "pairs": len(triples),
        "asked": asked,
        "kept": kept,
        "short": asked - kept,
        "pairs_short": len(short),
        "pairs_without_negatives": sum(not triple.negatives for triple in triples),
        "retrieved": kept + len(dropped),
        "dropped": dict(sorted(Counter(row.reason for row in dropped).items())),
        "scores": {
            "positive": _distribution(positive),
            "negative": _distribution(negative),
            "difference": _distribution(difference),
        },
    }


def _distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and quantiles of scores, rounded to 4 decimals; None when there are none."""
    if not values:
        return None
    quantiles = dict(
        zip(("min", "p25", "median", "p75", "max"), np.quantile(values, [0, 0.25, 0.5, 0.75, 1]), strict=True)
    )
    return {"mean": round(float(np.mean(values)), 4)} | {k: round(float(v), 4) for k, v in quantiles.items()}
