"""A stronger model that scores candidates again: what it thinks as relevant as the positive is no negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from closecall.cross_encoder import SAVED_AT_ONCE, CrossEncoderScorer
from closecall.encoding import Vectors
from closecall.models import resolve_model
from mining.candidates import Integers, Scores
from mining.config import GuideConfig


class Guide(Protocol):
    """Scores pairs of a query and a document, higher = more relevant."""

    def scores(self, queries: Integers, rows: Integers) -> Scores:
        """float64 (n,): of query i (its position) and document i (its row in the corpus); NaN where it has none."""
        ...


@dataclass(frozen=True)
class EncoderGuide:
    """A stronger encoder: the cosine of its vectors."""

    query_vectors: Vectors
    document_vectors: Vectors

    def scores(self, queries: Integers, rows: Integers) -> Scores:
        """float64 (n,), in [-1, 1]."""
        result = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), SAVED_AT_ONCE):
            part = slice(start, start + SAVED_AT_ONCE)
            np.einsum(
                "nd,nd->n", self.query_vectors[queries[part]], self.document_vectors[rows[part]], out=result[part]
            )
        return np.asarray(np.round(result.astype(np.float64), 6), dtype=np.float64)


@dataclass(frozen=True)
class CrossEncoderGuide:
    """A cross-encoder over the queries and documents of a mining."""

    scorer: CrossEncoderScorer
    query_texts: Sequence[str]
    document_texts: Sequence[str]

    def scores(self, queries: Integers, rows: Integers) -> Scores:
        """float64 (n,): in the model's own range, 0 to 1 for most; NaN where the model gives no number."""
        return self.scorer.pair_scores(
            [
                (self.query_texts[query], self.document_texts[row])
                for query, row in zip(queries.tolist(), rows.tolist(), strict=True)
            ]
        )


def guide_folder(config: GuideConfig) -> Path:
    """The folder of the cross-encoder a config names."""
    assert config.cross_encoder is not None
    return resolve_model(config.cross_encoder)
