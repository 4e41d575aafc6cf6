"""The dev split, measured by retrieval while training: what chooses the best step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from closecall.encoder import Encoder, ModelConfig, TextEncoder
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
    """The dev queries, the corpus they search and the measure that counts."""

    part: Part
    documents: Sequence[Document]
    measure: Measure

    def value(self, encoder: Encoder, store: VectorStore) -> float:
        """The mean of the measure over the dev queries, in [0, 1]: exact search over the whole corpus."""
        doc_ids = [document.doc_id for document in self.documents]
        documents = store.get(encoder, self.document_texts(), "document", f"{len(doc_ids):,} documents")
        queries = store.get(encoder, [query.text for query in self.part.queries], "query", "dev queries")
        hits = ExactIndex(documents, doc_ids).search(queries, max(DEPTH, self.measure.cutoff or 0))
        run = as_run(hits, [query.query_id for query in self.part.queries], doc_ids)
        return per_query(self.part.qrels, run, [self.measure]).mean(self.measure)

    def document_texts(self) -> list[str]:
        """What is encoded of the corpus, in its order."""
        return [document.full_text for document in self.documents]


class DevEvaluator(SentenceEvaluator):
    """A DevSet in the form the trainer calls. The vectors of each step stay in `store`, named by the step's weights."""

    def __init__(self, dev: DevSet, config: ModelConfig, store: VectorStore) -> None:
        super().__init__()
        self.dev, self.config, self.store = dev, config, store
        self.fingerprints: dict[int, str] = {}
        """By step: the name of its vectors. Steps before a resume are not in it."""
        self.primary_metric = str(dev.measure)

    def __call__(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: float = -1, steps: int = -1, **_: Any
    ) -> dict[str, float]:
        """`{measure: value}` of the model as it is at this step."""
        self.fingerprints[steps] = weights_fingerprint(model)
        encoder = TextEncoder.of_step(model, self.config, self.fingerprints[steps])
        return {str(self.dev.measure): self.dev.value(encoder, self.store)}


def weights_fingerprint(model: SentenceTransformer) -> str:
    """A hash of all weights of a model in memory: names, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
