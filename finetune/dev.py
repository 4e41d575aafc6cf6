"""The dev split, measured by retrieval while training: what chooses the checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from closecall.corpus import Texts, ids_of
from closecall.encoder import Encoder
from closecall.encoding import Vectors
from closecall.measures import Measure, per_query
from closecall.records import Document
from closecall.search import ExactIndex, as_run
from closecall.split import Part
from closecall.vectors import VectorStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEPTH = 100
"""Ranks retrieved per dev query; a measure with a larger cutoff retrieves as many as it needs."""


@dataclass(frozen=True)
class DevSet:
    """The dev queries, the documents they search and the measure that counts."""

    part: Part
    documents: Sequence[Document]
    measure: Measure

    def value(self, encoder: Encoder, store: VectorStore) -> float:
        """The mean of the measure over the dev queries, in [0, 1], by vectors that are kept in the store."""
        documents = store.get(encoder, self.document_texts(), "document", f"{len(self.documents):,} documents")
        return self.score(documents, store.get(encoder, self.query_texts(), "query", "dev queries"))

    def score(self, documents: Vectors, queries: Vectors) -> float:
        """The mean of the measure over the dev queries, in [0, 1]: exact search by these vectors."""
        doc_ids = ids_of(self.documents)
        hits = ExactIndex(documents, doc_ids).search(queries, max(DEPTH, self.measure.cutoff or 0))
        run = as_run(hits, [query.query_id for query in self.part.queries], doc_ids)
        return per_query(self.part.qrels, run, [self.measure]).mean(self.measure)

    def document_texts(self) -> Sequence[str]:
        """What is encoded of the documents, in their order."""
        return Texts(self.documents)

    def query_texts(self) -> list[str]:
        """The texts of the dev queries, in their order."""
        return [query.text for query in self.part.queries]

    def pool(self, documents: Vectors, queries: Vectors, size: int) -> list[int]:
        """Rows of the documents judged for these queries and of `size` nearest to them, rank by rank.

        The vectors are those of the base. What only a tuned model would confuse is missing from the pool, so it ranks
        checkpoints among each other; whether one beats the base is decided on all documents.
        """
        row = {doc_id: number for number, doc_id in enumerate(ids_of(self.documents))}
        chosen = dict.fromkeys(
            row[judgment.doc_id] for judgment in self.part.qrels.judgments() if judgment.doc_id in row
        )
        hits = ExactIndex(documents, list(row)).search(queries, DEPTH)
        wanted = len(chosen) + size
        if wanted >= len(self.documents):
            return list(range(len(self.documents)))
        for number in hits.rows.T.ravel().tolist():
            if len(chosen) >= wanted:
                break
            chosen.setdefault(number)
        return sorted(chosen)

    def over(self, rows: Sequence[int]) -> DevSet:
        """The same queries over some of the documents."""
        return DevSet(self.part, [self.documents[row] for row in rows], self.measure)


def mean_pairwise_cosine(vectors: Vectors) -> float:
    """The mean cosine of two different rows of unit vectors; near 1 when they have collapsed to one."""
    count = len(vectors)
    if count < 2:
        return 0.0
    total = np.square(vectors.sum(axis=0, dtype=np.float64)).sum()
    return float((total - count) / (count * (count - 1)))


def weights_fingerprint(model: SentenceTransformer) -> str:
    """A hash of all weights of a model in memory: names, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
