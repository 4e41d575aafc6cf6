"""Judged queries and their vectors in, triples and dropped candidates out: all arrays, in blocks of queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from closecall.encoder import Vectors
from closecall.errors import DataError
from closecall.records import Document
from closecall.search import ExactIndex
from closecall.split import Part
from mining.artifact import Dropped, Found, Triple, dropped_table, read_dropped_table, read_triples_table, triples_table
from mining.config import MiningConfig
from mining.filters import OUTCOMES, judged_positive, not_finite, outcomes, partly_relevant, within_margin
from mining.known import Integers, known_documents

BLOCK_QUERIES = 1024
"""Queries searched and filtered at once: memory grows with the block, not with the number of queries."""


@dataclass(frozen=True)
class Mined:
    """What mining found: the triples, every candidate that was dropped, and the numbers of both."""

    triples_table: pa.Table
    dropped_table: pa.Table
    stats: Mapping[str, Any]

    @cached_property
    def triples(self) -> list[Triple]:
        """The triples as records."""
        return read_triples_table(self.triples_table)

    @cached_property
    def dropped(self) -> list[Dropped]:
        """The dropped candidates as records."""
        return read_dropped_table(self.dropped_table)


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
        self.known = known_documents(part, documents)
        self.pair_query, self.pair_positive = _pairs(part, documents)
        self.pair_score = self.index.score(query_vectors[self.pair_query], self.pair_positive)

    def mine(self) -> Mined:
        """All triples and dropped candidates, in the order of the judgments."""
        blocks = list(self.blocks())
        found = Found(*(np.concatenate([getattr(block, name) for block in blocks]) for name in Found.NAMES))
        triples = triples_table(
            found, self.part.queries, self.documents, self.pair_query, self.pair_positive, self.pair_score
        )
        dropped = dropped_table(found, self.part.queries, self.documents, self.pair_query, self.pair_positive)
        return Mined(triples, dropped, _stats(found, self.pair_query, self.pair_score, self.config))

    def blocks(self) -> Iterator[Found]:
        """The candidates of all pairs with their outcome, block by block.

        A query that is short of negatives is searched four times deeper, that one alone, until it has enough or the
        limit is reached; what it was given before is then judged again in the longer list.
        """
        limit = min(self.config.max_depth, len(self.index))
        for first in range(0, len(self.part.queries), BLOCK_QUERIES):
            begin, end = np.searchsorted(self.pair_query, [first, first + BLOCK_QUERIES])
            pairs, depth = np.arange(begin, end), min(self.config.depth, len(self.index))
            rounds: list[Found] = []
            while pairs.size:
                rows, scores, outcome = self._judge(pairs, depth)
                kept = (outcome == 0).sum(axis=1)
                short = np.isin(self.pair_query[pairs], self.pair_query[pairs][kept < self.config.negatives])
                done = ~short if depth < limit else np.ones(len(pairs), dtype=np.bool_)
                rounds.append(Found.of(pairs[done], rows[done], scores[done], outcome[done]))
                pairs, depth = pairs[~done], min(depth * 4, limit)
            if rounds:
                yield Found.in_order(rounds)

    def _judge(self, pairs: Integers, depth: int) -> tuple[Integers, npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
        """Rows, scores and outcomes of the `depth` nearest documents of each pair: three arrays (n_pairs, depth)."""
        queries = self.pair_query[pairs]
        searched, line = np.unique(queries, return_inverse=True)
        hits = self.index.search(self.query_vectors[searched], depth)
        rows, scores = (hits.rows, hits.scores) if len(searched) == len(pairs) else (hits.rows[line], hits.scores[line])
        grades, positive_from = self.known.grades(queries, rows), self.part.qrels.positive_from
        marks = [
            ("not_finite", not_finite(scores)),
            ("judged_positive", judged_positive(grades, positive_from)),
            ("partly_relevant", partly_relevant(grades, positive_from)),
            ("same_text", self.known.same_text(queries, rows)),
            ("within_margin", within_margin(scores, self.pair_score[pairs, None], self.config.margin_fraction)),
        ]
        return rows, scores, outcomes(marks, self.config.negatives)


def _pairs(part: Part, documents: Sequence[Document]) -> tuple[Integers, Integers]:
    """Position of the query and row of the positive of every (query, positive), in the order of the file."""
    row_of = {document.doc_id: row for row, document in enumerate(documents)}
    pairs = [
        (position, row_of[doc_id])
        for position, query in enumerate(part.queries)
        for doc_id in part.qrels.positives(query.query_id)
    ]
    if not pairs:
        raise DataError("mining: no training query has a positive; judge some documents as relevant first")
    array = np.asarray(pairs, dtype=np.int64)
    return array[:, 0], array[:, 1]


def _stats(
    found: Found, pair_query: Integers, pair_score: npt.NDArray[np.float64], config: MiningConfig
) -> dict[str, Any]:
    """Counts that add up: retrieved = kept + dropped, asked = kept + short; and the distributions of scores."""
    counts = np.bincount(found.outcome, minlength=len(OUTCOMES)).tolist()
    kept = found.outcome == 0
    per_pair = np.bincount(found.pair[kept], minlength=len(pair_query))
    asked = len(pair_query) * config.negatives
    return {
        "queries": len(np.unique(pair_query)),
        "pairs": len(pair_query),
        "asked": asked,
        "kept": counts[0],
        "short": asked - counts[0],
        "pairs_short": int((per_pair < config.negatives).sum()),
        "pairs_without_negatives": int((per_pair == 0).sum()),
        "retrieved": len(found.outcome),
        "dropped": {name: count for name, count in sorted(zip(OUTCOMES[1:], counts[1:], strict=True)) if count},
        "scores": {
            "positive": _distribution(pair_score),
            "negative": _distribution(found.score[kept]),
            "difference": _distribution(pair_score[found.pair[kept]] - found.score[kept]),
        },
    }


def _distribution(values: npt.NDArray[np.float64]) -> dict[str, float] | None:
    """Mean and quantiles of scores, rounded to 4 decimals; None when there are none."""
    if not values.size:
        return None
    quantiles = zip(("min", "p25", "median", "p75", "max"), np.quantile(values, [0, 0.25, 0.5, 0.75, 1]), strict=True)
    return {"mean": round(float(np.mean(values)), 4)} | {name: round(float(value), 4) for name, value in quantiles}
